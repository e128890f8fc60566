"""The fold of a metadata partition to a table of its live segments. A later fold can continue from
it.

The table leaves out what look-ups need: which segment answers in which leader epoch. Each row has
the offset of its last record. The whole state can be stored and restored: a restored fold that
continues gives the same result as a fold of every record.
"""

from __future__ import annotations

import itertools
import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from isotherm.remote.metadata.folding.columnar_fold import ColumnarFold, OnCorrupt
from isotherm.remote.metadata.folding.decoded_run import DecodedRun, segment_ids
from isotherm.remote.metadata.state import segment_columns
from isotherm.remote.metadata.state.key_table import KeyedSegment
from isotherm.remote.metadata.state.segment_columns import id_bytes, id_texts
from isotherm.remote.metadata.state.segment_rows import row_key
from isotherm.remote.metadata.wire.events import MetadataChange
from isotherm.remote.metadata.wire.serde import decode_event, encode_event_without_key
from isotherm.remote.segment_metadata import RemotePartitionDeleteMetadata
from isotherm.types import (
    LeaderEpoch,
    Offset,
    TopicIdPartition,
    uuid_from_text,
    uuid_to_text,
)

SEGMENTS = pa.schema(
    [
        ("topic", pa.string()),
        ("topic_id", pa.string()),
        ("partition", pa.int32()),
        ("segment_id", pa.string()),
        *segment_columns.COLUMNS,
        ("has_key", pa.bool_()),
        ("source_offset", pa.int64()),
    ]
)


class OtherKey(NamedTuple):
    """A key whose last record names a segment that is deleted, or that has another key now."""

    topic: str
    topic_id: str
    partition: int
    end_offset: Offset
    broker_leader_epoch: LeaderEpoch
    segment_id: str


@dataclass(frozen=True, slots=True)
class FoldState:
    """The stored state of a fold.

    segments: rows of SEGMENTS, one for each live segment. deletions: the last event of each
    partition whose deletion is under way or finished, encoded.
    """

    segments: pa.Table
    other_keys: Sequence[OtherKey] = ()
    deletions: Sequence[bytes] = ()


class SegmentFold(ColumnarFold):
    """The state of one fold, for that fold only. Not thread-safe."""

    def __init__(
        self, on_corrupt: OnCorrupt, selects: Callable[[TopicIdPartition], bool] = lambda _: True
    ) -> None:
        super().__init__(selects, on_corrupt)
        # Offset of the last record, by partition number and segment id. Some deleted segments
        # remain in it: `state` looks up live ones only.
        self._offsets: dict[int, dict[bytes, Offset]] = defaultdict(dict)

    def state(self) -> FoldState:
        """The state after every record that was fed."""
        self.finish()
        tables = [SEGMENTS.empty_table()]
        keys: list[OtherKey] = []
        # Any offset will do: FoldState has none.
        folded = self.partitions.folded(0)
        for cache, _ in folded.partitions:
            rows, all_keys = cache.rows_and_keys()
            own, others = _split_keys(cache.partition, rows, all_keys)
            offsets = self._offsets[self._numbers[cache.partition]]
            tables.append(_table(cache.partition, rows, own, offsets))
            keys += others
        under_way = [deletion for _, deletion in folded.partitions if deletion is not None]
        deletions = [encode_event_without_key(segment) for segment in (*under_way, *folded.deleted)]
        return FoldState(pa.concat_tables(tables), keys, deletions)

    def restore(self, state: FoldState) -> None:
        """Start from `state`; call it before the first run."""
        for value in state.deletions:
            deletion = decode_event(value)
            assert isinstance(deletion, RemotePartitionDeleteMetadata)
            if self._number_of(deletion.topic_id_partition) >= 0:
                self.partitions.apply_change(MetadataChange(None, deletion))
        self._restore_segments(state.segments.combine_chunks())
        for key in state.other_keys:
            partition = TopicIdPartition(uuid_from_text(key.topic_id), key.topic, key.partition)
            place = self._number_of(partition)
            cache = self.partitions.cache(partition)
            if place >= 0 and cache is not None:
                (segment,) = id_bytes([key.segment_id])
                cache.lay_down({}, [(key.end_offset, key.broker_leader_epoch, segment)])

    def _restore_segments(self, segments: pa.Table) -> None:
        ids = id_bytes(_texts(segments, "segment_id"))
        rows = segment_columns.rows_of_columns(segments)
        offsets: list[Any] = segments["source_offset"].to_pylist()
        has_key = segments["has_key"].to_pylist()
        facts = zip(_owners(segments), ids, rows, offsets, has_key, strict=True)
        for partition, group in itertools.groupby(facts, key=operator.itemgetter(0)):
            place = self._number_of(partition)
            if place >= 0:
                group_rows = list(group)
                self._lay_down(
                    place,
                    {segment: row for _, segment, row, _, _ in group_rows},
                    [(*row_key(row), segment) for _, segment, row, _, keyed in group_rows if keyed],
                    [offset for _, _, _, offset, _ in group_rows],
                )

    def _apply_one(self, run: DecodedRun, number: int, place: int) -> None:
        # A tombstone has no place, because it names no topic. `_offsets` keeps the segment that it
        # drops.
        if place < 0:
            super()._apply_one(run, number, place)
            return
        cache = self._cache(place)
        (segment,) = segment_ids(run.events, np.array([number]))
        row = cache.row(segment)
        super()._apply_one(run, number, place)
        # Rows are replaced, never changed: another object means that this record took effect.
        if cache.row(segment) is not row:
            self._offsets[place][segment] = int(run.offset[number])

    def _bury(self, place: int, segment_ids: Sequence[bytes]) -> None:
        super()._bury(place, segment_ids)
        for segment in segment_ids:
            del self._offsets[place][segment]

    def _lay_down(
        self,
        place: int,
        rows: dict[bytes, bytes],
        keys: Iterable[tuple[Offset, LeaderEpoch, bytes]],
        offsets: list[Offset],
    ) -> None:
        super()._lay_down(place, rows, keys, offsets)
        self._offsets[place].update(zip(rows, offsets, strict=True))


