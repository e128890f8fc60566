"""Invariants, checked after every destructive step and at the end.

The oracle folds the metadata topic by the rules of its format page alone. All segments of that
result must be in the remote tier, and each acknowledged record must be there or on the local disk.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from isotherm.errors import OffsetOutOfRangeError, RemoteHoleError
from isotherm.log.cleaner.choice import LogToClean
from isotherm.remote.metadata.api import MetadataTopicRecord
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from isotherm.types import Offset, TopicIdPartition
from tests.support.schedules.durable import decoded
from tests.support.schedules.process import BrokerProcess, Durable, key_of, value_of

FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
GONE = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED


class Violation(BaseException):
    """An invariant does not hold. Not an Exception: a task would log it and go on."""


class FoldedTopic:
    """Folds the records of one metadata partition; `segments` are the live ones by id."""

    def __init__(self) -> None:
        self.next = 0
        self.segments: dict[RemoteLogSegmentId, RemoteLogSegmentMetadata] = {}
        self._keys: dict[bytes, RemoteLogSegmentId] = {}
        self._key_of: dict[RemoteLogSegmentId, bytes] = {}

    def fold(self, records: Sequence[MetadataTopicRecord]) -> None:
        for record in records:
            self._fold(record)
            self.next = record.offset + 1

    def _fold(self, record: MetadataTopicRecord) -> None:
        _, event = decoded(record.key, record.value)
        key = record.key
        if isinstance(event, RemotePartitionDeleteMetadata):
            if event.state is RemotePartitionDeleteState.DELETE_PARTITION_FINISHED:
                mine = [
                    e for e in self.segments if e.topic_id_partition == event.topic_id_partition
                ]
                for each in mine:
                    del self.segments[each]
        elif event is None:
            assert key is not None
            self._forget(key, self._keys.pop(key, None))
        elif key is None:
            self._apply(event)
        elif isinstance(event, RemoteLogSegmentMetadata):
            self._put(key, event)

    def fold_audited(self, record: MetadataTopicRecord) -> None:
        """Apply an event of the audit topic.

        A start replaces the segment that was started under its key.
        """
        _, event = decoded(None, record.value)
        if isinstance(event, RemoteLogSegmentMetadata):
            assert record.key is not None
            before = self._keys.get(record.key)
            if before is not None and before != event.segment_id:
                self.segments.pop(before, None)
            self._keys[record.key] = event.segment_id
        self._fold(replace(record, key=None))

    def _apply(self, event: object) -> None:
        if isinstance(event, RemoteLogSegmentMetadata):
            self.segments.setdefault(event.segment_id, event)
        elif isinstance(event, RemoteLogSegmentMetadataUpdate):
            known = self.segments.get(event.segment_id)
            if known is not None and known.state < event.state:
                self._set(known.updated(event))

    def _put(self, key: bytes, state: RemoteLogSegmentMetadata) -> None:
        before = self._keys.get(key)
        if before is not None and before != state.segment_id:
            self._forget(key, before)
        self._keys[key] = state.segment_id
        known = self.segments.get(state.segment_id)
        if known is None or known.state <= state.state:
            self._key_of[state.segment_id] = key
            self._set(state)

    def _set(self, state: RemoteLogSegmentMetadata) -> None:
        if state.state is GONE:
            self.segments.pop(state.segment_id, None)
        else:
            self.segments[state.segment_id] = state

    def _forget(self, key: bytes, segment: RemoteLogSegmentId | None) -> None:
        if segment is not None and self._key_of.get(segment, key) == key:
            self.segments.pop(segment, None)


@dataclass(slots=True)
class Expected:
    """The records and offsets that a partition's clients rely on."""

    end: Offset = 0
    start: Offset = 0
    """The highest allowed log start so far."""
    allowed_start: Offset = 0
    """Records below it were deleted on request."""
    retention_bytes: int | None = None
    """The smallest limit so far."""
    batch_size: int = 0
    """The bytes of a batch, which has one record."""
    is_untiered: bool = False
    """Tiering was disabled on request, which deletes the records that only the remote tier has."""
    cleaned_to: Offset = 0
    """The cleaner may remove a record below it that another one below it replaces."""


