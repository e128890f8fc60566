"""The state of the remote segments of one partition, folded from its metadata events.

Level 0 has events: `apply_add` and `apply_update`. Level 1 has the whole state of a segment under a
key, and tombstones: `put` and `remove_key`. There the result depends on the last record of each key
alone, so that compaction of the topic does not change it. A topic that is being migrated has both.

The rules are those of Kafka's RemoteLogMetadataCache, except where Kafka no longer finds offsets of
a live segment: docs/decisions/0011. Segments are rows of bytes (segment_rows.py) and become objects
on demand: a million live ones must fit into a broker's memory.
"""

from __future__ import annotations

import logging
import threading
import uuid
from array import array
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping

from isotherm.clock import Clock
from isotherm.errors import RemoteResourceNotFoundError
from isotherm.remote.metadata.state.epoch_state import RemoteLogLeaderEpochState
from isotherm.remote.metadata.state.key_table import KeyedSegment, KeyTable
from isotherm.remote.metadata.state.lifecycle import is_valid_transition
from isotherm.remote.metadata.state.segment_rows import (
    pack_segment,
    row_has_txn_index,
    row_key,
    row_order,
    row_size_in_bytes,
    row_spans,
    row_state,
    unpack_segment,
    update_row,
)
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from isotherm.types import LeaderEpoch, Offset, TopicIdPartition

_logger = logging.getLogger(__name__)

_RECENT_MAX = 4
"""Segments of a partition kept as decoded objects: a reader stays in one segment for hundreds of
fetches, and looks a segment or two ahead. Some 900 bytes each."""


