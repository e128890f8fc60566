"""RemoteLogMetadataManager on a topic: state is the fold of the topic's records.

At feature level 0 every event is a record; at level 1 every record is the whole state under a key,
and the events are in the audit topic (event_writer.py). The user partitions assigned to this broker
are spread over the metadata topic's partitions by keys.py. Assigning one replays its metadata
partition from the start; then the partition is followed live by one background thread. A write is
done once it has been read back, so that its caller sees it.

Invariants:
- a partition is ready only when its metadata is whole: everything stored is read, and an
  interrupted event (a crash or an error left it in the audit topic alone) is applied;
- a topic that is read from a replica is whole when the replica has what its leader had at the time;
- every write is decided and recorded under the write lock of its metadata partition, after
  everything that was stored before it has been read. With `exclusively` a caller decides there,
  too;
- at level 1 nothing is recorded if another broker has recorded an event since the decision.

Source: Kafka TopicBasedRemoteLogMetadataManager; KIP-1266 for level 1 (docs/formats).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass

from isotherm.clock import Clock
from isotherm.errors import (
    LogEndMovedError,
    RemoteResourceNotFoundError,
    RemoteStorageNotReadyError,
    RetriableError,
    UnsupportedVersionError,
)
from isotherm.metrics.registry import Metrics
from isotherm.remote.futures import done_future
from isotherm.remote.metadata.api import ConditionalMetadataTopic, EndOffsetsTopic
from isotherm.remote.metadata.folding.fold import COLUMNAR_RECORDS_MIN, fold_metadata_partition
from isotherm.remote.metadata.state.cache import RemoteLogMetadataCache
from isotherm.remote.metadata.state.cached_reads import CachedReads
from isotherm.remote.metadata.state.partition_store import (
    FoldedPartition,
    RemotePartitionMetadataStore,
)
from isotherm.remote.metadata.topic.event_writer import (
    Ends,
    KeyedMetadata,
    LastAudited,
    MetadataEventWriter,
    is_unapplied,
)
from isotherm.remote.metadata.topic.keyed_writes import key_of_start, plan_write
from isotherm.remote.metadata.topic.metadata_partition_reader import MetadataPartitionReader
from isotherm.remote.metadata.topic_based_settings import TopicBasedSettings
from isotherm.remote.metadata.wire.events import partition_of
from isotherm.remote.metadata.wire.keys import metadata_partition
from isotherm.remote.metadata.wire.serde import KeyedEvent
from isotherm.remote.outages import Outages
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
)
from isotherm.types import Offset, TopicIdPartition

_logger = logging.getLogger(__name__)

_SETTLE_ATTEMPTS_MAX = 16
"""Most attempts to apply an interrupted event. One fails if another broker writes meanwhile."""


@dataclass(slots=True)
class _Decision:
    """The block that holds the write lock of a metadata partition. What it decides rests on `ends`
    (at level 1, None until they are read). `is_current` is set while the caches have everything
    that was stored when the block began, and what the block has written."""

    ends: Ends | None = None
    is_current: bool = False


FOLLOW_ERRORS = "isotherm_remote_log_metadata_follow_errors"
FOLLOW_ERRORS_TEXT = "Failed reads of the metadata topic; each is tried again."


class TopicBasedRemoteLogMetadataManager(CachedReads):
    """See `isotherm.remote.metadata.api.RemoteLogMetadataManager` for the contract of each method.

    `start` begins to follow in the background; without it, `poll` does the same in the caller's
    thread. A write reads its own event back at once when no other thread is reading.

    Once a record cannot be applied and `remote.log.metadata.corrupt.record.policy` is "refuse",
    every call for a partition that shares its metadata partition raises CorruptMetadataError.
    """

    def __init__(
        self,
        topic: ConditionalMetadataTopic,
        *,
        clock: Clock,
        metrics: Metrics,
        settings: TopicBasedSettings | None = None,
        keyed: KeyedMetadata | None = None,
        columnar_records_min: int = COLUMNAR_RECORDS_MIN,
    ) -> None:
        """Follow nothing before `start`. Without `keyed` the feature level stays 0. A metadata
        partition of `columnar_records_min` offsets or more is folded by columns."""
        self._topic = topic
        self._clock = clock
        self._metrics = metrics
        self._settings = settings or TopicBasedSettings()
        self._columnar_records_min = columnar_records_min
        self._store = RemotePartitionMetadataStore()
        self._lock = threading.Lock()
        self._readers: dict[int, MetadataPartitionReader] = {}
        self._writer = MetadataEventWriter(topic, keyed, clock, metrics)
        # The last offset that this manager wrote, by metadata partition.
        self._written: dict[int, Offset] = {}
        # By metadata partition, while its write lock is held.
        self._decisions: dict[int, _Decision] = {}
        self._outages = Outages(
            _logger,
            clock,
            failing="metadata topic cannot be read partition={}",
            working="metadata topic is read again partition={}",
        )
        self._listener: Callable[[Iterable[TopicIdPartition]], None] | None = None
        self._stopping = threading.Event()
        self._wakeup = threading.Event()
        self._thread: threading.Thread | None = None

    def tell_changes(self, listener: Callable[[Iterable[TopicIdPartition]], None]) -> None:
        """See `isotherm.remote.metadata.api.TellsChanges`."""
        self._listener = listener

    def start(self) -> None:
        """Follow the topic in a background thread until `close`."""
        self._thread = threading.Thread(
            target=self._follow, name="isotherm-remote-log-metadata", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop following; writes not read back yet fail. Does not close the topic. Idempotent."""
        self._stopping.set()
        self._wakeup.set()
        if self._thread is not None:
            self._thread.join()
        for _, reader in self._readers_snapshot():
            reader.close(RemoteStorageNotReadyError("the metadata manager is closed"))

    def poll(self) -> None:
        """Read every assigned metadata partition to its end. Errors of the topic are raised."""
        for number, reader in self._unread(self._readers_snapshot()):
            self._read(number, reader)

    def add_remote_log_segment_metadata(self, metadata: RemoteLogSegmentMetadata) -> Future[None]:
        if metadata.state is not RemoteLogSegmentState.COPY_SEGMENT_STARTED:
            raise ValueError(
                "a segment is added in state COPY_SEGMENT_STARTED only"
                f" segment={metadata.segment_id} state={metadata.state.name}"
            )
        return self._publish(metadata.topic_id_partition, metadata)

    def update_remote_log_segment_metadata(
        self, update: RemoteLogSegmentMetadataUpdate
    ) -> Future[None]:
        if update.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED:
            raise ValueError(
                f"an update does not go to COPY_SEGMENT_STARTED segment={update.segment_id}"
            )
        return self._publish(update.segment_id.topic_id_partition, update)

    def replace_remote_log_segment(self, compacted: RemoteLogSegmentMetadata) -> Future[None]:
        """Replace the finished segment with the same key and offsets by a compacted one.
        Idempotent.

        Raises RemoteResourceNotFoundError if there is none (any more), and UnsupportedVersionError
        at feature level 0, where no record replaces another.
        """
        partition = compacted.topic_id_partition
        number = metadata_partition(partition, self._topic.partition_count)
        if not self._writer.is_keyed(number):
            raise UnsupportedVersionError(
                "a segment can be replaced from feature level 1 on"
                " feature=remote.log.metadata.compaction"
                f" segment={compacted.segment_id}"
            )
        return self._publish(partition, compacted)

    def is_partition_deleted(self, partition: TopicIdPartition) -> bool:
        """See `isotherm.remote.metadata.api.ReplacesSegments`."""
        number = metadata_partition(partition, self._topic.partition_count)
        selects = {partition}.__contains__
        return bool(fold_metadata_partition(self._topic, number, selects).deleted)

    def segment(self, segment_id: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        """A live segment of an assigned partition, in any state."""
        return self._cache(segment_id.topic_id_partition).get(segment_id)

    def put_remote_partition_delete_metadata(
        self, metadata: RemotePartitionDeleteMetadata
    ) -> Future[None]:
        """Write nothing, with a future that is done, if the deletion is in a later state
        already."""
        current = self._store.deletion(metadata.topic_id_partition)
        if current is not None and metadata.state < current.state:
            return done_future()
        return self._publish(metadata.topic_id_partition, metadata)

    def predecessor(self, metadata: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata | None:
        key = key_of_start(metadata)
        # After everything stored is read: the caller deletes objects because of this answer.
        with self.exclusively(metadata.topic_id_partition):
            cache = self._cache(metadata.topic_id_partition)
            segment = cache.find_by_key(key.end_offset, key.broker_leader_epoch)
        is_other = segment is not None and segment.segment_id != metadata.segment_id
        return segment if is_other else None

    def on_partition_leadership_changes(
        self, leaders: Iterable[TopicIdPartition], followers: Iterable[TopicIdPartition]
    ) -> None:
        """Assign the partitions; their events are read by the next poll."""
        with self._lock:
            for partition in (*leaders, *followers):
                number = metadata_partition(partition, self._topic.partition_count)
                self._reader(number).assign(partition)
        self._wakeup.set()

    def on_stop_partitions(self, partitions: Iterable[TopicIdPartition]) -> None:
        with self._lock:
            for partition in partitions:
                number = metadata_partition(partition, self._topic.partition_count)
                reader = self._readers.get(number)
                if reader is not None:
                    reader.unassign(partition)
                    if reader.is_idle:
                        del self._readers[number]

    def is_ready(self, partition: TopicIdPartition) -> bool:
        cache = self._store.get(partition)
        reader = self._reader_of(partition)
        is_known = cache.is_initialized if cache is not None else self._store.is_deleted(partition)
        is_torn = self._writer.is_torn(metadata_partition(partition, self._topic.partition_count))
        return is_known and reader is not None and reader.failure is None and not is_torn

    def positions(self) -> dict[int, Offset]:
        """Each metadata partition that is followed, and the offset below which all is applied."""
        return {number: reader.position for number, reader in self._readers_snapshot()}

    @contextmanager
    def exclusively(self, partition: TopicIdPartition) -> Iterator[None]:
        """See `isotherm.remote.metadata.api.ExclusiveMetadata`."""
        number = metadata_partition(partition, self._topic.partition_count)
        with self._deciding(number) as decision:
            self._catch_up(number, partition, decision, own_writes=True)
            yield

    @contextmanager
    def _deciding(self, number: int) -> Iterator[_Decision]:
        """Hold the write lock. The decision of the outermost block holds until that block ends, so
        that an event in it fails if another broker has written meanwhile."""
        with self._writer.lock(number):
            begun = self._decisions.get(number)
            if begun is not None:
                yield begun
                return
            decision = self._decisions[number] = _Decision()
            try:
                yield decision
            finally:
                del self._decisions[number]

    def is_keyed(self, number: int) -> bool:
        """Whether this metadata partition is written at feature level 1."""
        return self._writer.is_keyed(number)

    @contextmanager
    def settled(self, number: int) -> Iterator[None]:
        """Hold the write lock of a metadata partition at level 1 with every audited event applied:
        only then may anything else be appended to it. Raises RemoteStorageNotReadyError."""
        with self._lock:
            reader = self._readers.get(number)
        with self._writer.lock(number):
            self._settle(number, reader or self._new_reader(number))
            yield

    def write_lock(self, number: int) -> threading.RLock:
        """The write lock of a metadata partition, for a migration. While it is held, this manager
        writes nothing to the partition."""
        return self._writer.lock(number)

    def _publish(self, partition: TopicIdPartition, event: KeyedEvent) -> Future[None]:
        """Raises EventOvertakenError if another broker has recorded an event since the caller
        decided: only the caller can decide anew (`RemoteTierAccess.decided`)."""
        number = metadata_partition(partition, self._topic.partition_count)
        with self._deciding(number) as decision:
            is_keyed = self._writer.is_keyed(number)
            # At level 1 the record is the state after this event, so the cache must have the event
            # before it. At level 0 many events may wait to be read back.
            reader = self._catch_up(number, partition, decision, own_writes=is_keyed)
            reader.check_room()
            offset = self._write(number, reader, partition, event, decision)
        if offset is None:
            return done_future()
        # The write lock is free again, unless the caller holds it: reading back must not delay
        # other writers of this metadata partition.
        wait_s = self._settings.remote_log_metadata_consume_wait_ms / 1000
        future = reader.expect(offset, self._clock.monotonic_s() + wait_s)
        try:
            # Without waiting: a thread that polls now, or the next tick, completes the future.
            reader.poll(wait=False)
        except RetriableError as error:
            _logger.info("metadata event is read back later partition=%s: %s", partition, error)
        if not future.done():
            self._wakeup.set()
        return future

    def _write(
        self,
        number: int,
        reader: MetadataPartitionReader,
        partition: TopicIdPartition,
        event: KeyedEvent,
        decision: _Decision,
    ) -> Offset | None:
        """Record the event. Returns the last offset that it takes; None if there is nothing to read
        back."""
        cache = self._store.get(partition)
        if cache is None:  # its deletion is finished: it has no segments
            cache = RemoteLogMetadataCache(partition)
        if not self._writer.is_keyed(number):
            decision.is_current = False
            offset = self._writer.write_event(number, event, cache)
            self._written[number] = offset
            return offset
        planned = None if self._is_behind(event) else plan_write(event, cache)
        if planned is None:
            return None
        ends = decision.ends
        assert ends is not None, "read by _catch_up"
        decision.is_current = False
        self._writer.audit(number, planned, ends)
        try:
            end = self._writer.append_state(number, planned, ends.state)
        except LogEndMovedError:
            # The event is audited, and another broker has applied it from there.
            decision.ends = Ends(ends.audit + 1, self._settle(number, reader).state)
            return None
        # Both appends were conditional, so nothing else lies before these ends. Later decisions of
        # this block rest on them.
        decision.ends = Ends(ends.audit + 1, end)
        self._writer.note_settled(number, decision.ends)
        self._written[number] = end - 1
        return end - 1

    def _is_behind(self, event: KeyedEvent) -> bool:
        """Whether the deletion of the partition is in a later state than `event`."""
        if not isinstance(event, RemotePartitionDeleteMetadata):
            return False
        current = self._store.deletion(event.topic_id_partition)
        is_over = self._store.is_deleted(event.topic_id_partition)
        return is_over or (current is not None and event.state < current.state)

    def _catch_up(
        self, number: int, partition: TopicIdPartition, decision: _Decision, *, own_writes: bool
    ) -> MetadataPartitionReader:
        """Read everything stored of a partition, once for a decision and after each of its writes.
        The caller holds the write lock.

        Raises RemoteResourceNotFoundError if the partition is not assigned, CorruptMetadataError if
        a record cannot be applied, and RemoteStorageNotReadyError while the partition is being
        read; with `own_writes` also until every write of this manager is read back.
        """
        if self._stopping.is_set():
            # The stop did not wait for this copy: nothing would read its event back.
            raise RemoteStorageNotReadyError(
                f"the metadata manager is closed partition={partition}"
            )
        reader = self._reader_of(partition)
        if reader is None or not reader.serves(partition):
            raise RemoteResourceNotFoundError(
                f"metadata of a partition that is not assigned partition={partition}"
            )
        if not decision.is_current:
            decision.is_current = self._read_stored(number, reader, decision)
        if reader.failure is not None:
            raise reader.failure
        is_read_back = not own_writes or reader.has_read(self._written.get(number, -1))
        if not (decision.is_current and is_read_back and self.is_ready(partition)):
            raise RemoteStorageNotReadyError(
                f"remote metadata is still being read partition={partition}"
            )
        return reader

    def _read_stored(
        self, number: int, reader: MetadataPartitionReader, decision: _Decision
    ) -> bool:
        """Whether that was everything stored until now."""
        if not self._writer.is_keyed(number):
            # Asked before the read, which then returns everything stored until now.
            is_current = self._topic.is_current(number)
            self._read(number, reader)
            return is_current
        if decision.ends is None:
            decision.ends = self._settle(number, reader)
        else:
            reader.poll()
        return True

    def _read(self, number: int, reader: MetadataPartitionReader) -> None:
        """Read to the end, and open the partitions whose metadata is then whole."""
        reader.poll()
        # The usual look needs no write lock, which an append may hold for long.
        if not self._writer.is_torn(number) and not reader.unopened():
            return
        with self._writer.lock(number):
            if reader.failure is not None:
                return
            if self._writer.is_keyed(number):
                try:
                    self._settle(number, reader)
                except RemoteStorageNotReadyError as error:
                    _logger.debug("metadata is not complete yet: %s", error)
            elif self._topic.is_current(number):
                # Again, under the lock: an event may have been recorded since the first poll.
                reader.poll()
                if reader.failure is None:
                    reader.open(reader.unopened())

    def _settle(self, number: int, reader: MetadataPartitionReader) -> Ends:
        """At level 1: read everything, apply the last audited event if its state is not stored, and
        open the partitions that are then whole. The caller holds the write lock.

        The event may be for a partition that is not followed here, or not yet. It is applied all
        the same, because no other event may be recorded before. Raises RemoteStorageNotReadyError
        while a replica is behind, or if other brokers are faster each time.
        """
        for _ in range(_SETTLE_ATTEMPTS_MAX):
            audited = self._writer.last_audited(number)
            end = self._topic.offsets(number)[1]
            if end < audited.state_end or not self._topic.has_all_below(number, end):
                raise RemoteStorageNotReadyError(
                    "a replica of the metadata topic is behind"
                    f" metadata_partition={number} end={end} known={audited.state_end}"
                )
            reader.poll()
            if reader.failure is not None:
                raise reader.failure
            reader.note_read_to(end)
            # The reader may be past the reported end: the leader that reported it has been deposed,
            # or the partition has grown.
            end = max(end, reader.position)
            whole, ends = reader.unopened(), Ends(audited.end, end)
            try:
                is_applied = self._apply_audited(number, reader, audited, end)
            except LogEndMovedError:
                continue
            if is_applied:
                self._writer.note_settled(number, ends)
                reader.open(whole)
                return ends
        raise RemoteStorageNotReadyError(
            f"other brokers write to a metadata partition metadata_partition={number}"
        )

    def _apply_audited(
        self, number: int, reader: MetadataPartitionReader, audited: LastAudited, end: Offset
    ) -> bool:
        """Whether the last audited event was applied below `end` already. Otherwise apply it, and
        return False: the caller reads it back."""
        event, decided_at = audited.event, audited.decided_at
        # The metadata partition ends beyond `decided_at` only if it has the state of this event
        # (docs/decisions/0103).
        if event is None or (decided_at is not None and decided_at < end):
            return True
        partition = partition_of(event)
        if reader.has_folded(partition):
            cache = self._store.get(partition)
            deletion = self._store.deletion(partition)
            stored = FoldedPartition(cache, deletion) if cache is not None else None
        else:
            stored = reader.fold_apart(partition)
        if stored is None:
            return True
        if decided_at is None and not is_unapplied(event, stored.cache, stored.deletion):
            return True
        planned = plan_write(event, stored.cache)
        if planned is None:
            return True
        _logger.info("audited metadata event is applied after a stop event=%s", event)
        self._writer.append_state(number, planned, end)
        return False

    def _cache(self, partition: TopicIdPartition) -> RemoteLogMetadataCache:
        cache = self._store.get(partition)
        reader = self._reader_of(partition)
        if cache is None or reader is None:
            raise RemoteResourceNotFoundError(
                f"remote metadata of a partition that is not assigned partition={partition}"
            )
        wait_s = self._settings.remote_log_metadata_read_wait_ms / 1000
        if reader.failure is not None:
            raise reader.failure
        if not cache.is_initialized and not cache.await_initialized(self._clock, wait_s):
            raise RemoteStorageNotReadyError(
                f"remote metadata is still being read partition={partition}"
            )
        return cache

    def _reader(self, number: int) -> MetadataPartitionReader:
        """The reader of a metadata partition, made if there is none. The caller holds `_lock`."""
        reader = self._readers.get(number)
        if reader is None:
            reader = self._readers[number] = self._new_reader(number)
        return reader

    def _new_reader(self, number: int) -> MetadataPartitionReader:
        return MetadataPartitionReader(
            self._topic,
            number,
            self._store,
            self._settings,
            self._metrics,
            self._listener,
            columnar_records_min=self._columnar_records_min,
        )

    def _reader_of(self, partition: TopicIdPartition) -> MetadataPartitionReader | None:
        with self._lock:
            return self._readers.get(metadata_partition(partition, self._topic.partition_count))

    def _readers_snapshot(self) -> list[tuple[int, MetadataPartitionReader]]:
        with self._lock:
            return list(self._readers.items())

    def _follow(self) -> None:
        while not self._stopping.is_set():
            readers = self._readers_snapshot()
            try:
                unread = self._unread(readers)
            except Exception as error:  # noqa: BLE001 - the reads themselves count and log it
                _logger.debug("ends of the metadata topic are unknown: %s", error)
                unread = readers
            for number, reader in unread:
                self._tick(number, reader)
            self._clock.wait(
                self._wakeup, self._settings.remote_log_metadata_poll_interval_ms / 1000
            )
            # Cleared before the next look, so that no assignment during the look is missed.
            self._wakeup.clear()

    def _unread(
        self, readers: list[tuple[int, MetadataPartitionReader]]
    ) -> list[tuple[int, MetadataPartitionReader]]:
        """Without those that are at the ends of their partitions and have nothing else to do, where
        the topic tells the ends for less than a read of each."""
        if not isinstance(self._topic, EndOffsetsTopic):
            return readers
        waiting = {
            number: reader.position
            for number, reader in readers
            if reader.awaits_records() and not self._writer.is_torn(number)
        }
        ends = self._topic.end_offsets(waiting) if waiting else {}
        return [
            (number, reader)
            for number, reader in readers
            if number not in waiting or ends.get(number) != waiting[number]
        ]

    def _tick(self, number: int, reader: MetadataPartitionReader) -> None:
        try:
            self._read(number, reader)
        except Exception as error:  # noqa: BLE001 - the background tick: logged, counted, tried again
            # Not logged each time: a partition on a failed disk is tried ten times a second.
            self._outages.failed(number, error)
            self._metrics.counter(FOLLOW_ERRORS, FOLLOW_ERRORS_TEXT).inc()
        else:
            self._outages.worked(number)
        reader.expire(self._clock.monotonic_s())
