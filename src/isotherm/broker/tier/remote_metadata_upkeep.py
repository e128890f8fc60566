"""The periodic background tasks on the remote tier's metadata."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from isotherm.broker.surroundings import Surroundings
from isotherm.broker.threads.background import PeriodicTask
from isotherm.broker.tier.remote_metadata_upgrade import MetadataUpgrade
from isotherm.config.broker import BrokerConfig
from isotherm.remote.metadata.api import ConditionalMetadataTopic, ReplacesSegments
from isotherm.remote.metadata.topic_based import TopicBasedRemoteLogMetadataManager
from isotherm.remote.metadata.topic_based_settings import TopicBasedSettings
from isotherm.remote.remote_log_manager import RemoteLogManager
from isotherm.remote.rewriting.adoption import AdoptsHistories
from isotherm.remote.rewriting.finisher import RewriteFinisher, TierReplacementTarget
from isotherm.remote.rewriting.journal import RewriteJournals
from isotherm.remote.rewriting.local_copies import LocalCopies
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.tasks.cleanup import RemoteMetadataCleanupManager, TierCleanupTarget
from isotherm.types import BrokerId, TopicIdPartition


class Upkeep(NamedTuple):
    """A periodic task. `cancel` ends it after its current step; any thread may call it."""

    task: PeriodicTask
    cancel: Callable[[], None]


class RemoteMetadataUpkeep:
    """Starts and stops the tasks.

    Call `start` once, and `stop` before the remote log manager is closed.
    """

    def __init__(self, work: Sequence[Upkeep]) -> None:
        self._work = work

    def start(self) -> None:
        for upkeep in self._work:
            upkeep.task.start()

    def stop(self) -> None:
        """Cancel all tasks and wait for their current steps."""
        for work in self._work:
            # All are cancelled before any is waited for, so that the waits overlap.
            work.cancel()
        for upkeep in self._work:
            upkeep.task.stop()


class UpkeepTasks:
    """Makes the tasks of one broker. `is_alone` means that no other broker runs the same tasks."""

    def __init__(
        self,
        remote_log_manager: RemoteLogManager,
        config: BrokerConfig,
        settings: TopicBasedSettings,
        surroundings: Surroundings,
        *,
        is_alone: bool,
    ) -> None:
        self._manager = remote_log_manager
        self._config = config
        self._settings = settings
        self._is_alone = is_alone
        self._clock = surroundings.clock
        self._metrics = surroundings.metrics

    def cleanup(
        self,
        topic: ConditionalMetadataTopic,
        metadata: TopicBasedRemoteLogMetadataManager,
        keeps: Callable[[int], bool],
    ) -> Upkeep:
        """Removes leftovers in the metadata topic. `keeps(n)` is whether this broker is responsible
        for metadata partition n now."""
        cleanup = RemoteMetadataCleanupManager(
            topic,
            TierCleanupTarget(
                self._manager.tier,
                metadata,
                lambda partition: self._manager.stop_partitions([partition], delete_remote=True),
                leads=self._manager.leads,
                keeps=keeps,
                is_alone=self._is_alone,
            ),
            self._settings,
            clock=self._clock,
            metrics=self._metrics,
        )
        interval_ms = self._settings.remote_log_metadata_cleanup_interval_ms
        task = self._task("isotherm-remote-log-metadata-cleanup", cleanup.run, interval_ms)
        return Upkeep(task, cleanup.cancel)

    def upgrade(self, upgrade: MetadataUpgrade) -> Upkeep:
        """Migrates the metadata topic to feature level 1."""
        interval_ms = self._config.remote.remote_log_manager_task_interval_ms
        task = self._task("isotherm-remote-log-metadata-upgrade", upgrade.run, interval_ms)
        return Upkeep(task, upgrade.cancel)

    def rewriting(
        self,
        storage: object,
        metadata: object,
        replicas_of: Callable[[TopicIdPartition], frozenset[BrokerId]],
        logs: AdoptsHistories | None = None,
    ) -> list[Upkeep]:
        """Publishes runs (compactions, erasures, loads) that a job has staged. No task unless both
        managers support it."""
        if not isinstance(storage, ObjectStoreRemoteStorageManager):
            return []
        if not isinstance(metadata, ReplacesSegments):
            return []
        stopping = threading.Event()
        local = LocalCopies(
            self._config.node_id,
            self._manager.log_of,
            replicas_of,
            self._manager.readers.forget_range,
            self._clock,
        )
        finisher = RewriteFinisher(
            RewriteJournals(storage.client, storage.root_directory),
            storage,
            TierReplacementTarget(self._manager.tier, metadata, self._manager.leads, local),
            abandoned_after_ms=self._settings.remote_log_metadata_cleanup_grace_ms,
            is_alone=self._is_alone,
            clock=self._clock,
            metrics=self._metrics,
            logs=logs,
            is_cancelled=stopping.is_set,
        )
        interval_ms = self._settings.remote_log_rewrite_check_interval_ms
        return [
            Upkeep(self._task("isotherm-remote-rewriting", finisher.run, interval_ms), stopping.set)
        ]

    def _task(self, name: str, run: Callable[[], object], interval_ms: int) -> PeriodicTask:
        return PeriodicTask(
            name,
            run,
            self._clock,
            initial_delay_s=self._config.log_initial_task_delay_ms / 1000,
            interval_s=interval_ms / 1000,
        )
