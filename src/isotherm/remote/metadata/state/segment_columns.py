"""Rows of live segments (segment_rows.py) as columns, and back: whole arrays at a time.

The columns are those of a table that people read, so ids are in Kafka's text form and states have
their names; nothing of a row is lost on the way.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterable, Iterator, Sequence
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
ROW_HEAD = np.dtype(
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
ROW_EPOCH = np.dtype([("epoch", ">i4"), ("start_offset", ">i8")])
assert ROW_HEAD.itemsize == HEAD.size
assert ROW_EPOCH.itemsize == EPOCH.size
_NUMBERS = ("start_offset", "end_offset", "max_timestamp_ms", "event_timestamp_ms")
_SMALL_NUMBERS = ("broker_id", "size_in_bytes", "broker_leader_epoch")


def columns_of_rows(rows: Sequence[bytes]) -> pa.RecordBatch:
    """One row of COLUMNS for each row of bytes."""
    data = np.frombuffer(b"".join(rows), dtype=np.uint8)
    sizes = np.fromiter(map(len, rows), dtype=np.int64, count=len(rows))
    starts = np.cumsum(sizes) - sizes
    heads = gather(data, starts, ROW_HEAD)
    counts = heads["epochs"].astype(np.int64)
    epochs = gather(data, positions(starts + HEAD.size, counts, EPOCH.size), ROW_EPOCH)
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
            pa.py_buffer(data[positions(custom_starts, custom_sizes, 1)].tobytes()),
        ],
    )
    columns["txn_index_empty"] = heads["flags"] & TXN_INDEX_EMPTY != 0
    return pa.RecordBatch.from_pydict(columns, schema=COLUMNS)


def heads_of_rows(rows: Iterable[bytes]) -> npt.NDArray[np.void]:
    """The head of each row as ROW_HEAD, without epochs and custom metadata."""
    return np.frombuffer(b"".join([row[: HEAD.size] for row in rows]), dtype=ROW_HEAD)


def epoch_starts_of_rows(rows: Iterable[bytes]) -> dict[int, int]:
    """The first offset of each leader epoch that any of the rows has, by epoch."""
    parts = list(rows)
    sizes = np.fromiter(map(len, parts), dtype=np.int64, count=len(parts))
    counts = heads_of_rows(parts)["epochs"].astype(np.int64)
    starts = positions(np.cumsum(sizes) - sizes + HEAD.size, counts, EPOCH.size)
    entries = gather(np.frombuffer(b"".join(parts), dtype=np.uint8), starts, ROW_EPOCH)
    epochs, places = np.unique(entries["epoch"], return_inverse=True)
    first = np.full(len(epochs), np.iinfo(np.int64).max)
    np.minimum.at(first, places, entries["start_offset"].astype(np.int64))
    return dict(zip(epochs.tolist(), first.tolist(), strict=True))


def rows_of_columns(columns: pa.Table) -> list[bytes]:
    """Inverse of `columns_of_rows`."""
    epochs: Any = columns["leader_epochs"].combine_chunks()
    custom: Any = columns["custom_metadata"].combine_chunks()
    counts = _int64(pc.list_value_length(epochs))
    custom_sizes = _int64(pc.fill_null(pc.binary_length(custom), 0))
    heads = np.zeros(len(columns), dtype=ROW_HEAD)
    for name in (*_NUMBERS, *_SMALL_NUMBERS):
        heads[name] = columns[name].to_numpy()
    heads["state"] = pc.index_in(columns["state"], pa.array(STATES)).to_numpy()
    heads["flags"] = np.where(_booleans(custom.is_valid()), HAS_CUSTOM_METADATA, 0)
    is_empty = _booleans(columns["txn_index_empty"].combine_chunks())
    heads["flags"] |= np.where(is_empty, TXN_INDEX_EMPTY, 0).astype(np.uint8)
    heads["epochs"] = counts
    flat = epochs.flatten()
    packed = np.zeros(len(flat), dtype=ROW_EPOCH)
    for name in ("epoch", "start_offset"):
        packed[name] = flat.field(name).to_numpy()

    content = b"".join(value for value in custom.to_pylist() if value)
    return rows_of_parts(heads, packed, custom_sizes, np.frombuffer(content, dtype=np.uint8))


def rows_of_parts(
    heads: npt.NDArray[np.void],
    epochs: npt.NDArray[np.void],
    custom_sizes: Int64Array,
    custom_metadata: Bytes,
) -> list[bytes]:
    """Rows of bytes from heads (ROW_HEAD), and from the leader epochs (ROW_EPOCH) and the custom
    metadata of all rows, concatenated. A head has the number of its epochs."""
    # Slices of bytes: an index of every byte, as NumPy would need, takes four times as long.
    heads_end = range(HEAD.size, len(heads) * HEAD.size + 1, HEAD.size)
    epochs_end = (np.cumsum(heads["epochs"], dtype=np.int64) * EPOCH.size).tolist()
    parts = (
        _slices(heads.tobytes(), heads_end),
        _slices(epochs.tobytes(), epochs_end),
        _slices(custom_metadata.tobytes(), np.cumsum(custom_sizes).tolist()),
    )
    return [head + epoch + custom for head, epoch, custom in zip(*parts, strict=True)]


def _slices(data: bytes, ends: Sequence[int]) -> Iterator[bytes]:
    return (data[start:end] for start, end in itertools.pairwise((0, *ends)))


def id_texts(ids: Sequence[bytes]) -> list[str]:
    """Kafka's text form of 16-byte ids: base64url without padding."""
    encode = base64.urlsafe_b64encode
    return [encode(id_)[:-2].decode() for id_ in ids]


def id_bytes(texts: Sequence[str]) -> list[bytes]:
    """Inverse of `id_texts`."""
    decode = base64.urlsafe_b64decode
    return [decode(text + "==") for text in texts]


def positions(starts: Int64Array, counts: Int64Array, stride: int) -> Int64Array:
    """The positions of `counts[i]` adjacent items from `starts[i]` on, concatenated over all i.
    `stride` is the size of an item."""
    total = int(counts.sum())
    first = np.cumsum(counts) - counts
    within = np.arange(total, dtype=np.int64) - np.repeat(first, counts)
    return np.repeat(starts, counts) + within * stride


def gather(data: Bytes, starts: Int64Array, dtype: np.dtype[Any]) -> npt.NDArray[np.void]:
    """Copy an item of `dtype` from each of the positions, which need not be aligned."""
    # A view with an item at every byte. Items are copied as pieces of bytes: by an index for each
    # byte, or field by field, they would take ten times as long.
    count = max(len(data) - dtype.itemsize + 1, 0)
    everywhere = np.ndarray((count,), f"V{dtype.itemsize}", data, strides=(1,))
    items: npt.NDArray[np.void] = everywhere[starts].view(dtype)
    return items


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
