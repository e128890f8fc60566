"""Work on the remote tier's metadata that comes round by the clock."""

from __future__ import annotations

import threading

from isotherm.broker.background import PeriodicTask
from isotherm.broker.remote_metadata_upgrade import MetadataUpgrade
from isotherm.clock import Clock
from isotherm.config.broker import BrokerConfig
from isotherm.metrics.registry import Metrics
from isotherm.remote.compaction.finisher import CompactionFinisher
from isotherm.remote.compaction.journal import CompactionJournals
from isotherm.remote.metadata.api import MetadataTopic
from isotherm.remote.metadata.cleanup import RemoteMetadataCleanupManager
from isotherm.remote.metadata.settings import TopicBasedSettings
from isotherm.remote.metadata.topic_based import TopicBasedRemoteLogMetadataManager
from isotherm.remote.remote_log_manager import RemoteLogManager
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.tasks.cleanup_target import TierCleanupTarget
from isotherm.remote.tasks.replacement_target import TierReplacementTarget


class RemoteMetadataUpkeep:
    """`start` once; `stop` before the remote log manager is closed."""

    def __init__(
        self,
        upgrade: MetadataUpgrade,
        topic: MetadataTopic,
        metadata: TopicBasedRemoteLogMetadataManager,
        remote_log_manager: RemoteLogManager,
        storage: RemoteStorageManager,
        config: BrokerConfig,
        settings: TopicBasedSettings,
        *,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self._upgrade = upgrade
        self._stopping = threading.Event()
        self._cleanup = RemoteMetadataCleanupManager(
            topic,
            TierCleanupTarget(
                remote_log_manager.tier,
                metadata,
                lambda each: remote_log_manager.stop_partitions([each], delete_remote=True),
            ),
            settings,
            clock=clock,
            metrics=metrics,
        )
        cleanup_interval_s = settings.remote_log_metadata_cleanup_interval_ms / 1000
        task_interval_s = config.remote.remote_log_manager_task_interval_ms / 1000
        self._tasks = [
            PeriodicTask(
                "isotherm-remote-log-metadata-cleanup",
                self._cleanup.run,
                clock,
                initial_delay_s=config.log_initial_task_delay_ms / 1000,
                interval_s=cleanup_interval_s,
            ),
            PeriodicTask(
                "isotherm-remote-log-metadata-upgrade",
                upgrade.run,
                clock,
                initial_delay_s=config.log_initial_task_delay_ms / 1000,
                interval_s=task_interval_s,
            ),
        ]
        if isinstance(storage, ObjectStoreRemoteStorageManager):
            finisher = CompactionFinisher(
                CompactionJournals(storage.client, storage.root_directory),
                storage,
                TierReplacementTarget(remote_log_manager.tier, metadata),
                abandoned_after_ms=settings.remote_log_metadata_cleanup_grace_ms,
                clock=clock,
                metrics=metrics,
                is_cancelled=self._stopping.is_set,
            )
            self._tasks.append(
                PeriodicTask(
                    "isotherm-remote-compaction",
                    finisher.run,
                    clock,
                    initial_delay_s=config.log_initial_task_delay_ms / 1000,
                    interval_s=settings.remote_log_compaction_check_interval_ms / 1000,
                )
            )

    def start(self) -> None:
        for task in self._tasks:
            task.start()

    def stop(self) -> None:
        """Waits for the steps that are being taken."""
        self._stopping.set()
        self._cleanup.cancel()
        self._upgrade.cancel()
        for task in self._tasks:
            task.stop()
