"""Migrates a metadata partition from level 0 to 1: writes its live state as keyed records.

Two folds of one partition are compared:

    all     the fold of all records, events and keyed ones: the brokers' present state
    keyed   the fold of the keyed records alone: the state after compaction

The migration writes the differences: the whole state of a segment under its key, and a tombstone
for the key of a deleted segment. It removes nothing, so brokers may read the partition and write
events meanwhile. After a crash the next comparison finds less to write. Once there is no
difference, checked under the write lock, all later events are keyed, and the topic may be
compacted, which drops the records without keys.

A segment that was copied at level 0 has no broker leader epoch. Its key has -1, or a lower number
if the same end offset was copied more than once or a later copy covers it, so that any copy with a
known epoch has precedence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from isotherm.clock import Clock
from isotherm.remote.history.lineage import epoch_spans
from isotherm.remote.metadata.api import MetadataTopic, NewMetadataRecord
from isotherm.remote.metadata.folding.fold import OnCorrupt, refuse
from isotherm.remote.metadata.folding.followed_partition import FollowedPartition
from isotherm.remote.metadata.folding.selected_partitions import SelectedPartitions
from isotherm.remote.metadata.state.cache import RemoteLogMetadataCache
from isotherm.remote.metadata.upkeep.migration_views import (
    CountedRecords,
    KeyedRecords,
    RecordCounts,
)
from isotherm.remote.metadata.wire.keys import MetadataKey, SegmentKey, partition_key, segment_key
from isotherm.remote.metadata.wire.serde import encode_keyed_event
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
)
from isotherm.types import NO_LEADER_EPOCH, LeaderEpoch, Offset, TopicIdPartition

# Records of one append: it bounds how long another writer waits. A crash between two loses nothing.
RECORDS_PER_APPEND = 500

# Rounds of comparing and writing while new events arrive. Each round handles the events that came
# during the one before: fewer every time. The last round runs under the write lock.
ROUNDS_MAX = 10

Progress = Callable[[int, int], None]


class KeyedState(NamedTuple):
    """A keyed record to be written; a None state is a tombstone."""

    key: MetadataKey
    state: RemoteLogSegmentMetadata | RemotePartitionDeleteMetadata | None


@dataclass(frozen=True, slots=True)
class PartitionSurvey:
    """The content of a metadata partition, and the records that it needs before a compaction."""

    number: int
    counts: RecordCounts
    live_segments: int
    size_compacted: int
    """Bytes of the keys and values of all live segments."""
    states_to_write: int
    tombstones_to_write: int

    @property
    def is_migrated(self) -> bool:
        """Whether the keyed records have the whole state."""
        return not self.states_to_write and not self.tombstones_to_write


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """The records to write to a metadata partition before its compaction."""

    survey: PartitionSurvey
    writes: tuple[KeyedState, ...]

    @property
    def is_migrated(self) -> bool:
        return self.survey.is_migrated


class PartitionMigration:
    """Migrates one metadata partition, once. Not thread-safe.

    Raises CorruptMetadataError, which names an invalid record, unless `on_corrupt` returns: then
    the record is skipped, as by a broker with the policy `skip`.
    """

    def __init__(
        self,
        topic: MetadataTopic,
        number: int,
        *,
        clock: Clock,
        on_corrupt: OnCorrupt = refuse,
        target: MetadataTopic | None = None,
    ) -> None:
        """`target` is another topic for the keyed records, with as many partitions. By default they
        go to `topic`, and its keyed records count."""
        self._target = target or topic
        self._is_apart = target is not None
        self._number = number
        self._clock = clock
        self._counts = RecordCounts()
        counted = CountedRecords(topic, self._counts)
        self._all = FollowedPartition(counted, number, _every, on_corrupt)
        self._keyed = FollowedPartition(KeyedRecords(self._target), number, _every, on_corrupt)

    def plan(self) -> PartitionPlan:
        """Read to the topic's end, and compare. Writes nothing."""
        self._catch_up()
        writes = tuple(self._writes())
        return PartitionPlan(self._survey_of(writes), writes)

    def survey(self) -> PartitionSurvey:
        """Same as `plan`, but without keeping the planned records. Memory: some 120 bytes for each
        live segment in each fold, and one read."""
        self._catch_up()
        return self._survey_of(self._writes())

    def _catch_up(self) -> None:
        self._all.catch_up()
        # At least to the same end: an older fold of the keyed records would lack states that are
        # written already.
        self._keyed.catch_up(None if self._is_apart else self._all.next_offset)

    def _writes(self) -> Iterator[KeyedState]:
        for partition in self._all.partitions:
            yield from _writes_of(partition, self._all.partitions, self._keyed.partitions)

    def _survey_of(self, writes: Iterable[KeyedState]) -> PartitionSurvey:
        states = tombstones = live_segments = size_compacted = 0
        for write in writes:
            states += write.state is not None
            tombstones += write.state is None
        for cache in self._all.partitions.caches():
            for segment in cache.segments():
                live_segments += 1
                size_compacted += len(_key_of(segment).encode()) + len(encode_keyed_event(segment))
        return PartitionSurvey(
            self._number,
            replace(self._counts),
            live_segments,
            size_compacted,
            states,
            tombstones,
        )

    def run(self, progress: Progress | None = None, *, rounds_max: int = ROUNDS_MAX) -> bool:
        """Write until the keyed records have the whole state; returns whether they do.

        Without other writers one round is enough. `progress` gets the number of records written
        and the number known to be written in all.
        """
        written = 0
        for _ in range(rounds_max):
            plan = self.plan()
            if plan.is_migrated:
                return True
            before = written

            def report(done: int, left: int, before: int = before) -> None:
                if progress is not None:
                    progress(before + done, before + done + left)

            self.write(plan, report)
            written += len(plan.writes)
        return self.plan().is_migrated

    def write(self, plan: PartitionPlan, progress: Progress | None = None) -> None:
        """Append the records of `plan`; `progress` gets the numbers of records written and left."""
        for start in range(0, len(plan.writes), RECORDS_PER_APPEND):
            chunk = plan.writes[start : start + RECORDS_PER_APPEND]
            self._append(chunk)
            if progress is not None:
                progress(start + len(chunk), len(plan.writes) - start - len(chunk))

    def differences(self) -> list[str]:
        """The differences between all records and the keyed ones, one line each, after the last
        `plan` or `run`."""
        return [
            line
            for partition in self._all.partitions
            for line in _differences_of(partition, self._all.partitions, self._keyed.partitions)
        ]

    @property
    def next_offset(self) -> Offset:
        """The records before this offset have been compared."""
        return self._all.next_offset

    def _append(self, writes: Sequence[KeyedState]) -> None:
        now_ms = self._clock.now_ms()
        records = [
            NewMetadataRecord(
                write.key.encode(),
                None if write.state is None else encode_keyed_event(write.state),
                now_ms,
            )
            for write in writes
        ]
        self._target.append_all(self._number, records)


