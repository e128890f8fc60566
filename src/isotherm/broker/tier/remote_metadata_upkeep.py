"""Periodic background tasks on the remote tier's metadata."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from isotherm.broker.background import PeriodicTask
from isotherm.broker.tier.remote_metadata_upgrade import MetadataUpgrade
from isotherm.clock import Clock
from isotherm.config.broker import BrokerConfig
from isotherm.metrics.registry import Metrics
from isotherm.remote.compaction.finisher import CompactionFinisher
from isotherm.remote.compaction.journal import CompactionJournals
from isotherm.remote.metadata.api import ConditionalMetadataTopic, ReplacesSegments
from isotherm.remote.metadata.settings import TopicBasedSettings
from isotherm.remote.metadata.topic_based import TopicBasedRemoteLogMetadataManager
from isotherm.remote.metadata.upkeep.cleanup import RemoteMetadataCleanupManager
from isotherm.remote.remote_log_manager import RemoteLogManager
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.tasks.cleanup_target import TierCleanupTarget
from isotherm.remote.tasks.replacement_target import TierReplacementTarget


class Upkeep(NamedTuple):
    """A periodic task. `cancel` makes it take no other step. Any thread."""

    task: PeriodicTask
    cancel: Callable[[], None]


class RemoteMetadataUpkeep:
    """Call `start` once, and `stop` before the remote log manager is closed."""

    def __init__(self, work: Sequence[Upkeep]) -> None:
        self._work = work

    def start(self) -> None:
        for each in self._work:
            each.task.start()

    def stop(self) -> None:
        """Wait for the running steps, and stop."""
        for each in self._work:
            # All are cancelled before any is waited for, so that the waits overlap.
            each.cancel()
        for each in self._work:
            each.task.stop()


def cleanup_upkeep(
    topic: ConditionalMetadataTopic,
    metadata: TopicBasedRemoteLogMetadataManager,
    remote_log_manager: RemoteLogManager,
    config: BrokerConfig,
    settings: TopicBasedSettings,
    *,
    keeps: Callable[[int], bool],
    is_alone: bool,
    clock: Clock,
    metrics: Metrics,
) -> Upkeep:
    """The task that clears what is left over in the metadata topic. `keeps` says whether this broker
    looks after a metadata partition now, `is_alone` whether no other one writes to the topic."""
    cleanup = RemoteMetadataCleanupManager(
        topic,
        TierCleanupTarget(
            remote_log_manager.tier,
            metadata,
            lambda each: remote_log_manager.stop_partitions([each], delete_remote=True),
            leads=remote_log_manager.leads,
            keeps=keeps,
            is_alone=is_alone,
        ),
        settings,
        clock=clock,
        metrics=metrics,
    )
    task = PeriodicTask(
        "isotherm-remote-log-metadata-cleanup",
        cleanup.run,
        clock,
        initial_delay_s=config.log_initial_task_delay_ms / 1000,
        interval_s=settings.remote_log_metadata_cleanup_interval_ms / 1000,
    )
    return Upkeep(task, cleanup.cancel)


def upgrade_upkeep(upgrade: MetadataUpgrade, config: BrokerConfig, clock: Clock) -> Upkeep:
    """The task that takes the metadata topic to feature level 1."""
    task = PeriodicTask(
        "isotherm-remote-log-metadata-upgrade",
        upgrade.run,
        clock,
        initial_delay_s=config.log_initial_task_delay_ms / 1000,
        interval_s=config.remote.remote_log_manager_task_interval_ms / 1000,
    )
    return Upkeep(task, upgrade.cancel)


def compaction_upkeep(
    storage: object,
    metadata: object,
    remote_log_manager: RemoteLogManager,
    config: BrokerConfig,
    settings: TopicBasedSettings,
    *,
    is_alone: bool,
    clock: Clock,
    metrics: Metrics,
) -> list[Upkeep]:
    """The task that publishes compactions staged by a job, if both managers support it. `is_alone`: no
    other broker does so."""
    if not isinstance(storage, ObjectStoreRemoteStorageManager):
        return []
    if not isinstance(metadata, ReplacesSegments):
        return []
    stopping = threading.Event()
    finisher = CompactionFinisher(
        CompactionJournals(storage.client, storage.root_directory),
        storage,
        TierReplacementTarget(remote_log_manager.tier, metadata, remote_log_manager.leads),
        abandoned_after_ms=settings.remote_log_metadata_cleanup_grace_ms,
        is_alone=is_alone,
        clock=clock,
        metrics=metrics,
        is_cancelled=stopping.is_set,
    )
    task = PeriodicTask(
        "isotherm-remote-compaction",
        finisher.run,
        clock,
        initial_delay_s=config.log_initial_task_delay_ms / 1000,
        interval_s=settings.remote_log_compaction_check_interval_ms / 1000,
    )
    return [Upkeep(task, stopping.set)]
