"""Rows of live segments (segment_rows.py) as columns, and back: whole arrays at a time.

The columns are those of a table that people read, so ids are in Kafka's text form and states have
their names; nothing of a row is lost on the way.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from isotherm.remote.metadata.state.segment_rows import (
    EPOCH,
    HAS_CUSTOM_METADATA,
    HEAD,
    TXN_INDEX_EMPTY,
)
from isotherm.remote.segment_metadata import RemoteLogSegmentState

if TYPE_CHECKING:
    import numpy.typing as npt

    Bytes: TypeAlias = npt.NDArray[np.uint8]
    Int64Array: TypeAlias = npt.NDArray[np.int64]

STATES = tuple(state.name for state in RemoteLogSegmentState)
LEADER_EPOCH: Any = pa.struct([("epoch", pa.int32()), ("start_offset", pa.int64())])
_FIELDS: list[Any] = [
    ("start_offset", pa.int64()),
    ("end_offset", pa.int64()),
    ("state", pa.string()),
    ("leader_epochs", pa.list_(LEADER_EPOCH)),
    ("max_timestamp_ms", pa.int64()),
    ("event_timestamp_ms", pa.int64()),
    ("broker_id", pa.int32()),
    ("size_in_bytes", pa.int32()),
    ("custom_metadata", pa.binary()),
    ("txn_index_empty", pa.bool_()),
    ("broker_leader_epoch", pa.int32()),
]
COLUMNS = pa.schema(_FIELDS)

# A row's head, in the order and the widths of segment_rows.HEAD.
_HEAD = np.dtype(
    [
        ("start_offset", ">i8"),
        ("end_offset", ">i8"),
        ("max_timestamp_ms", ">i8"),
        ("event_timestamp_ms", ">i8"),
        ("broker_id", ">i4"),
        ("size_in_bytes", ">i4"),
        ("broker_leader_epoch", ">i4"),
        ("state", "i1"),
        ("flags", "u1"),
        ("epochs", ">u4"),
    ]
)
_EPOCH = np.dtype([("epoch", ">i4"), ("start_offset", ">i8")])
assert _HEAD.itemsize == HEAD.size
assert _EPOCH.itemsize == EPOCH.size
_NUMBERS = ("start_offset", "end_offset", "max_timestamp_ms", "event_timestamp_ms")
_SMALL_NUMBERS = ("broker_id", "size_in_bytes", "broker_leader_epoch")


def columns_of_rows(rows: Sequence[bytes]) -> pa.RecordBatch:
    """One row of COLUMNS for each."""
    data = np.frombuffer(b"".join(rows), dtype=np.uint8)
    sizes = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    starts = np.cumsum(sizes) - sizes
    heads = _gather(data, starts, _HEAD)
    counts = heads["epochs"].astype(np.int64)
    epochs = _gather(data, _positions(starts + HEAD.size, counts, EPOCH.size), _EPOCH)
    custom_starts = starts + HEAD.size + counts * EPOCH.size
    custom_sizes = starts + sizes - custom_starts
    columns: dict[str, Any] = {
        name: _native(heads[name], np.int64 if name in _NUMBERS else np.int32)
        for name in (*_NUMBERS, *_SMALL_NUMBERS)
    }
    columns["state"] = pa.array(STATES, pa.string()).take(
        pa.array(_native(heads["state"], np.int8))
    )
    columns["leader_epochs"] = pa.ListArray.from_arrays(
        pa.array(_ends(counts), pa.int32()),
        pa.StructArray.from_arrays(
            [
                pa.array(_native(epochs["epoch"], np.int32)),
                pa.array(_native(epochs["start_offset"], np.int64)),
            ],
            fields=list(LEADER_EPOCH),
        ),
    )
    columns["custom_metadata"] = pa.Array.from_buffers(
        pa.binary(),
        len(rows),
        [
            pa.array(heads["flags"] & HAS_CUSTOM_METADATA != 0).buffers()[1],
            pa.py_buffer(_ends(custom_sizes).tobytes()),
            pa.py_buffer(data[_positions(custom_starts, custom_sizes, 1)].tobytes()),
        ],
    )
    columns["txn_index_empty"] = heads["flags"] & TXN_INDEX_EMPTY != 0
    return pa.RecordBatch.from_pydict(columns, schema=COLUMNS)


def rows_of_columns(columns: pa.Table) -> list[bytes]:
    """Inverse of `columns_of_rows`."""
    epochs: Any = columns["leader_epochs"].combine_chunks()
    custom: Any = columns["custom_metadata"].combine_chunks()
    counts = _int64(pc.list_value_length(epochs))
    custom_sizes = _int64(pc.fill_null(pc.binary_length(custom), 0))
    heads = np.zeros(len(columns), dtype=_HEAD)
    for name in (*_NUMBERS, *_SMALL_NUMBERS):
        heads[name] = columns[name].to_numpy()
    heads["state"] = pc.index_in(columns["state"], pa.array(STATES)).to_numpy()
    heads["flags"] = np.where(_booleans(custom.is_valid()), HAS_CUSTOM_METADATA, 0)
    is_empty = _booleans(columns["txn_index_empty"].combine_chunks())
    heads["flags"] |= np.where(is_empty, TXN_INDEX_EMPTY, 0).astype(np.uint8)
    heads["epochs"] = counts
    flat = epochs.flatten()
    packed = np.zeros(len(flat), dtype=_EPOCH)
    for name in ("epoch", "start_offset"):
        packed[name] = flat.field(name).to_numpy()

    sizes = HEAD.size + counts * EPOCH.size + custom_sizes
    starts = np.cumsum(sizes) - sizes
    out = np.empty(int(sizes.sum()), dtype=np.uint8)
    _scatter(out, starts, heads)
    _scatter(out, _positions(starts + HEAD.size, counts, EPOCH.size), packed)
    custom_starts = starts + HEAD.size + counts * EPOCH.size
    content = b"".join(each for each in custom.to_pylist() if each)
    out[_positions(custom_starts, custom_sizes, 1)] = np.frombuffer(content, dtype=np.uint8)
    joined = out.tobytes()
    ends = (starts + sizes).tolist()
    return [joined[start:end] for start, end in zip(starts.tolist(), ends, strict=True)]


def id_texts(ids: Sequence[bytes]) -> list[str]:
    """Kafka's text form of 16-byte ids: base64url without padding."""
    encode = base64.urlsafe_b64encode
    return [encode(each)[:-2].decode() for each in ids]


