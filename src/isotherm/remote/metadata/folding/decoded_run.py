"""A run of metadata records, decoded by the kernels into one row of `EVENT` for each.

Importing this module loads Arrow; the first run loads kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa

from isotherm.errors import CorruptMetadataError
from isotherm.kernels.event_table import EPOCH_SIZE, EVENT, ODD
from isotherm.remote.metadata.api import MetadataColumns
from isotherm.remote.metadata.state.segment_columns import (
    ROW_EPOCH,
    ROW_HEAD,
    gather,
    positions,
    rows_of_parts,
)
from isotherm.remote.metadata.state.segment_rows import HAS_CUSTOM_METADATA, TXN_INDEX_EMPTY
from isotherm.remote.metadata.wire.events import MetadataChange, binary_array, decode_change
from isotherm.remote.metadata.wire.serde import (
    decode_partition,
    encode_event_without_key,
    encode_keyed_event,
)
from isotherm.types import TopicIdPartition

if TYPE_CHECKING:
    import numpy.typing as npt

    Int64Array: TypeAlias = npt.NDArray[np.int64]

    # Rows of isotherm.kernels.event_table.EVENT.
    Events: TypeAlias = npt.NDArray[np.void]

_SEGMENT_ID = np.dtype([("high", ">i8"), ("low", ">i8")])
# Field of a row's head: field of the event that has it.
_FIELDS_OF_WHOLE = {
    "start_offset": "start",
    "end_offset": "end",
    "max_timestamp_ms": "max_timestamp",
    "size_in_bytes": "size",
    "broker_leader_epoch": "leader",
    "epochs": "epochs_count",
}
_FIELDS_OF_UPDATE = {
    "event_timestamp_ms": "event_timestamp",
    "broker_id": "broker",
    "state": "state",
}


@dataclass(frozen=True, slots=True, eq=False)
class DecodedRun:
    """Records as rows of `EVENT`. `problems` has, by record number, why a record cannot be decoded.

    The kernels decode the form that brokers write. Python decodes records in another form (ODD) and
    encodes them in the plain form. With `decode_run(straighten=False)` they stay ODD, valid or not.
    """

    offset: Int64Array
    events: Events
    problems: Mapping[int, str]
    # Keys and values are in the plain form; null for a record with a problem.
    keys: pa.BinaryArray
    values: pa.BinaryArray

    @classmethod
    def joined(cls, earlier: DecodedRun, numbers: Int64Array, later: DecodedRun) -> DecodedRun:
        """The records `numbers` of `earlier`, which ascend, and all of `later`; none is decoded
        again.
        """
        values = pa.concat_arrays([earlier.values.take(numbers), later.values])
        events = _joined_events(earlier.events, numbers, later.events)
        # Events have positions in the column of values: they move with their values.
        before = [_starts(earlier.values)[numbers], _starts(later.values)[:-1]]
        moved = _starts(values)[:-1].astype(np.int64) - np.concatenate(before)
        events["epochs_start"] += moved
        events["custom_start"] += moved
        return cls(
            np.concatenate([earlier.offset[numbers], later.offset]),
            events,
            {**earlier._problems_of(numbers), **_shifted(later.problems, len(numbers))},
            pa.concat_arrays([earlier.keys.take(numbers), later.keys]),
            values,
        )

    def _problems_of(self, numbers: Int64Array) -> dict[int, str]:
        """The problems of the records `numbers`, keyed by index in `numbers`."""
        if not self.problems:
            return {}
        named = enumerate(numbers.tolist())
        return {index: self.problems[number] for index, number in named if number in self.problems}

    @property
    def value_data(self) -> npt.NDArray[np.uint8]:
        """The bytes in which events have their positions."""
        return _content(self.values)

    def byte_count(self, numbers: Int64Array) -> int:
        """The bytes of the keys and values of the records `numbers`."""
        sizes = np.diff(_starts(self.keys)) + np.diff(_starts(self.values))
        return int(sizes[numbers].sum())

    def value(self, number: int) -> bytes:
        value: bytes = self.values[number].as_py()
        return value

    def partition(self, number: int) -> TopicIdPartition:
        """The user partition that record `number`, which has a value, is about."""
        return decode_partition(self.value(number))

    def leader_epochs(self, numbers: Int64Array) -> npt.NDArray[np.void]:
        """The leader epochs of records with a whole segment, concatenated, as rows of ROW_EPOCH."""
        first, count = self.events["epochs_start"][numbers], self.events["epochs_count"][numbers]
        starts = positions(first, count, EPOCH_SIZE)
        return gather(self.value_data, starts, ROW_EPOCH)

    def rows(self, first: Int64Array, last: Int64Array) -> list[bytes]:
        """Rows (segment_rows.py) of segments: `first` has the number of each segment's whole
        record, `last` that of its last update."""
        events = self.events
        heads = np.zeros(len(first), dtype=ROW_HEAD)
        for name, field in _FIELDS_OF_WHOLE.items():
            heads[name] = events[field][first]
        for name, field in _FIELDS_OF_UPDATE.items():
            heads[name] = events[field][last]
        # The last update replaces the custom metadata even if it has none, as in Kafka.
        sizes = events["custom_size"][last]
        heads["flags"] = np.where(sizes >= 0, HAS_CUSTOM_METADATA, 0)
        is_empty = events["txn_index_empty"][first]
        heads["flags"] |= np.where(is_empty, TXN_INDEX_EMPTY, 0).astype(np.uint8)
        sizes = np.maximum(sizes, 0)
        custom_metadata = self.value_data[positions(events["custom_start"][last], sizes, 1)]
        return rows_of_parts(heads, self.leader_epochs(first), sizes, custom_metadata)

    def change(self, number: int) -> MetadataChange:
        """Decode one record. Raises CorruptMetadataError if it cannot be decoded."""
        if number in self.problems:
            raise CorruptMetadataError(self.problems[number])
        return decode_change(self.keys[number].as_py(), self.values[number].as_py())


def decode_run(columns: MetadataColumns, *, straighten: bool = True) -> DecodedRun:
    """Decode every record.

    Without `straighten`, records in another form than brokers write stay ODD.
    """
    from isotherm.kernels.metadata_events import decode_events

    keys, values = columns.key, columns.value
    events = np.empty(len(columns.offset), dtype=EVENT)
    problems: dict[int, str] = {}
    if decode_events(_arrays(keys), _arrays(values), False, events) and straighten:
        # Rare: then the whole run is decoded twice.
        odd = np.flatnonzero(events["kind"] == ODD)
        keys, values, problems = _straightened(keys, values, odd)
        decode_events(_arrays(keys), _arrays(values), True, events)
        assert np.count_nonzero(events["kind"] == ODD) == len(problems)
    return DecodedRun(columns.offset, events, problems, keys, values)


def _straightened(
    keys: pa.BinaryArray, values: pa.BinaryArray, odd: npt.NDArray[np.intp]
) -> tuple[pa.BinaryArray, pa.BinaryArray, dict[int, str]]:
    """The columns with odd records in plain form, and null for those that cannot be decoded; why
    not.
    """
    problems: dict[int, str] = {}
    key_list, value_list = keys.to_pylist(), values.to_pylist()
    for number in odd.tolist():
        try:
            value_list[number] = _plain_value(key_list[number], value_list[number])
        except CorruptMetadataError as error:
            problems[number] = str(error)
            key_list[number] = value_list[number] = None
    return binary_array(key_list), binary_array(value_list), problems


def _shifted(problems: Mapping[int, str], by: int) -> dict[int, str]:
    return {number + by: problem for number, problem in problems.items()}


def place_hashes(columns: MetadataColumns) -> Int64Array:
    """Per record a hash of its user partition; 0 for a record that cannot be decoded."""
    events = decode_run(columns).events
    hashes: Int64Array = events["topic_high"] * 31 + events["topic_low"] * 17 + events["partition"]
    hashes[events["kind"] >= ODD] = 0
    return hashes


def _joined_events(earlier: Events, numbers: Int64Array, later: Events) -> Events:
    """The rows `numbers` of `earlier`, and all of `later`. Rows move as pieces of bytes: Numpy
    copies rows of fields field by field, which takes ten times as long."""
    pieces = f"V{EVENT.itemsize}"
    joined = np.concatenate([earlier.view(pieces)[numbers], later.view(pieces)])
    return joined.view(EVENT)


def segment_ids(events: Events, numbers: Int64Array) -> list[bytes]:
    """The 16 bytes of the segments that some of the events are about."""
    ids = np.empty(len(numbers), dtype=_SEGMENT_ID)
    ids["high"], ids["low"] = events["id_high"][numbers], events["id_low"][numbers]
    joined = ids.tobytes()
    return [joined[at : at + 16] for at in range(0, len(joined), 16)]


def _plain_value(key: bytes | None, value: bytes | None) -> bytes | None:
    event = decode_change(key, value).event
    if event is None:
        return None
    if key is None:
        return encode_event_without_key(event)
    return encode_keyed_event(event)  # type: ignore[arg-type]


def _arrays(column: pa.BinaryArray) -> tuple[Any, Any, Any]:
    """A column for the kernels: its bytes, Arrow's offsets into them, and which values are null."""
    arrays = (_content(column), _starts(column), _nulls(column))
    # The kernels are compiled for read-only arrays.
    for array in arrays:
        array.flags.writeable = False
    return arrays


def _nulls(column: pa.BinaryArray) -> npt.NDArray[np.bool_]:
    """Which values are null. Arrow's own `to_numpy` of booleans loads Pandas first: half a
    second."""
    first, count = column.offset, len(column)
    validity = column.buffers()[0]
    if validity is None:
        return np.zeros(count, dtype=np.bool_)
    bits = np.unpackbits(np.frombuffer(memoryview(validity), np.uint8), bitorder="little")
    nulls: npt.NDArray[np.bool_] = bits[first : first + count] == 0
    return nulls


def _content(column: pa.BinaryArray) -> npt.NDArray[np.uint8]:
    return np.frombuffer(memoryview(column.buffers()[2] or b""), np.uint8)


def _starts(column: pa.BinaryArray) -> npt.NDArray[np.int32]:
    """The positions in the column's bytes at which the values begin, and the last one's end."""
    first, count = column.offset, len(column)
    ends = memoryview(column.buffers()[1] or b"")
    return np.frombuffer(ends, np.int32, count=first + count + 1)[first:]