def _every(_partition: TopicIdPartition) -> bool:
    return True


def _writes_of(
    partition: TopicIdPartition, everything: SelectedPartitions, keyed: SelectedPartitions
) -> Iterator[KeyedState]:
    cache, keyed_cache = everything.cache(partition), keyed.cache(partition)
    if cache is None:
        # The partition is deleted: it has no state.
        for end, epoch in keyed_cache.keys() if keyed_cache is not None else ():
            yield KeyedState(segment_key(partition, end, epoch), None)
        return
    for state in _keyed_states(cache):
        keyed_state = keyed_cache.get(state.segment_id) if keyed_cache is not None else None
        if keyed_state != state:
            yield KeyedState(_key_of(state), state)
    for end, epoch, _ in cache.stale_keys():
        yield KeyedState(segment_key(partition, end, epoch), None)
    deletion = everything.deletion(partition)
    if deletion is not None and deletion != keyed.deletion(partition):
        yield KeyedState(partition_key(partition), deletion)


def _key_of(state: RemoteLogSegmentMetadata) -> SegmentKey:
    return segment_key(
        state.topic_id_partition, state.end_offset_inclusive, state.broker_leader_epoch
    )


def _keyed_states(cache: RemoteLogMetadataCache) -> list[RemoteLogSegmentMetadata]:
    """Every live segment with the broker leader epoch of its key, in an order that reproduces the
    present look-ups: a segment that answers comes before the finished ones that overlap it.
    """
    taken: dict[Offset, set[LeaderEpoch]] = {}
    states = []
    for segment in sorted(cache.segments(), key=lambda other: _rank(other, cache)):
        end = segment.end_offset_inclusive
        epochs = taken.setdefault(end, {epoch for epoch, _ in cache.keys_at(end)})
        occupant = cache.find_by_key(end, segment.broker_leader_epoch)
        if occupant is None or occupant.segment_id != segment.segment_id:
            epoch = min(_epoch_without_key(segment, cache), min(epochs, default=0) - 1)
            epochs.add(epoch)
            segment = replace(segment, broker_leader_epoch=epoch)
        states.append(segment)
    return states


