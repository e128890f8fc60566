"""Runs the tasks of the remote tier for the tiered partitions of this broker; decides nothing.

    copier pool       one copy task per partition           tasks/copy.py
    expiration pool   one expiration task per partition     tasks/expiration.py
                      deletion of stopped partitions        tasks/partition_deletion.py
                      expiry of cached indexes
    reader pool       reads and look-ups by time            remote_log_reader.py

Every pool is bounded by its configuration key. A task runs every
remote.log.manager.task.interval.ms. After a failure, which is logged and counted, it runs again
after the backoff of remote.log.manager.task.retry.*. Source: Kafka RemoteLogManager, which defines
these keys and does not use them.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from isotherm.clock import Clock
from isotherm.config.remote import RemoteLogManagerConfig
from isotherm.errors import IsothermError, OffsetOutOfRangeError, RemoteStorageNotReadyError
from isotherm.log.log_segment import TimestampAndOffset
from isotherm.log.partition_log import PartitionLog
from isotherm.metrics.broker_topic_metrics import BrokerTopicMetrics, TopicGauge, TopicMeter
from isotherm.metrics.registry import Metrics
from isotherm.remote.bounded_pool import BoundedPool
from isotherm.remote.damage_log import DamageLog
from isotherm.remote.indexes.index_cache import RemoteIndexCache
from isotherm.remote.metadata.api import RemoteLogMetadataManager
from isotherm.remote.metadata.exclusive import exclusive_metadata
from isotherm.remote.periodic_tasks import PeriodicTasks
from isotherm.remote.quota import QuotaWindows, RemoteQuota
from isotherm.remote.read_failures import ReadFailures
from isotherm.remote.reading.read_ahead import AHEAD_AT_ONCE, ReadAhead, ReadAheadSettings
from isotherm.remote.reading.read_request import ReadRequest
from isotherm.remote.reading.read_wait import NO_WAIT
from isotherm.remote.reading.remote_log_reader import RemoteLogReader, RemoteRead
from isotherm.remote.reading.remote_offset_lookup import RemoteOffsetLookup
from isotherm.remote.reading.segment_reader import RemoteSegmentReader
from isotherm.remote.remote_tier_metrics import (
    Expirations,
    ReadTimes,
    RetentionShares,
    publish_pools,
    publish_quotas,
)
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.remote.storage.checked import location_of
from isotherm.remote.tasks.backoff import RetryBackoff
from isotherm.remote.tasks.copies_in_progress import CopiesInProgress
from isotherm.remote.tasks.copy import CopyTask
from isotherm.remote.tasks.expiration import ExpirationTask
from isotherm.remote.tasks.follow import FollowTask
from isotherm.remote.tasks.local_deletion import RemoteCopiesOfLog
from isotherm.remote.tasks.partition_deletion import delete_remote_partition
from isotherm.remote.tasks.pending_deletions import PendingDeletions
from isotherm.remote.tasks.retried_work import RetriedWork
from isotherm.remote.tasks.tier import RemoteTierAccess
from isotherm.remote.threads import SYSTEM_THREADS, Threads
from isotherm.types import (
    BrokerId,
    LeaderEpoch,
    Offset,
    TimestampMs,
    TopicIdPartition,
    TopicPartition,
)

logger = logging.getLogger(__name__)

READ_AHEAD_POOL = "remote-read-ahead"
"""The pool of fetches. Reads may wait for its work, unlike for that of other pools."""
_STOP_POLL_S = 0.05
"""Interval of checks of a stopped partition while its last task still runs."""


class _Task(Protocol):
    def run(self) -> object: ...

    def cancel(self) -> None: ...

    def release(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _Led:
    """A led partition: its tasks by the name of their kind."""

    copy: _Task
    expiration: _Task

    @property
    def tasks(self) -> tuple[_Task, ...]:
        return (self.copy, self.expiration)


@dataclass(frozen=True, slots=True)
class _Followed:
    """A partition that another broker leads. Only the leader copies and deletes."""

    follow: _Task

    @property
    def tasks(self) -> tuple[_Task, ...]:
        return (self.follow,)


class RemoteLogManager:
    """Thread-safe.

    `fetch_quota` counts the bytes read and refuses nothing: the fetch path checks it before a read.
    `expirations` counts the requests that were answered before the tier had answered.
    """

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
        self._interval_s = config.remote_log_manager_task_interval_ms / 1000
        self._backoff = RetryBackoff.from_config(config)
        self._rng = rng
        self._metrics = metrics
        self._topic_metrics = BrokerTopicMetrics(metrics)
        self._read_times = ReadTimes(metrics, clock)
        self._read_failures = ReadFailures(clock)
        self._retention_shares = RetentionShares(metrics)
        self.expirations = Expirations(metrics)
        self._copy_quota = RemoteQuota(
            config.remote_log_manager_copy_max_bytes_per_second,
            QuotaWindows.of_copying(config),
            clock,
        )
        self.fetch_quota = RemoteQuota(
            config.remote_log_manager_fetch_max_bytes_per_second,
            QuotaWindows.of_fetching(config),
            clock,
        )
        self._metadata = metadata
        self._pending_deletions = pending_deletions
        self._storage = storage
        self._index_cache = index_cache
        self._tier = self._access(broker_id, leader_epoch_of, is_tiered, clock)
        self._fetches = BoundedPool(
            READ_AHEAD_POOL, config.remote_log_reader_threads + AHEAD_AT_ONCE, None, threads
        )
        budget = ReadAheadSettings(config.remote_log_reader_read_ahead_max_bytes)
        read_ahead = ReadAhead(storage, budget, self._fetches, clock)
        damage_log = DamageLog()
        self._reader = RemoteLogReader(metadata, index_cache, read_ahead, damage_log)
        self._offset_lookup = RemoteOffsetLookup(
            metadata, index_cache, RemoteSegmentReader(read_ahead), damage_log
        )
        self._readers = BoundedPool(
            "remote-log-reader",
            config.remote_log_reader_threads,
            config.remote_log_reader_max_pending_tasks,
            threads,
        )
        self._copies = PeriodicTasks(
            "remote-log-copy", config.remote_log_manager_copier_thread_pool_size, clock, threads
        )
        self._expirations = PeriodicTasks(
            "remote-log-expiration",
            config.remote_log_manager_expiration_thread_pool_size,
            clock,
            threads,
        )
        publish_pools(metrics, self._copies, self._readers)
        publish_quotas(metrics, self._copy_quota, self.fetch_quota)
        self._lock = threading.Lock()
        self._roles: dict[TopicIdPartition, _Led | _Followed] = {}
        # Partitions that start once a stop is done, with a token of the last call that requested
        # it.
        self._restarts: dict[TopicIdPartition, object] = {}
        self._stopping: dict[TopicIdPartition, Future[None]] = {}
        self._closed = False

    def _access(
        self,
        broker_id: BrokerId,
        leader_epoch_of: Callable[[TopicIdPartition], LeaderEpoch | None],
        is_tiered: Callable[[TopicIdPartition], bool],
        clock: Clock,
    ) -> RemoteTierAccess:
        return RemoteTierAccess(
            storage=self._storage,
            metadata=self._metadata,
            exclusive=exclusive_metadata(self._metadata),
            index_cache=self._index_cache,
            copies=CopiesInProgress(),
            clock=clock,
            rng=self._rng,
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
        return isinstance(self._roles.get(partition), _Led)

    def on_leadership_change(
        self, leaders: Iterable[PartitionLog], followers: Iterable[PartitionLog] = ()
    ) -> None:
        """Start the tasks of these logs, which this broker leads or follows now.

        Logs that are not tiered are ignored, and running tasks of the same role stay as they are.
        Tasks of the other role are stopped first. Logs that are being stopped start when the stop
        is done, so that its deletion deletes no segment that is copied after it."""
        led, followed = _tiered(leaders), _tiered(followers)
        with self._lock:
            if self._closed:
                return
            turned = [
                *(each for each in led if isinstance(self._roles.get(each), _Followed)),
                *(each for each in followed if isinstance(self._roles.get(each), _Led)),
            ]
        for partition in turned:
            self._stop(partition, delete_remote=False)
        with self._lock:
            stopping = {
                each: self._stopping[each] for each in (*led, *followed) if each in self._stopping
            }
            for each in (*led, *followed):  # the role of an earlier call no longer counts
                self._restarts.pop(each, None)
            tokens = {each: object() for each in stopping}
            self._restarts.update(tokens)
        for partition, done in stopping.items():
            is_led = partition in led
            log = (led if is_led else followed).pop(partition)
            done.add_done_callback(
                partial(self._start_again, partition, log, tokens[partition], is_led)
            )
        self._metadata.on_partition_leadership_changes(led, followed)
        for partition, log in led.items():
            self._lead(partition, log)
        for partition, log in followed.items():
            self._follow(partition, log)
        self._expirations.schedule("index-cache", self._evict_indexes, self._interval_s)

    def _lead(self, partition: TopicIdPartition, log: PartitionLog) -> None:
        with self._lock:
            if partition in self._roles or self._closed:
                return
            self._topic_metrics.follow(partition.topic, partition.partition)
            self._retention_shares.follow(partition.topic, partition.partition)
            led = self._roles[partition] = _Led(
                CopyTask(log, partition, self._tier), ExpirationTask(log, partition, self._tier)
            )
        log.remote_copies = RemoteCopiesOfLog(log, partition, self._tier)
        self._copies.schedule(partition, self._tick("copy", partition, led.copy))
        self._expirations.schedule(partition, self._tick("expiration", partition, led.expiration))

    def _follow(self, partition: TopicIdPartition, log: PartitionLog) -> None:
        with self._lock:
            if partition in self._roles or self._closed:
                return
            followed = self._roles[partition] = _Followed(FollowTask(log, partition, self._tier))
        log.remote_copies = RemoteCopiesOfLog(log, partition, self._tier)
        self._expirations.schedule(partition, self._tick("follow", partition, followed.follow))

    def _start_again(
        self,
        partition: TopicIdPartition,
        log: PartitionLog,
        token: object,
        is_led: bool,
        _: Future[None],
    ) -> None:
        with self._lock:
            if self._restarts.get(partition) is not token:
                return  # it has another role by now, or was stopped for good
            del self._restarts[partition]
        if is_led:
            self.on_leadership_change([log])
        else:
            self.on_leadership_change((), [log])

    def resume_deletions(self, removed: Iterable[TopicIdPartition] = ()) -> Future[None]:
        """Continue the deletions of `stop_partitions` that an earlier process left unfinished, and
        delete `removed`, which that process may not have begun. Call it before the first
        `on_leadership_change`."""
        return self.stop_partitions(
            [*self._pending_deletions.partitions(), *removed], delete_remote=True
        )

    def stop_partitions(
        self, partitions: Iterable[TopicIdPartition], *, delete_remote: bool
    ) -> Future[None]:
        """Stop the tasks of these partitions at once; a running task ends first.

        With `delete_remote` all remote segments of the partitions are deleted too. The deletion is
        retried until it succeeds, if necessary by the next process. The future is done when all of
        this is done, or has RemoteStorageNotReadyError if the manager is closed before.
        """
        stopped = set(partitions)
        with self._lock:
            for each in stopped:
                self._restarts.pop(each, None)
        if delete_remote:
            self._pending_deletions.add(stopped)
        return _all_done(
            [self._stop(partition, delete_remote=delete_remote) for partition in stopped]
        )

    def read(self, asked: ReadRequest) -> Future[RemoteRead]:
        """Run `RemoteLogReader.read` on the reader pool. Cancelling the future drops a read that
        has not begun; `asked.wait` ends a read that waits for the store.

        Raises NotEnoughMemoryError at once if remote.log.reader.max.pending.tasks reads wait
        already.
        """

        def work() -> RemoteRead:
            topic = asked.partition.topic
            self._topic_metrics.mark(TopicMeter.REMOTE_FETCH_REQUESTS, topic)
            began_s = self._read_times.begin()
            succeeded = False
            try:
                found = self._reader.read(asked)
                succeeded = True
            except OffsetOutOfRangeError:
                succeeded = True  # the consumer caused it, not the tier
                raise
            except IsothermError as error:
                if not asked.wait.is_over:
                    self._read_failures.note(asked.partition, asked.offset, error)
                raise
            finally:
                self._read_times.end(began_s)
                if not (succeeded or asked.wait.is_over):
                    self._topic_metrics.mark(TopicMeter.REMOTE_FETCH_ERRORS, topic)
            self._note_read(asked.partition, found)
            return found

        return self._readers.submit(work)

    def read_now(self, asked: ReadRequest) -> RemoteRead | None:
        """Same as `read`, but only from memory and in the caller's thread, in about 0.1 ms.

        None if the bytes are not in memory, or for an error, which `read` will raise.
        """
        began_s = self._read_times.begin()
        found = None
        with suppress(IsothermError):
            found = self._reader.read(asked._replace(wait=NO_WAIT))
        if found is not None:
            self._topic_metrics.mark(TopicMeter.REMOTE_FETCH_REQUESTS, asked.partition.topic)
            self._read_times.end(began_s)
            self._note_read(asked.partition, found)
        return found

    def _note_read(self, partition: TopicIdPartition, found: RemoteRead) -> None:
        self._topic_metrics.mark(TopicMeter.REMOTE_FETCH_BYTES, partition.topic, found.size)
        self.fetch_quota.record(found.size)

    def offset_for_timestamp(
        self,
        log: PartitionLog,
        partition: TopicIdPartition,
        timestamp_ms: TimestampMs,
        starting_offset: Offset,
    ) -> Future[TimestampAndOffset | None]:
        """The first record with `timestamp_ms` or a later one from `starting_offset` on: in the
        remote tier, or if it has none, in the local log."""
        return self._readers.submit(
            lambda: self._offset_lookup.find_in_both_tiers(
                log, partition, timestamp_ms, starting_offset
            )
        )

    def update_config(self, config: RemoteLogManagerConfig) -> None:
        """Apply the dynamic keys."""
        with self._lock:
            if self._closed:
                return
            old, self._config = self._config, config
        if config.remote_log_reader_threads != old.remote_log_reader_threads:
            self._readers.resize(config.remote_log_reader_threads)
            self._fetches.resize(config.remote_log_reader_threads + AHEAD_AT_ONCE)
        copiers = config.remote_log_manager_copier_thread_pool_size
        if copiers != old.remote_log_manager_copier_thread_pool_size:
            self._copies.resize(copiers)
        expirers = config.remote_log_manager_expiration_thread_pool_size
        if expirers != old.remote_log_manager_expiration_thread_pool_size:
            self._expirations.resize(expirers)
        self._index_cache.resize(config.remote_log_index_file_cache_total_size_bytes)
        self._copy_quota.update_limit(config.remote_log_manager_copy_max_bytes_per_second)
        self.fetch_quota.update_limit(config.remote_log_manager_fetch_max_bytes_per_second)

    def run_tasks(self) -> None:
        """Run every task of every partition once, in the caller's thread; for tests."""
        with self._lock:
            roles = dict(self._roles)
        for partition, role in roles.items():
            if isinstance(role, _Led):
                self._tick("copy", partition, role.copy)()
                self._tick("expiration", partition, role.expiration)()
            else:
                self._tick("follow", partition, role.follow)()

    def close(self, timeout_s: float | None = None) -> None:
        """Stop. A segment that is being copied or deleted is finished, no other is begun.
        Idempotent.

        Work that has not ended after `timeout_s` is left as by a crash: the next start deletes the
        objects of an unfinished copy, and copies the segment again.
        """
        with self._lock:
            self._closed = True
            roles = list(self._roles.values())
            stopping = list(self._stopping.values())
        for role in roles:
            for task in role.tasks:
                task.cancel()
        ending = threading.Thread(
            target=self._end_running, name="isotherm-remote-log-manager-close", daemon=True
        )
        ending.start()
        ending.join(timeout_s)
        if ending.is_alive():
            logger.warning("remote work is left to the next start timeout_s=%s", timeout_s)
        for future in stopping:
            with suppress(InvalidStateError):  # done, perhaps by work that is left behind
                future.set_exception(_closed_error())
        with ExitStack() as closing:  # close all in this order, also after an error
            closing.callback(self._storage.close)
            closing.callback(self._metadata.close)
            closing.callback(self._index_cache.close)

    def _end_running(self) -> None:
        self._copies.close()
        self._expirations.close()
        self._readers.close()
        self._fetches.close()

    def _stop(self, partition: TopicIdPartition, *, delete_remote: bool) -> Future[None]:
        done: Future[None] = Future()
        with self._lock:
            if self._closed:
                done.set_exception(_closed_error())
                return done
            role = self._roles.pop(partition, None)
            earlier = self._stopping.get(partition)
            self._stopping[partition] = done
        running = [earlier] if earlier is not None else []
        if role is not None:
            for task in role.tasks:
                task.cancel()
            running += [self._copies.cancel(partition), self._expirations.cancel(partition)]
        if delete_remote:
            self._metadata.on_partition_leadership_changes([partition], ())
        retried = self._retried("partition-deletion" if delete_remote else "stop", partition)
        is_over = False

        def end() -> None:
            nonlocal is_over
            if not delete_remote or self._delete_remote(partition):
                self._ended(partition, role, done)
                is_over = True

        def stop() -> float | None:
            if not all(each.done() for each in running):
                return _STOP_POLL_S
            wait_s = retried.run(end)
            if not is_over:
                return _STOP_POLL_S if wait_s is None else wait_s
            with suppress(InvalidStateError):  # `close` did not wait for it
                done.set_result(None)
            return None

        self._expirations.schedule(("stop", partition, id(done)), stop)
        return done

    def _delete_remote(self, partition: TopicIdPartition) -> bool:
        """Returns False, with nothing done, while the partition's metadata is being read."""
        if not self._metadata.is_ready(partition):
            return False
        delete_remote_partition(self._tier, partition)
        self._pending_deletions.remove(partition)
        return True

    def _ended(
        self,
        partition: TopicIdPartition,
        role: _Led | _Followed | None,
        stopped: Future[None],
    ) -> None:
        for task in () if role is None else role.tasks:
            task.release()
        self._topic_metrics.forget(partition.topic, partition.partition)
        self._retention_shares.forget(partition.topic, partition.partition)
        self.expirations.forget(partition.topic, partition.partition)
        with self._lock:
            is_last = self._stopping.get(partition) is stopped
        if not is_last:
            return
        self._metadata.on_stop_partitions([partition])
        with self._lock:
            is_last = self._stopping.get(partition) is stopped
            if is_last:
                del self._stopping[partition]
        if not is_last:
            # Another stop has begun meanwhile. Its deletion reads the metadata.
            self._metadata.on_partition_leadership_changes([partition], ())

    def _tick(self, kind: str, partition: TopicIdPartition, task: _Task) -> Callable[[], float]:
        retried = self._retried(kind, partition)

        def tick() -> float:
            wait_s = retried.run(task.run)
            return self._interval_s if wait_s is None else wait_s

        return tick

    def _evict_indexes(self) -> float:
        self._retried("index-cache", None).run(self._index_cache.evict_expired)
        return self._interval_s

    def _retried(self, task: str, place: object) -> RetriedWork:
        return RetriedWork(task, place, backoff=self._backoff, rng=self._rng, metrics=self._metrics)


def _closed_error() -> RemoteStorageNotReadyError:
    return RemoteStorageNotReadyError("the remote log manager is closed")


def _tiered(logs: Iterable[PartitionLog]) -> dict[TopicIdPartition, PartitionLog]:
    return {
        TopicIdPartition(log.topic_id, *log.topic_partition): log
        for log in logs
        if log.remote_log_enabled and log.topic_id is not None
    }


def _all_done(futures: Sequence[Future[None]]) -> Future[None]:
    """A future that is done when all of these are, with the error of the first one that failed."""
    together: Future[None] = Future()
    lock = threading.Lock()
    remaining = len(futures)

    def count_down(_: Future[None]) -> None:
        nonlocal remaining
        with lock:
            remaining -= 1
            is_last = remaining == 0
        if is_last:
            settle()

    def settle() -> None:
        errors = [error for each in futures if (error := each.exception()) is not None]
        if errors:
            together.set_exception(errors[0])
        else:
            together.set_result(None)

    for each in futures:
        each.add_done_callback(count_down)
    if not futures:
        settle()
    return together
