"""The remote tier of this broker: its parts, their configuration, and their end; decides nothing.

    partition_roles.py      tasks of the partitions that this broker leads or follows
    task_schedule.py        when these tasks run; the pools of copies and of expirations
    reading/reader_pool.py  reads and look-ups by time

Every pool is bounded by its configuration key. Source: Kafka RemoteLogManager.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack

from isotherm.clock import Clock
from isotherm.config.remote import RemoteLogManagerConfig
from isotherm.log.partition_log import PartitionLog
from isotherm.metrics.broker_topic_metrics import BrokerTopicMetrics, TopicGauge
from isotherm.metrics.registry import Metrics
from isotherm.remote.indexes.index_cache import RemoteIndexCache
from isotherm.remote.metadata.api import RemoteLogMetadataManager, TellsChanges
from isotherm.remote.metadata.exclusive import exclusive_metadata
from isotherm.remote.partition_roles import PartitionRoles
from isotherm.remote.quota import QuotaWindows, RemoteQuota
from isotherm.remote.reading.reader_pool import RemoteReaderPool
from isotherm.remote.remote_tier_metrics import (
    RetentionShares,
    publish_quotas,
)
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.remote.storage.checked_storage_manager import location_of
from isotherm.remote.task_schedule import TaskSchedule
from isotherm.remote.tasks.copies_in_progress import CopiesInProgress
from isotherm.remote.tasks.pending_deletions import PendingDeletions
from isotherm.remote.tasks.tier import RemoteTierAccess
from isotherm.remote.threads import SYSTEM_THREADS, Threads
from isotherm.types import (
    BrokerId,
    LeaderEpoch,
    TopicIdPartition,
    TopicPartition,
)

logger = logging.getLogger(__name__)


class RemoteLogManager:
    """Thread-safe. `readers` serves the fetch path."""

    def __init__(
        self,
        config: RemoteLogManagerConfig,
        *,
        broker_id: BrokerId,
        storage: RemoteStorageManager,
        metadata: RemoteLogMetadataManager,
        index_cache: RemoteIndexCache,
        pending_deletions: PendingDeletions,
        leader_epoch_of: Callable[[TopicIdPartition], LeaderEpoch | None],
        is_tiered: Callable[[TopicIdPartition], bool],
        clock: Clock,
        rng: random.Random,
        metrics: Metrics,
        threads: Threads = SYSTEM_THREADS,
    ) -> None:
        """Owns storage, metadata and index_cache: `close` closes them."""
        self._config = config
        self._topic_metrics = BrokerTopicMetrics(metrics)
        self._retention_shares = RetentionShares(metrics)
        self._copy_quota = RemoteQuota(
            config.remote_log_manager_copy_max_bytes_per_second,
            QuotaWindows.of_copying(config),
            clock,
        )
        self._metadata = metadata
        self._storage = storage
        self._index_cache = index_cache
        self._tier = self._access(broker_id, leader_epoch_of, is_tiered, clock, rng)
        self.readers = RemoteReaderPool(
            config,
            storage,
            metadata,
            index_cache,
            metrics=metrics,
            topic_metrics=self._topic_metrics,
            clock=clock,
            threads=threads,
        )
        self._schedule = TaskSchedule(config, clock, rng, metrics, threads)
        self._roles = PartitionRoles(
            self._tier, self._schedule, pending_deletions, self.readers.expirations
        )
        if isinstance(metadata, TellsChanges):
            metadata.tell_changes(self._roles.metadata_changed)
        publish_quotas(metrics, self._copy_quota, self.readers.fetch_quota)
        self._lock = threading.Lock()
        self._closed = False

    def _access(
        self,
        broker_id: BrokerId,
        leader_epoch_of: Callable[[TopicIdPartition], LeaderEpoch | None],
        is_tiered: Callable[[TopicIdPartition], bool],
        clock: Clock,
        rng: random.Random,
    ) -> RemoteTierAccess:
        return RemoteTierAccess(
            storage=self._storage,
            metadata=self._metadata,
            exclusive=exclusive_metadata(self._metadata),
            index_cache=self._index_cache,
            copies=CopiesInProgress(),
            clock=clock,
            rng=rng,
            broker_id=broker_id,
            metrics=self._topic_metrics,
            retention_shares=self._retention_shares,
            copy_quota=self._copy_quota,
            custom_metadata_size_max=lambda: (
                self._config.remote_log_metadata_custom_metadata_max_bytes
            ),
            leader_epoch_of=leader_epoch_of,
            is_tiered=is_tiered,
        )

    @property
    def tier(self) -> RemoteTierAccess:
        """The access to the tier that the tasks use, for other work on the tier."""
        return self._tier

    @property
    def location(self) -> str:
        """The place of the tier, for display."""
        return location_of(self._storage)

    def sizes(self) -> Mapping[TopicPartition, int]:
        """Remote bytes of the tiered partitions that this broker leads, from the last run of their
        expiration task; 0 before the first run."""
        return self._topic_metrics.values_of(TopicGauge.REMOTE_LOG_SIZE_BYTES)

    def leads(self, partition: TopicIdPartition) -> bool:
        """Whether the tasks of the partition's leader run here."""
        return self._roles.leads(partition)

    def log_of(self, partition: TopicIdPartition) -> PartitionLog | None:
        """The log of a tiered partition that this broker leads or follows."""
        return self._roles.log_of(partition)

    def on_leadership_change(
        self, leaders: Iterable[PartitionLog], followers: Iterable[PartitionLog] = ()
    ) -> None:
        """See `PartitionRoles.on_leadership_change`."""
        self._roles.on_leadership_change(leaders, followers)
        if not self._closed:
            self._schedule.expirations.schedule(
                "index-cache", self._evict_indexes, self._schedule.interval_s
            )

    def resume_deletions(self, removed: Iterable[TopicIdPartition] = ()) -> Future[None]:
        """See `PartitionRoles.resume_deletions`."""
        return self._roles.resume_deletions(removed)

    def stop_partitions(
        self, partitions: Iterable[TopicIdPartition], *, delete_remote: bool
    ) -> Future[None]:
        """See `PartitionRoles.stop_partitions`."""
        return self._roles.stop_partitions(partitions, delete_remote=delete_remote)

    def update_config(self, config: RemoteLogManagerConfig) -> None:
        """Apply the dynamic keys."""
        with self._lock:
            if self._closed:
                return
            self._config = config
        self.readers.update_config(config)
        self._schedule.update_config(config)
        self._index_cache.resize(config.remote_log_index_file_cache_total_size_bytes)
        self._copy_quota.update_limit(config.remote_log_manager_copy_max_bytes_per_second)

    def run_tasks(self) -> None:
        """Run every task of every partition once, in the caller's thread; for tests."""
        self._roles.run_tasks()

    def close(self, timeout_s: float | None = None) -> None:
        """Stop. A segment that is being copied or deleted is finished, no other is begun.
        Idempotent.

        Work that has not ended after `timeout_s` is left as by a crash: the next start deletes the
        objects of an unfinished copy, and copies the segment again.
        """
        with self._lock:
            self._closed = True
        self._roles.close()
        # In a thread, because the shutdown of a pool takes no timeout.
        ending = threading.Thread(
            target=self._end_running, name="isotherm-remote-log-manager-close", daemon=True
        )
        ending.start()
        ending.join(timeout_s)
        if ending.is_alive():
            logger.info("remote work is left to the next start timeout_s=%s", timeout_s)
        self._roles.abandon_stops()
        with ExitStack() as closing:  # close all, the last one first, also after an error
            closing.callback(self._storage.close)
            closing.callback(self._metadata.close)
            closing.callback(self._index_cache.close)

    def _end_running(self) -> None:
        self._schedule.close()
        self.readers.close()

    def _evict_indexes(self) -> float:
        self._schedule.retried("index-cache", None).run(self._index_cache.evict_expired)
        return self._schedule.interval_s
