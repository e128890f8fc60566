"""The reader pool: what the fetch path reads of the remote tier, counted and under a quota.

    read                   RemoteLogReader, on one of remote.log.reader.threads threads
    read_now               the same from memory only, in the caller's thread
    offset_for_timestamp   RemoteOffsetLookup, on the same threads

The ranges that reads wait for are fetched on a pool of their own. A read that waited for its own
pool could wait for ever. Source: Kafka RemoteLogManager.asyncRead and asyncOffsetRead.
"""

from __future__ import annotations

import logging
import threading
from concurrent.futures import Future

from isotherm.clock import Clock
from isotherm.config.remote import RemoteLogManagerConfig
from isotherm.errors import (
    CorruptDataError,
    IsothermError,
    OffsetOutOfRangeError,
    RemoteStorageNotReadyError,
)
from isotherm.log.log_segment import TimestampAndOffset
from isotherm.log.partition_log import PartitionLog
from isotherm.metrics.broker_topic_metrics import BrokerTopicMetrics, TopicMeter
from isotherm.metrics.registry import Metrics
from isotherm.remote.bounded_pool import BoundedPool
from isotherm.remote.indexes.index_cache import RemoteIndexCache
from isotherm.remote.metadata.api import RemoteLogMetadataManager
from isotherm.remote.quota import QuotaWindows, RemoteQuota
from isotherm.remote.reading.damage_log import DamageLog
from isotherm.remote.reading.read_ahead import AHEAD_AT_ONCE, ReadAhead, ReadAheadSettings
from isotherm.remote.reading.read_request import ReadRequest, RemoteRead
from isotherm.remote.reading.read_wait import NO_WAIT
from isotherm.remote.reading.remote_log_reader import RemoteLogReader
from isotherm.remote.reading.remote_offset_lookup import RemoteOffsetLookup
from isotherm.remote.reading.segment_reader import RemoteSegmentReader
from isotherm.remote.remote_tier_metrics import Expirations, ReadTimes, publish_readers
from isotherm.remote.segment_metadata import RemoteLogSegmentId
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.remote.threads import Threads
from isotherm.types import Offset, TimestampMs, TopicIdPartition

logger = logging.getLogger(__name__)

LOG_INTERVAL_S = 60.0