class Oracle:
    def __init__(self, durable: Durable) -> None:
        self._durable = durable
        self.process: BrokerProcess | None = None
        self.expected: dict[TopicIdPartition, Expected] = {}
        self._folded = [FoldedTopic() for _ in range(durable.metadata_topic.partition_count)]
        self.checks = 0
        durable.acknowledged = self._acknowledge
        durable.on_clean = self._note_cleaning
        durable.on_local_delete = lambda: self.check("local segment deleted")
        durable.objects.on_change = lambda: self.check("object deleted")
        durable.metadata_topic.on_append = lambda: self.check("metadata appended")

    def _acknowledge(
        self, partition: TopicIdPartition, first: Offset, end: Offset, size: int
    ) -> None:
        expected = self.expected.setdefault(partition, Expected())
        assert first >= expected.end, "what is not acknowledged after a crash may be there"
        expected.end = end
        expected.batch_size = size

    def _note_cleaning(self, partition: TopicIdPartition, to_clean: LogToClean) -> None:
        expected = self.expected.setdefault(partition, Expected())
        expected.cleaned_to = max(expected.cleaned_to, to_clean.first_uncleanable_offset)

    def live(self) -> dict[RemoteLogSegmentId, RemoteLogSegmentMetadata]:
        segments: dict[RemoteLogSegmentId, RemoteLogSegmentMetadata] = {}
        for number, folded in enumerate(self._folded):
            records = self._durable.metadata_topic.values(number)
            # Only new records are folded: this runs after every destructive step.
            first = bisect_left(records, folded.next, key=lambda record: record.offset)
            folded.fold(records[first:])
            segments.update(folded.segments)
        return segments

    def check(self, after: str) -> None:
        self.checks += 1
        live = self.live()
        objects = self._durable.objects.objects
        finished = [each for each in live.values() if each.state is FINISHED]
        storage = self.process.storage if self.process is not None else None
        for partition, expected in self.expected.items():
            if partition not in self._durable.cluster.partitions:
                continue
            local_start = self._note_start(partition, expected)
            if expected.start >= local_start or storage is None:
                continue  # all records are local, or no process runs
            held = sorted(
                (each.start_offset, each.end_offset_inclusive + 1)
                for each in finished
                if each.topic_id_partition == partition
                and all(key in objects for key in storage.keys_of(each))
            )
            missing = _first_missing(expected.start, min(local_start, expected.end), held)
            if missing is not None:
                raise Violation(
                    f"acknowledged record is lost after={after} partition={partition}"
                    f" offset={missing} log_start={expected.start} local_start={local_start}"
                    f" remote={held}"
                )

    def _note_start(self, partition: TopicIdPartition, expected: Expected) -> Offset:
        """Check and record the log start offset; return the local log start offset."""
        log = self.process.logs.get(partition) if self.process is not None else None
        if log is None:
            return 0  # nothing is deleted while no process runs or while one starts
        if not log.remote_log_enabled and not expected.is_untiered:
            return 0  # it is being untiered now
        start = log.log_start_offset
        if start > expected.start:
            limit = expected.retention_bytes
            size_left = (log.log_end_offset - start) * expected.batch_size
            is_by_size = limit is not None and size_left >= limit
            if start > expected.allowed_start and not is_by_size:
                raise Violation(
                    f"the log start moved though nothing asked for it partition={partition}"
                    f" from={expected.start} to={start} allowed={expected.allowed_start}"
                    f" size_left={size_left} retention_bytes={limit}"
                )
            self._durable.run.tell(f"log start {partition.topic_id.int} {start}")
            expected.start = start
        return log.segments()[0].base_offset

    def note_starts(self) -> None:
        """Record the log start offsets before a process ends."""
        for partition, expected in self.expected.items():
            if partition in self._durable.cluster.partitions:
                self._note_start(partition, expected)

    def note_tiering(self, partition: TopicIdPartition) -> None:
        """Update the expectation after tiering is switched on or off, and after a restart."""
        assert self.process is not None
        log, expected = self.process.logs[partition], self.expected.get(partition)
        if expected is None:
            expected = self.expected[partition] = Expected()
        if not log.remote_log_enabled and not expected.is_untiered:
            expected.start = expected.allowed_start = log.log_start_offset
        expected.is_untiered = not log.remote_log_enabled

    # ---- once everything has settled

    def check_settled(self) -> None:
        """Check that every partition is copied, and that no crash or fault has left anything
        unfinished.
        """
        process, durable = self.process, self._durable
        assert process is not None
        self.check("settled")
        live = self.live()
        self._check_nothing_left_over(process, live)
        fresh = [FoldedTopic() for _ in self._folded]
        for number, folded in enumerate(fresh):
            folded.fold(durable.metadata_topic.values(number))
            if folded.segments != self._folded[number].segments:
                raise Violation(f"the compacted metadata topic tells another state number={number}")
        for partition in durable.cluster.partitions:
            self._check_partition(process, partition, live)

    def _check_nothing_left_over(
        self,
        process: BrokerProcess,
        live: dict[RemoteLogSegmentId, RemoteLogSegmentMetadata],
    ) -> None:
        hosted = self._durable.cluster.partitions
        for segment in live.values():
            is_hosted = segment.topic_id_partition in hosted
            if segment.state is not FINISHED or not is_hosted:
                raise Violation(f"metadata is left over hosted={is_hosted} segment={segment}")
        named = {key for each in live.values() for key in process.storage.keys_of(each)}
        objects = set(self._durable.objects.objects)
        if named != objects:
            raise Violation(
                f"objects and metadata differ dangling={sorted(objects - named)}"
                f" missing={sorted(named - objects)}"
            )

    def _check_partition(
        self,
        process: BrokerProcess,
        partition: TopicIdPartition,
        live: dict[RemoteLogSegmentId, RemoteLogSegmentMetadata],
    ) -> None:
        log = process.logs[partition]
        expected = self.expected.get(partition, Expected())
        if log.log_end_offset < expected.end:
            raise Violation(f"the log ends too early partition={partition} {expected}")
        if log.remote_log_enabled:
            mine = {key: each for key, each in live.items() if key.topic_id_partition == partition}
            known = {
                segment.segment_id: segment
                for segment in process.metadata.list_remote_log_segments(partition)
            }
            if mine != known:
                raise Violation(
                    f"the broker knows other metadata than the topic tells partition={partition}"
                    f" topic={mine} broker={known}"
                )
        start, closed_end = log.log_start_offset, log.segments()[-1].base_offset
        copied_end = log.highest_offset_in_remote_storage + 1
        is_copied = not log.remote_log_enabled or max(copied_end, start) >= closed_end
        if not is_copied:
            raise Violation(
                f"closed segments are not copied partition={partition} closed_end={closed_end}"
                f" copied={log.highest_offset_in_remote_storage}"
            )
        try:
            found = process.read_all(partition)
        except (OffsetOutOfRangeError, RemoteHoleError) as error:
            raise Violation(
                f"a consumer cannot read on from the log start partition={partition} start={start}"
            ) from error
        offsets = range(log.log_start_offset, log.log_end_offset)
        newest = {key_of(number): number for number in range(expected.cleaned_to)}
        wrong = [
            offset
            for offset in offsets
            if found.get(offset) != value_of(partition, offset)
            and (offset in found or newest.get(key_of(offset), offset) <= offset)
        ]
        if wrong or not set(found) <= set(offsets):
            raise Violation(
                f"a consumer reads other records partition={partition} offsets={offsets}"
                f" wrong={wrong} found={sorted(found)}"
            )

    def check_audit(self) -> None:
        """Check that the audit topic folds to the same state, if the level was 1 from the start."""
        for number, folded in enumerate(self._folded):
            audited = FoldedTopic()
            for record in self._durable.audit_topic.values(number):
                audited.fold_audited(record)
            states = {key: each.state for key, each in audited.segments.items()}
            folded_states = {key: each.state for key, each in folded.segments.items()}
            if states != folded_states:
                raise Violation(
                    f"audit and metadata topic differ number={number} audit={states}"
                    f" folded_states={folded_states}"
                )


def _first_missing(
    start: Offset, end: Offset, held: Iterable[tuple[Offset, Offset]]
) -> Offset | None:
    for first, following in held:
        if first > start:
            break
        start = max(start, following)
    return start if start < end else None