def _rank(segment: RemoteLogSegmentMetadata, cache: RemoteLogMetadataCache) -> tuple[int, ...]:
    """The segments that look-ups find come first, by start offset, the longer first. The others
    follow, the latest first."""
    if _answers(segment, cache):
        return (0, segment.start_offset, -segment.end_offset_inclusive)
    return (1, -segment.event_timestamp_ms, segment.start_offset)


def _epoch_without_key(
    segment: RemoteLogSegmentMetadata, cache: RemoteLogMetadataCache
) -> LeaderEpoch:
    is_covered = segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED and not _answers(
        segment, cache
    )
    return NO_LEADER_EPOCH - 1 if is_covered else NO_LEADER_EPOCH


def _answers(segment: RemoteLogSegmentMetadata, cache: RemoteLogMetadataCache) -> bool:
    """Whether some look-up finds this segment."""
    if segment.state is not RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
        return False
    for epoch, start, end in epoch_spans(segment):
        for offset in (start, end):
            segment_found = cache.find(epoch, offset)
            if segment_found is not None and segment_found.segment_id == segment.segment_id:
                return True
    return False


def _differences_of(
    partition: TopicIdPartition, everything: SelectedPartitions, keyed: SelectedPartitions
) -> Iterator[str]:
    cache, keyed_cache = everything.cache(partition), keyed.cache(partition)
    if cache is None:
        if keyed_cache is not None and len(keyed_cache):
            yield f"a deleted partition has live segments partition={partition}"
        return
    keyed_segments = keyed_cache.segments() if keyed_cache is not None else []
    expected = {segment.segment_id: segment for segment in cache.segments()}
    by_id = {segment.segment_id: segment for segment in keyed_segments}
    for segment_id in expected.keys() | by_id.keys():
        if expected.get(segment_id) != by_id.get(segment_id):
            yield (
                f"a segment is not the same partition={partition}"
                f" all={expected.get(segment_id)} keyed={by_id.get(segment_id)}"
            )
    for segment in expected.values():
        for epoch, start, end in epoch_spans(segment):
            for offset in (start, end):
                is_lost = keyed_cache is None or keyed_cache.find(epoch, offset) is None
                if is_lost and cache.find(epoch, offset) is not None:
                    yield (
                        f"an offset is not found partition={partition} epoch={epoch}"
                        f" offset={offset}"
                    )
    if everything.deletion(partition) != keyed.deletion(partition):
        yield f"the deletion is not the same partition={partition}"