class ReadFailures:
    """Thread-safe. Remembers the partitions whose reads failed within the interval."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._logged_s: dict[TopicIdPartition, float] = {}

    def note(self, partition: TopicIdPartition, offset: Offset, error: IsothermError) -> None:
        """Damage has a line of its own (DamageLog), and a start is no failure."""
        if isinstance(error, CorruptDataError | RemoteStorageNotReadyError):
            return
        now_s = self._clock.monotonic_s()
        with self._lock:
            begin_s = now_s - LOG_INTERVAL_S
            if self._logged_s.get(partition, begin_s) > begin_s:
                return
            self._logged_s = {p: at for p, at in self._logged_s.items() if at > begin_s}
            self._logged_s[partition] = now_s
        logger.warning("remote read failed partition=%s offset=%d: %s", partition, offset, error)


READ_AHEAD_POOL = "remote-read-ahead"
"""The pool of fetches. Reads may wait for its work, unlike for that of other pools."""


class RemoteReaderPool:
    """Thread-safe.

    `fetch_quota` counts the bytes read and refuses nothing: the fetch path checks it before a read.
    `expirations` counts the requests that were answered before the tier had answered.
    """

    def __init__(
        self,
        config: RemoteLogManagerConfig,
        storage: RemoteStorageManager,
        metadata: RemoteLogMetadataManager,
        index_cache: RemoteIndexCache,
        *,
        metrics: Metrics,
        topic_metrics: BrokerTopicMetrics,
        clock: Clock,
        threads: Threads,
    ) -> None:
        self._topic_metrics = topic_metrics
        self._times = ReadTimes(metrics, clock)
        self._failures = ReadFailures(clock)
        self.expirations = Expirations(metrics)
        self.fetch_quota = RemoteQuota(
            config.remote_log_manager_fetch_max_bytes_per_second,
            QuotaWindows.of_fetching(config),
            clock,
        )
        self._thread_count = config.remote_log_reader_threads
        self._pool = BoundedPool(
            "remote-log-reader",
            self._thread_count,
            config.remote_log_reader_max_pending_tasks,
            threads,
        )
        # No bound on the waiting fetches: the memory of the read-ahead bounds them.
        self._fetches = BoundedPool(
            READ_AHEAD_POOL, self._thread_count + AHEAD_AT_ONCE, None, threads
        )
        budget = ReadAheadSettings(config.remote_log_reader_read_ahead_max_bytes)
        read_ahead = self._read_ahead = ReadAhead(storage, budget, self._fetches, clock)
        damage_log = DamageLog()
        self._reader = RemoteLogReader(metadata, index_cache, read_ahead, damage_log)
        self._offset_lookup = RemoteOffsetLookup(
            metadata, index_cache, RemoteSegmentReader(read_ahead), damage_log
        )
        publish_readers(metrics, self._pool, lambda: read_ahead.memory_in_bytes)

    def forget_range(self, segment_id: RemoteLogSegmentId) -> None:
        """Drop what is read ahead of a segment."""
        self._read_ahead.forget(segment_id)

    def read(self, request: ReadRequest) -> Future[RemoteRead]:
        """Run `RemoteLogReader.read` on the pool. Cancelling the future drops a read that has not
        begun; `asked.wait` ends a read that waits for the store.

        Raises NotEnoughMemoryError at once if remote.log.reader.max.pending.tasks reads wait
        already.
        """

        def work() -> RemoteRead:
            topic = request.partition.topic
            self._topic_metrics.mark(TopicMeter.REMOTE_FETCH_REQUESTS, topic)
            began_s = self._times.begin()
            succeeded = False
            try:
                result = self._reader.read(request)
                succeeded = True
            except OffsetOutOfRangeError:
                succeeded = True  # the consumer caused it, not the tier
                raise
            except IsothermError as error:
                # A read that was stopped fails because of its client, or of a timeout, and not
                # because of the tier.
                if not request.wait.is_over:
                    self._failures.note(request.partition, request.offset, error)
                raise
            finally:
                self._times.end(began_s)
                if not (succeeded or request.wait.is_over):
                    self._topic_metrics.mark(TopicMeter.REMOTE_FETCH_ERRORS, topic)
            self._note_read(request.partition, result)
            return result

        return self._pool.submit(work)

    def read_now(self, request: ReadRequest) -> RemoteRead | ReadRequest:
        """Same as `read`, but only from memory and in the caller's thread, in about 0.1 ms.

        If the bytes are not in memory, the request for `read` is returned, which repeats no
        look-up. An error returns it too, and `read` will raise the error.
        """
        began_s = self._times.begin()
        try:
            request = self._reader.look_up(request)
            result = self._reader.read(request._replace(wait=NO_WAIT))
        except IsothermError:
            return request
        # Counted only if it answers: otherwise `read` follows and counts the request.
        self._topic_metrics.mark(TopicMeter.REMOTE_FETCH_REQUESTS, request.partition.topic)
        self._times.end(began_s)
        self._note_read(request.partition, result)
        return result

    def _note_read(self, partition: TopicIdPartition, result: RemoteRead) -> None:
        self._topic_metrics.mark(TopicMeter.REMOTE_FETCH_BYTES, partition.topic, result.size)
        self.fetch_quota.record(result.size)

    def offset_for_timestamp(
        self,
        log: PartitionLog,
        partition: TopicIdPartition,
        timestamp_ms: TimestampMs,
        starting_offset: Offset,
    ) -> Future[TimestampAndOffset | None]:
        """The first record with `timestamp_ms` or a later one from `starting_offset` on: in the
        remote tier, or if it has none, in the local log."""
        return self._pool.submit(
            lambda: self._offset_lookup.find_in_both_tiers(
                log, partition, timestamp_ms, starting_offset
            )
        )

    def update_config(self, config: RemoteLogManagerConfig) -> None:
        """Apply the number of threads and the quota."""
        count = config.remote_log_reader_threads
        if count != self._thread_count:
            self._thread_count = count
            self._pool.resize(count)
            self._fetches.resize(count + AHEAD_AT_ONCE)
        self.fetch_quota.update_limit(config.remote_log_manager_fetch_max_bytes_per_second)

    def close(self) -> None:
        """Cancel the reads that have not begun, and wait for the rest. Idempotent."""
        # The readers first: a reader whose fetch is cancelled could wait for ever.
        self._pool.close()
        self._fetches.close()
