"""The fold of a metadata partition to a table of its live segments. A later fold can continue from it.

The table leaves out what look-ups need: which segment answers in which leader epoch. Each row has the
offset of its last record. The whole state can be stored and restored: a restored fold that continues
gives the same result as a fold of every record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from isotherm.remote.metadata.folding.columnar_fold import ColumnarFold, FoldRun, OnCorrupt
from isotherm.remote.metadata.state import segment_columns
from isotherm.remote.metadata.state.cache import CacheContents
from isotherm.remote.metadata.state.segment_columns import id_bytes, id_texts
from isotherm.remote.metadata.state.segment_rows import row_key, row_state
from isotherm.remote.metadata.wire.serde import decode_event, encode_event, encode_keyed_event
from isotherm.remote.segment_metadata import (
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from isotherm.types import (
    NO_LEADER_EPOCH,
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
_FNV_OFFSET = 0xCBF29CE484222325
_FNV_PRIME = 0x100000001B3
_MASK = 0xFFFFFFFFFFFFFFFF

# Number of its partition, end offset and leader epoch of a key, and the segment it names.
_KeyRow: TypeAlias = tuple[int, Offset, LeaderEpoch, bytes]


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
    """Not thread-safe; for one fold only."""

    def __init__(
        self, on_corrupt: OnCorrupt, wanted: Callable[[TopicIdPartition], bool] = lambda _: True
    ) -> None:
        super().__init__(wanted, on_corrupt)
        self._offsets: dict[int, dict[bytes, Offset]] = {}

    def state(self) -> FoldState:
        tables = [SEGMENTS.empty_table()]
        keys: list[OtherKey] = []
        for number, partition in enumerate(self._partitions):
            contents = self._contents[number]
            if contents is not None:
                own, others = _split_keys(partition, contents)
                tables.append(self._table(number, partition, contents, own))
                keys += others
        deletions = [_encoded(each) for each in self._deletions if each is not None]
        return FoldState(pa.concat_tables(tables), keys, deletions)

    def restore(self, state: FoldState) -> None:
        """Start from `state`; call it before the first run."""
        segments = state.segments.combine_chunks()
        owners = list(_owners(segments))
        deletions = [_decoded(value) for value in state.deletions]
        places = self._restore_places(
            [
                *owners,
                *map(_owner, state.other_keys),
                *(deletion.topic_id_partition for deletion in deletions),
            ]
        )
        for deletion in deletions:
            self._restore_deletion(places.get(deletion.topic_id_partition), deletion)
        keys = [
            *self._restore_rows(segments, [places.get(owner) for owner in owners]),
            *(
                _key_row(places[_owner(key)], key)
                for key in state.other_keys
                if _owner(key) in places
            ),
        ]
        for place, end, leader, segment in keys:
            contents = self._contents[place]
            if contents is not None:
                contents.keys.set(end, leader, segment)
        self._restore_tables(keys)

    def _restore_places(
        self, partitions: Iterable[TopicIdPartition]
    ) -> dict[TopicIdPartition, int]:
        places: dict[TopicIdPartition, int] = {}
        for partition in filter(self._wanted, partitions):
            if partition not in places:
                places[partition] = len(places)
                self._partitions.append(partition)
                self._contents.append(CacheContents())
                self._deletions.append(None)
                self._offsets[places[partition]] = {}
        return places

    def _restore_deletion(self, place: int | None, deletion: RemotePartitionDeleteMetadata) -> None:
        if place is None:
            return
        self._deletions[place] = deletion
        if deletion.state is RemotePartitionDeleteState.DELETE_PARTITION_FINISHED:
            self._contents[place] = None

    def _restore_rows(self, segments: pa.Table, places: Sequence[int | None]) -> Iterator[_KeyRow]:
        """Restore the segments; the rows of the keys that name their own segment."""
        ids = id_bytes(_texts(segments, "segment_id"))
        rows = segment_columns.rows_of_columns(segments)
        offsets: list[Any] = segments["source_offset"].to_pylist()
        has_key = segments["has_key"].to_pylist()
        for place, segment, row, offset, is_keyed in zip(
            places, ids, rows, offsets, has_key, strict=True
        ):
            contents = None if place is None else self._contents[place]
            if place is None or contents is None:
                continue
            contents.rows[segment] = row
            self._offsets[place][segment] = offset
            if is_keyed:
                yield (place, *row_key(row), segment)

    def _restore_tables(self, key_rows: Sequence[_KeyRow]) -> None:
        from isotherm.kernels import metadata as kernels

        live = [
            (place, segment, row)
            for place, contents in enumerate(self._contents)
            if contents is not None
            for segment, row in contents.rows.items()
        ]
        numbers = {(place, segment): number for number, (place, segment, _) in enumerate(live)}
        for place, _, _, segment in key_rows:
            numbers.setdefault((place, segment), len(numbers))
        slots = np.zeros(len(numbers), dtype=kernels.SLOT)
        slots["place"] = [place for place, _ in numbers]
        slots["id_high"], slots["id_low"] = _halves([segment for _, segment in numbers])
        slots["state"] = kernels.GONE
        slots["base"] = slots["update"] = kernels.UNTOUCHED
        slots["state"][: len(live)] = [row_state(row) for _, _, row in live]
        bounds = [row_key(row) for _, _, row in live]
        slots["end"][: len(live)] = [end for end, _ in bounds]
        slots["leader"][: len(live)] = [leader for _, leader in bounds]
        keys = np.array(
            [
                (place, end, leader, numbers[place, each], 0)
                for place, end, leader, each in key_rows
            ],
            dtype=kernels.KEY,
        )
        self._tables.restore(self._restored_places(kernels), slots, keys)

    def _restored_places(self, kernels: ModuleType) -> Any:
        places = np.zeros(len(self._partitions), dtype=kernels.PLACE)
        ids = [partition.topic_id.bytes for partition in self._partitions]
        places["topic_high"], places["topic_low"] = _halves(ids)
        places["partition"] = [partition.partition for partition in self._partitions]
        places["name_hash"] = [_name_hash(partition.topic) for partition in self._partitions]
        places["is_wanted"] = 1
        places["is_closed"] = [contents is None for contents in self._contents]
        places["deletion"] = kernels.UNTOUCHED
        return places

    def _plan_look_ups(self) -> None:
        """None are asked for."""

    def _keep_look_ups(self, kernels: ModuleType) -> None:
        """None were planned."""

    def _keep_rows(self, run: FoldRun) -> None:
        super()._keep_rows(run)
        slots = self._tables.slots
        numbers = np.where(slots["update"] >= 0, slots["update"], slots["base"])
        changed = np.flatnonzero((slots["is_touched"] != 0) & (numbers >= 0))
        changed = changed[slots["state"][changed] != run.kernels.GONE]
        changed_offsets = run.offset[numbers[changed]]
        places = slots["place"][changed].tolist()
        ids = self._tables.segment_ids(changed)
        for place, segment, offset in zip(places, ids, changed_offsets.tolist(), strict=True):
            self._offsets.setdefault(place, {})[segment] = offset
        gone = np.flatnonzero((slots["state"] == run.kernels.GONE) & (slots["was_live"] != 0))
        gone = gone[slots["is_touched"][gone] != 0]
        places = slots["place"][gone].tolist()
        for place, segment in zip(places, self._tables.segment_ids(gone), strict=True):
            self._offsets.get(place, {}).pop(segment, None)

    def _table(
        self,
        number: int,
        partition: TopicIdPartition,
        contents: CacheContents,
        own_keys: set[bytes],
    ) -> pa.Table:
        ids = list(contents.rows)
        count = len(ids)
        offsets = self._offsets.get(number, {})
        columns = segment_columns.columns_of_rows(list(contents.rows.values()))
        named = {
            "topic": pa.repeat(pa.scalar(partition.topic), count),
            "topic_id": pa.repeat(pa.scalar(uuid_to_text(partition.topic_id)), count),
            "partition": pa.repeat(pa.scalar(partition.partition, pa.int32()), count),
            "segment_id": pa.array(id_texts(ids), pa.string()),
            **dict(zip(columns.schema.names, columns.columns, strict=True)),
            "has_key": pa.array([each in own_keys for each in ids], pa.bool_()),
            "source_offset": pa.array([offsets[each] for each in ids], pa.int64()),
        }
        return pa.table(named, schema=SEGMENTS)


def _split_keys(
    partition: TopicIdPartition, contents: CacheContents
) -> tuple[set[bytes], list[OtherKey]]:
    """Segments with a record under their own key, and all other keys."""
    own: set[bytes] = set()
    others: list[OtherKey] = []
    topic_id = uuid_to_text(partition.topic_id)
    for end, keyed in contents.keys:
        row = contents.rows.get(keyed.segment_id)
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
    known: dict[tuple[str, str, int], TopicIdPartition] = {}
    columns = (_texts(segments, "topic_id"), _texts(segments, "topic"))
    partitions: list[Any] = segments["partition"].to_pylist()
    for topic_id, topic, partition in zip(*columns, partitions, strict=True):
        place = (topic_id, topic, partition)
        if place not in known:
            known[place] = TopicIdPartition(uuid_from_text(topic_id), topic, partition)
        yield known[place]


def _owner(key: OtherKey) -> TopicIdPartition:
    return TopicIdPartition(uuid_from_text(key.topic_id), key.topic, key.partition)


def _key_row(place: int, key: OtherKey) -> _KeyRow:
    return place, key.end_offset, key.broker_leader_epoch, id_bytes([key.segment_id])[0]


def _texts(segments: pa.Table, name: str) -> list[str]:
    texts: list[Any] = segments[name].to_pylist()
    return texts


def _decoded(value: bytes) -> RemotePartitionDeleteMetadata:
    deletion = decode_event(value)
    assert isinstance(deletion, RemotePartitionDeleteMetadata)
    return deletion


def _encoded(deletion: RemotePartitionDeleteMetadata) -> bytes:
    if deletion.broker_leader_epoch == NO_LEADER_EPOCH:
        return encode_event(deletion)
    return encode_keyed_event(deletion)


def _halves(ids: Sequence[bytes]) -> tuple[Any, Any]:
    halves = np.frombuffer(b"".join(ids), dtype=">i8").reshape(-1, 2)
    return halves[:, 0], halves[:, 1]


def _name_hash(topic: str) -> int:
    """As isotherm.kernels.metadata_events: FNV-1a of the name, signed."""
    hashed = _FNV_OFFSET
    for byte in topic.encode():
        hashed = ((hashed ^ byte) * _FNV_PRIME) & _MASK
    return hashed - (1 << 64) if hashed >> 63 else hashed