class RemoteLogMetadataCache:
    """Every live segment of one partition, by id, by leader epoch and by key. Thread-safe.

    `apply_add` and `apply_update` drop a transition that lifecycle.py forbids with an error in
    the log, as Kafka does: the event is stored, so refusing it would stop every later one.
    """

    def __init__(self, partition: TopicIdPartition) -> None:
        self.partition = partition
        self._lock = threading.Lock()
        # Rows of live segments by the bytes of their ids.
        self._rows: dict[bytes, bytes] = {}
        self._epochs: dict[LeaderEpoch, RemoteLogLeaderEpochState] = {}
        self._keys = KeyTable()
        self._recent: OrderedDict[bytes, tuple[bytes, RemoteLogSegmentMetadata]] = OrderedDict()
        self._initialized = threading.Event()

    def __len__(self) -> int:
        """The number of live segments."""
        return len(self._rows)

    @property
    def is_initialized(self) -> bool:
        return self._initialized.is_set()

    def mark_initialized(self) -> None:
        """Mark the cache as ready: every event up to the end at the partition's assignment is
        applied."""
        self._initialized.set()

    def await_initialized(self, clock: Clock, timeout_s: float) -> bool:
        return clock.wait(self._initialized, timeout_s)

    def take_over(self, folded: RemoteLogMetadataCache) -> None:
        """Take over the state of `folded`, which must not be used afterwards."""
        with self._lock:
            self._rows, self._epochs, self._keys = folded._rows, folded._epochs, folded._keys

    def apply_add(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Apply the start of a copy. Raises ValueError for any other state."""
        if metadata.state is not RemoteLogSegmentState.COPY_SEGMENT_STARTED:
            raise ValueError(
                "a segment is added in state COPY_SEGMENT_STARTED only"
                f" segment={metadata.segment_id} state={metadata.state.name}"
            )
        segment = metadata.segment_id.id.bytes
        with self._lock:
            row_before = self._rows.get(segment)
            if not self._may_follow(metadata.segment_id, row_before, metadata.state):
                return
            if row_before is not None:
                # A repeated start may name other epochs. An epoch must not keep the id of a segment
                # that it no longer has.
                for span in row_spans(row_before):
                    self._epoch_state(span.epoch).forget(segment)
            for epoch in metadata.segment_leader_epochs:
                self._epoch_state(epoch).add_unreferenced(segment)
            self._rows[segment] = pack_segment(metadata)

    def apply_update(self, update: RemoteLogSegmentMetadataUpdate) -> None:
        """Apply a later state of a known segment.

        An update of an unknown segment is ignored while the partition is still being read, because
        its events may begin in mid-life. Afterwards it raises RemoteResourceNotFoundError. Raises
        ValueError for COPY_SEGMENT_STARTED, which only `apply_add` takes.
        """
        if update.state is RemoteLogSegmentState.COPY_SEGMENT_STARTED:
            raise ValueError(
                f"an update does not go to COPY_SEGMENT_STARTED segment={update.segment_id}"
            )
        segment = update.segment_id.id.bytes
        with self._lock:
            row_before = self._rows.get(segment)
            if row_before is None:
                if self.is_initialized:
                    raise RemoteResourceNotFoundError(
                        "update of a segment that is not known"
                        f" segment={update.segment_id} state={update.state.name}"
                    )
                return
            if self._may_follow(update.segment_id, row_before, update.state):
                self._advance(segment, update_row(row_before, update))

    def put(self, metadata: RemoteLogSegmentMetadata) -> None:
        """Apply the whole state of a segment under its key (level 1). Compaction may have removed
        the states between the known one and this one.

        Another segment with its last record under this key is dropped: its objects were deleted
        before the key was used again. A record of a deposed leader that would set a segment back to
        an earlier state is dropped with an error in the log.
        """
        segment = metadata.segment_id.id.bytes
        end, leader = metadata.end_offset_inclusive, metadata.broker_leader_epoch
        with self._lock:
            # Before the key is set: a segment with a key and without a row counts as deleted.
            source = self._last_state(segment, end)
            predecessor = self._keys.get(end, leader)
            if predecessor is not None and predecessor != segment:
                self._forget(predecessor, only_of=(end, leader))
            self._keys.set(end, leader, segment)
            # The key stays set: its record is in the topic, and needs a tombstone all the same.
            if source is not None and metadata.state < source:
                log_dropped(metadata.segment_id, source, metadata.state)
                return
            self._replace(segment, self._rows.get(segment), pack_segment(metadata))

    def remove_key(self, end_offset: Offset, leader_epoch: LeaderEpoch) -> None:
        """Apply a tombstone: drop the segment with its last record under this key."""
        with self._lock:
            segment = self._keys.get(end_offset, leader_epoch)
            if segment is not None:
                self._keys.discard(end_offset, leader_epoch)
                self._forget(segment, only_of=(end_offset, leader_epoch))

    def lay_down(
        self, rows: Mapping[bytes, bytes], keys: Iterable[tuple[Offset, LeaderEpoch, bytes]]
    ) -> None:
        """Add rows of live segments by their ids, and keys with a record, each with its segment.
        Look-ups by offset find these segments only after `append_finished`."""
        with self._lock:
            self._rows.update(rows)
            for end_offset, leader_epoch, segment in keys:
                self._keys.set(end_offset, leader_epoch, segment)

    def append_finished(
        self,
        epoch: LeaderEpoch,
        segment_ids: list[bytes],
        starts: array[int],
        ends: array[int],
        leaders: array[int],
        marked: bytes,
    ) -> None:
        """Enter segments of `lay_down` into one epoch, with the bounds of their parts in it. They
        must ascend without overlaps, above `tail`. `marked` has a 1 for each that has a transaction
        index or goes on after its part."""
        with self._lock:
            state = self._epoch_state(epoch)
            state.append_finished(segment_ids, starts, ends, leaders, marked)

    def bury(self, segments: Iterable[bytes]) -> None:
        """Drop live segments whose deletion is finished. Allowed only if `has_hidden` is false."""
        by_epoch: dict[LeaderEpoch, set[bytes]] = defaultdict(set)
        with self._lock:
            for segment in segments:
                for span in row_spans(self._rows.pop(segment)):
                    by_epoch[span.epoch].add(segment)
            for epoch, ids in by_epoch.items():
                self._epoch_state(epoch).withdraw(ids)

    def has_hidden(self) -> bool:
        """Whether a finished segment may become visible when another one is deleted."""
        with self._lock:
            return any(state.has_hidden for state in self._epochs.values())

    def tail(self, epoch: LeaderEpoch) -> Offset:
        """`RemoteLogLeaderEpochState.tail` of an epoch; -1 for an unknown epoch."""
        with self._lock:
            state = self._epochs.get(epoch)
            return state.tail if state is not None else -1

    def is_empty(self) -> bool:
        """Whether no segment is live and no key awaits a tombstone."""
        with self._lock:
            return not (self._rows or self._keys)

    def knows(self, segment: bytes, end_offset: Offset) -> bool:
        """Whether a segment is live, or a key of its end offset has a record."""
        with self._lock:
            return segment in self._rows or bool(self._keys.at(end_offset))

    def row(self, segment: bytes) -> bytes | None:
        """The row of a live segment (segment_rows.py). Rows are replaced, never changed."""
        with self._lock:
            return self._rows.get(segment)

    def rows_and_keys(self) -> tuple[dict[bytes, bytes], list[tuple[Offset, KeyedSegment]]]:
        """The arguments from which `lay_down` restores this state."""
        with self._lock:
            return dict(self._rows), list(self._keys)

    def find_by_key(
        self, end_offset: Offset, leader_epoch: LeaderEpoch
    ) -> RemoteLogSegmentMetadata | None:
        """The live segment whose last record has this key."""
        with self._lock:
            segment = self._keys.get(end_offset, leader_epoch)
            row = self._rows.get(segment) if segment is not None else None
            # A later leader's deletion has a key of its own: then this key's record is not the
            # last one of the segment.
            if segment is None or row is None or row_key(row) != (end_offset, leader_epoch):
                return None
            return self._segment(segment)

    def get(self, segment_id: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        """A live segment, in any state."""
        with self._lock:
            is_live = segment_id.id.bytes in self._rows
            return self._segment(segment_id.id.bytes) if is_live else None

    def keys_at(self, end_offset: Offset) -> list[tuple[LeaderEpoch, uuid.UUID]]:
        """The epochs, ascending, of the keys of one end offset that are live or await a tombstone,
        each with the segment of its last record."""
        with self._lock:
            return [
                (keyed.broker_leader_epoch, uuid.UUID(bytes=keyed.segment_id))
                for keyed in self._keys.at(end_offset)
            ]

    def keys(self) -> list[tuple[Offset, LeaderEpoch]]:
        """Every key that is live or awaits a tombstone."""
        with self._lock:
            return [(end, keyed.broker_leader_epoch) for end, keyed in self._keys]

    def stale_keys(self) -> list[tuple[Offset, LeaderEpoch, uuid.UUID]]:
        """Keys of deleted segments that await their tombstones, each with the segment of its last
        record, ascending by epoch at each offset.
        """
        with self._lock:
            return [
                (end, keyed.broker_leader_epoch, uuid.UUID(bytes=keyed.segment_id))
                for end, keyed in self._keys
                if keyed.segment_id not in self._rows
            ]

    def find(self, leader_epoch: LeaderEpoch, offset: Offset) -> RemoteLogSegmentMetadata | None:
        """The finished segment whose part of `leader_epoch` holds `offset`. O(log n)."""
        with self._lock:
            state = self._epochs.get(leader_epoch)
            place = state.find(offset) if state is not None else None
            return self._recent_segment(place) if place is not None else None

    def find_with_txn_index(
        self, leader_epoch: LeaderEpoch, offset: Offset
    ) -> RemoteLogSegmentMetadata | None:
        """The first segment of the epoch, from the one that holds `offset` on without a gap,
        that has a transaction index. Segments without one are passed over, not looked at: each
        `read_committed` fetch asks, and a partition may have thousands."""
        with self._lock:
            state = self._epochs.get(leader_epoch)
            while state is not None and (place := state.next_marked(offset)) is not None:
                row = self._rows[place]
                if row_has_txn_index(row):
                    return self._recent_segment(place)
                end, _ = row_key(row)
                offset = end + 1
            return None

    def highest_offset_for_epoch(self, leader_epoch: LeaderEpoch) -> Offset | None:
        """The highest offset of any finished segment in the epoch. It stays when the segments are
        deleted."""
        with self._lock:
            state = self._epochs.get(leader_epoch)
            return state.highest_log_offset if state is not None else None

    def first_finished(self, leader_epoch: LeaderEpoch) -> RemoteLogSegmentMetadata | None:
        """The segment with the epoch's lowest offset that look-ups find. O(1)."""
        with self._lock:
            state = self._epochs.get(leader_epoch)
            segment = None if state is None else state.first
            return None if segment is None else self._segment(segment)

    def last_finished(self) -> RemoteLogSegmentMetadata | None:
        """The segment with the highest offset that look-ups find in the latest leader epoch with
        any: what an earlier leader copied beyond it was cut off. Its cost is that of the epochs.
        """
        with self._lock:
            for epoch in sorted(self._epochs, reverse=True):
                segment = self._epochs[epoch].last
                if segment is not None:
                    return self._segment(segment)
            return None

    def segments(self, leader_epoch: LeaderEpoch | None = None) -> list[RemoteLogSegmentMetadata]:
        """Segments in every state but DELETE_SEGMENT_FINISHED, ordered by start offset, then end,
        then id."""
        # Only the copy is made under the lock: decoding takes some µs for each segment, and would
        # hold up every look-up.
        rows = self._listed_rows(leader_epoch)
        rows.sort(key=lambda item: (row_order(item[1]), item[0]))
        return [self._unpack(segment, row) for segment, row in rows]

    def size_in_bytes(self, leader_epoch: LeaderEpoch) -> int:
        """Bytes of the epoch's segments in every state, as Kafka counts them."""
        return sum(row_size_in_bytes(row) for _, row in self._listed_rows(leader_epoch))

    def _listed_rows(self, leader_epoch: LeaderEpoch | None) -> list[tuple[bytes, bytes]]:
        with self._lock:
            if leader_epoch is None:
                return list(self._rows.items())
            state = self._epochs.get(leader_epoch)
            ids = state.segment_ids() if state is not None else iter(())
            return [(segment, self._rows[segment]) for segment in ids]

    def _recent_segment(self, segment: bytes) -> RemoteLogSegmentMetadata:
        row = self._rows[segment]
        recent = self._recent.get(segment)
        # Every change makes a new row, so the same row means that the decoded object is current.
        if recent is not None and recent[0] is row:
            return recent[1]
        metadata = self._unpack(segment, row)
        self._recent[segment] = row, metadata
        self._recent.move_to_end(segment)
        if len(self._recent) > _RECENT_MAX:
            self._recent.popitem(last=False)
        return metadata

    def _segment(self, segment: bytes) -> RemoteLogSegmentMetadata:
        return self._unpack(segment, self._rows[segment])

    def _unpack(self, segment: bytes, row: bytes) -> RemoteLogSegmentMetadata:
        return unpack_segment(RemoteLogSegmentId(self.partition, uuid.UUID(bytes=segment)), row)

    def _advance(self, segment: bytes, row: bytes) -> None:
        target = row_state(row)
        end, leader = row_key(row)
        for span in row_spans(row):
            state = self._epoch_state(span.epoch)
            match target:
                case RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
                    goes_on = span.end_offset_inclusive < end
                    state.finish(
                        segment,
                        span.start_offset,
                        span.end_offset_inclusive,
                        leader,
                        is_marked=goes_on or row_has_txn_index(row),
                    )
                case RemoteLogSegmentState.DELETE_SEGMENT_STARTED:
                    state.start_deletion(segment, span.start_offset)
                case RemoteLogSegmentState.DELETE_SEGMENT_FINISHED:
                    state.forget(segment, span.start_offset)
        if target is RemoteLogSegmentState.DELETE_SEGMENT_FINISHED:
            self._rows.pop(segment, None)
        else:
            self._rows[segment] = row

    def _replace(self, segment: bytes, row_before: bytes | None, row: bytes) -> None:
        target = row_state(row)
        # `_advance` moves a segment within the epochs that it is in. A new start, or other epochs,
        # need a new entry.
        if row_before is not None and (
            target is RemoteLogSegmentState.COPY_SEGMENT_STARTED
            or row_spans(row_before) != row_spans(row)
        ):
            self._forget(segment)
        if target is RemoteLogSegmentState.COPY_SEGMENT_STARTED:
            for span in row_spans(row):
                self._epoch_state(span.epoch).add_unreferenced(segment)
            self._rows[segment] = row
        # The end of a deletion of an unknown segment would only add leader epochs.
        elif target is not RemoteLogSegmentState.DELETE_SEGMENT_FINISHED or row_before is not None:
            self._advance(segment, row)

    def _last_state(self, segment: bytes, end: Offset) -> RemoteLogSegmentState | None:
        """The last known state of a segment; a deleted one is known until its last tombstone."""
        row = self._rows.get(segment)
        if row is not None:
            return row_state(row)
        if any(keyed.segment_id == segment for keyed in self._keys.at(end)):
            return RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
        return None

    def _forget(self, segment: bytes, only_of: tuple[Offset, LeaderEpoch] | None = None) -> None:
        """Drop a segment in any state; with `only_of` only if that is its key."""
        row = self._rows.get(segment)
        if row is None or (only_of is not None and row_key(row) != only_of):
            return
        for span in row_spans(row):
            self._epoch_state(span.epoch).forget(segment, span.start_offset)
        del self._rows[segment]

    def _may_follow(
        self, segment_id: RemoteLogSegmentId, row: bytes | None, target: RemoteLogSegmentState
    ) -> bool:
        source = row_state(row) if row is not None else None
        if is_valid_transition(source, target):
            return True
        log_dropped(segment_id, source, target)
        return False

    def _epoch_state(self, epoch: LeaderEpoch) -> RemoteLogLeaderEpochState:
        # Never removed, even when empty: highest_log_offset outlives the segments (KAFKA-12641).
        return self._epochs.setdefault(epoch, RemoteLogLeaderEpochState())


def log_dropped(
    segment_id: RemoteLogSegmentId,
    source: RemoteLogSegmentState | None,
    target: RemoteLogSegmentState,
) -> None:
    _logger.error(
        "metadata event dropped: invalid transition segment=%s from=%s to=%s",
        segment_id,
        source.name if source is not None else None,
        target.name,
    )
