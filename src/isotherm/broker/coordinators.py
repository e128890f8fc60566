"""Creates the group and transaction coordinators from the broker's configuration and components."""

from __future__ import annotations

import asyncio
import random
from concurrent.futures import ThreadPoolExecutor

from isotherm.broker.controller.controller import Controller, MetadataChange
from isotherm.broker.controller.image import ConfigResource
from isotherm.broker.controller.metadata_records import GROUP_RESOURCE
from isotherm.broker.groups.group_coordinator import GroupCoordinator
from isotherm.broker.groups.offsets_topic import OffsetsTopic
from isotherm.broker.groups.shards import GroupShards
from isotherm.broker.partitions.replica_manager import ReplicaManager
from isotherm.broker.transactions.transaction_coordinator import TransactionCoordinator
from isotherm.broker.transactions.transaction_log import TransactionLog
from isotherm.broker.transactions.transaction_markers import TransactionMarkers
from isotherm.clock import Clock
from isotherm.config.groups import GroupConfig
from isotherm.config.transactions import TransactionConfig


def open_group_coordinator(
    config: GroupConfig,
    controller: Controller,
    replica_manager: ReplicaManager,
    control_executor: ThreadPoolExecutor,
    *,
    clock: Clock,
    rng: random.Random,
) -> GroupCoordinator:
    """A started coordinator: it loads `__consumer_offsets`, and listens for deleted topics."""
    loop = asyncio.get_running_loop()
    shards = GroupShards(
        OffsetsTopic(config, controller, replica_manager, clock),
        config,
        clock,
        lambda change: loop.run_in_executor(control_executor, change),
        lambda group_id: controller.texts_of(ConfigResource(GROUP_RESOURCE, group_id)),
    )
    coordinator = GroupCoordinator(config, shards, lambda: controller.image, rng, loop)
    coordinator.start()

    def follow(change: MetadataChange) -> None:
        if change.deleted:
            names = [topic.name for topic in change.deleted]
            # Listeners run on the control thread, the coordinator on the event loop.
            loop.call_soon_threadsafe(coordinator.topics_deleted, names)

    controller.add_listener(follow)
    return coordinator


def open_transaction_coordinator(
    config: TransactionConfig,
    controller: Controller,
    replica_manager: ReplicaManager,
    markers: TransactionMarkers,
    control_executor: ThreadPoolExecutor,
    *,
    clock: Clock,
) -> TransactionCoordinator:
    """A coordinator that is not started yet: its start needs loaded groups."""
    loop = asyncio.get_running_loop()
    return TransactionCoordinator(
        config,
        TransactionLog(config, controller, replica_manager, clock),
        markers,
        clock=clock,
        run_control=lambda change: loop.run_in_executor(control_executor, change),
        new_producer_id=lambda: loop.run_in_executor(
            control_executor, controller.generate_producer_id
        ),
    )