def _table(
    partition: TopicIdPartition,
    rows: dict[bytes, bytes],
    own_keys: set[bytes],
    offsets: dict[bytes, Offset],
) -> pa.Table:
    count = len(rows)
    columns = segment_columns.columns_of_rows(list(rows.values()))
    named = {
        "topic": pa.repeat(pa.scalar(partition.topic), count),
        "topic_id": pa.repeat(pa.scalar(uuid_to_text(partition.topic_id)), count),
        "partition": pa.repeat(pa.scalar(partition.partition, pa.int32()), count),
        "segment_id": pa.array(id_texts(list(rows)), pa.string()),
        **dict(zip(columns.schema.names, columns.columns, strict=True)),
        "has_key": pa.array([row in own_keys for row in rows], pa.bool_()),
        "source_offset": pa.array([offsets[row] for row in rows], pa.int64()),
    }
    return pa.table(named, schema=SEGMENTS)


def _split_keys(
    partition: TopicIdPartition,
    rows: dict[bytes, bytes],
    keys: Iterable[tuple[Offset, KeyedSegment]],
) -> tuple[set[bytes], list[OtherKey]]:
    """Segments with a record under their own key, and all other keys."""
    own: set[bytes] = set()
    others: list[OtherKey] = []
    topic_id = uuid_to_text(partition.topic_id)
    for end, keyed in keys:
        row = rows.get(keyed.segment_id)
        if row is not None and row_key(row) == (end, keyed.broker_leader_epoch):
            own.add(keyed.segment_id)
        else:
            segment = id_texts([keyed.segment_id])[0]
            others.append(
                OtherKey(
                    *(partition.topic, topic_id, partition.partition),
                    *(end, keyed.broker_leader_epoch, segment),
                )
            )
    return own, others


def _owners(segments: pa.Table) -> Iterator[TopicIdPartition]:
    owners: dict[tuple[str, str, int], TopicIdPartition] = {}
    columns = (_texts(segments, "topic_id"), _texts(segments, "topic"))
    partitions: list[Any] = segments["partition"].to_pylist()
    for topic_id, topic, partition in zip(*columns, partitions, strict=True):
        place = (topic_id, topic, partition)
        if place not in owners:
            owners[place] = TopicIdPartition(uuid_from_text(topic_id), topic, partition)
        yield owners[place]


def _texts(segments: pa.Table, name: str) -> list[str]:
    texts: list[Any] = segments[name].to_pylist()
    return texts
