"""Work on the remote tier's metadata that comes round by the clock."""

from __future__ import annotations

from isotherm.broker.background import PeriodicTask
from isotherm.clock import Clock
from isotherm.metrics.registry import Metrics
from isotherm.remote.metadata.api import MetadataTopic
from isotherm.remote.metadata.cleanup import RemoteMetadataCleanupManager
from isotherm.remote.metadata.settings import TopicBasedSettings
from isotherm.remote.metadata.topic_based import TopicBasedRemoteLogMetadataManager
from isotherm.remote.remote_log_manager import RemoteLogManager
from isotherm.remote.tasks.cleanup_target import TierCleanupTarget


class RemoteMetadataUpkeep:
    """`start` once; `stop` before the remote log manager is closed."""

    def __init__(
        self,
        topic: MetadataTopic,
        metadata: TopicBasedRemoteLogMetadataManager,
        remote_log_manager: RemoteLogManager,
        settings: TopicBasedSettings,
        *,
        initial_delay_ms: int,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
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
        self._task = PeriodicTask(
            "isotherm-remote-log-metadata-cleanup",
            self._cleanup.run,
            clock,
            initial_delay_s=initial_delay_ms / 1000,
            interval_s=settings.remote_log_metadata_cleanup_interval_ms / 1000,
        )

    def start(self) -> None:
        self._task.start()

    def stop(self) -> None:
        """Waits for the step that is being taken."""
        self._cleanup.cancel()
        self._task.stop()