def id_bytes(texts: Sequence[str]) -> list[bytes]:
    """Inverse of `id_texts`."""
    decode = base64.urlsafe_b64decode
    return [decode(text + "==") for text in texts]


def _positions(starts: Int64Array, counts: Int64Array, stride: int) -> Int64Array:
    """Where each of `counts[i]` items from `starts[i]` on begins, for all i one after the other."""
    total = int(counts.sum())
    first = np.cumsum(counts) - counts
    within = np.arange(total, dtype=np.int64) - np.repeat(first, counts)
    return np.repeat(starts, counts) + within * stride


def _gather(data: Bytes, starts: Int64Array, dtype: np.dtype[Any]) -> npt.NDArray[np.void]:
    raw = data[starts[:, None] + np.arange(dtype.itemsize)]
    return np.ascontiguousarray(raw).view(dtype).reshape(len(starts))


def _scatter(out: Bytes, starts: Int64Array, values: npt.NDArray[np.void]) -> None:
    size = values.dtype.itemsize
    out[starts[:, None] + np.arange(size)] = values.view(np.uint8).reshape(len(values), size)


def _ends(counts: Int64Array) -> npt.NDArray[np.int32]:
    ends = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=ends[1:])
    return ends


def _native(values: npt.NDArray[Any], dtype: Any) -> npt.NDArray[Any]:
    return values.astype(dtype)


def _int64(column: Any) -> Int64Array:
    numbers: Int64Array = column.to_numpy(zero_copy_only=False).astype(np.int64)
    return numbers


def _booleans(column: Any) -> npt.NDArray[np.bool_]:
    values: npt.NDArray[np.bool_] = column.to_numpy(zero_copy_only=False)
    return values
