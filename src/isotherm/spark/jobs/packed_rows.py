"""Records in pieces: Arrow rows of one partition, in order, as one binary value.

Spark's shuffle, sort and cache cost a microsecond and more for each row and step. In them a load
has one row for each piece, so what is left for each record is the way from the input into Arrow,
and kernels. They copy each byte several times, too. So where all tasks see one disk, the pieces are
in files, and Spark has only their places.

    input rows -> `pack`: the partition of each; a piece for each partition, sorted by place
               -> `split`: a piece for each range of places that the partition is cut into
               -> `in_order`: the pieces of a range as one, sorted

Order is by `place`, then by `tie` if the rows have one, else by the input's order.

Rows that a worker can read by itself (WorkerRows) are packed where they are read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from isotherm.record.encode import Partitioner, assign_partitions

if TYPE_CHECKING:
    import numpy.typing as npt
    from pyspark.sql import DataFrame

    from isotherm.record.batch_table import Int32Array, Int64Array
    from isotherm.spark.small_input import BatchFunction

PLACE = "place"
TIE = "tie"

PACK_BYTES = 16 * 1024 * 1024
"""Rows that are packed at once. Each gives a piece for each partition."""
JOINED_BYTES_MAX = 512 * 1024 * 1024
"""Rows of a range that are sorted as one batch."""
_SAMPLE_BYTES = 64 * 1024
"""A piece has a sample of its places for so many of its bytes."""
_ROW_BITS = 32
_IN_FILE = b"["
"""Arrow's format begins with other bytes."""

PACKED_SQL = (
    "partition int, row long, records long, bytes long, first_ms long, last_ms long,"
    " wrong_times long, nameless long, places array<long>, data binary"
)
_PACKED: dict[str, pa.DataType] = {
    "partition": pa.int32(),
    "row": pa.int64(),
    "records": pa.int64(),
    "bytes": pa.int64(),
    "first_ms": pa.int64(),
    "last_ms": pa.int64(),
    "wrong_times": pa.int64(),
    "nameless": pa.int64(),
    "places": pa.list_(pa.int64()),
    "data": pa.binary(),
}
_SPLIT: dict[str, pa.DataType] = {
    "task": pa.int32(),
    "range": pa.int32(),
    "row": pa.int64(),
    "records": pa.int64(),
    "data": pa.binary(),
}
SPLIT = pa.schema(_SPLIT)


class PiecesFile(NamedTuple):
    """The file of a task's pieces. Arrow writes without a buffer, so what is written is there."""

    path: str
    file: pa.OSFile


@dataclass(frozen=True, slots=True)
class WorkerRows:
    """Records that never are rows of Spark's. `read` turns the rows of `tasks` into records in a
    worker: key, value, timestamp, timestamp_type, PLACE, and as needed headers, partition, TIE."""

    tasks: DataFrame
    read: BatchFunction

    def packed(self, packer: BatchFunction) -> DataFrame:
        read = self.read
        return self.tasks.mapInArrow(lambda batches: packer(read(batches)), PACKED_SQL)


def pack(
    partitioner: Partitioner,
    partitions_count: int,
    run_size: int,
    folder: str | None,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Pack the rows of a task: the function of the first `mapInArrow`. The pieces are in a file in
    `folder`, or without one in the rows."""
    from pyspark import TaskContext

    context = TaskContext.get()
    task = 0 if context is None else context.partitionId()
    # The same partition at each attempt, and another one for each task.
    sticky = np.array([task % partitions_count, 0], dtype=np.int64)
    with ExitStack() as stack:
        pieces = None
        if folder is not None:
            # No two attempts share a file.
            attempt = 0 if context is None else context.taskAttemptId()
            path = str(Path(folder, str(attempt)))
            # Arrow copies what it writes to a file of Python's.
            pieces = PiecesFile(path, stack.enter_context(pa.OSFile(path, "wb")))
        for number, rows in enumerate(joined_to(batches, PACK_BYTES)):
            if partitioner is Partitioner.COLUMN:
                # -1 is no partition of any topic, and is refused with its rows counted.
                column: Any = rows["partition"]
                partitions = column.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
            else:
                partitions = assign_partitions(
                    rows["key"],
                    rows["value"],
                    partitioner,
                    partitions_count,
                    run_size=run_size,
                    sticky=sticky,
                )
            yield _packed(rows, partitions, task << _ROW_BITS | number, pieces)


def _packed(
    rows: pa.RecordBatch, partitions: Int32Array, row: int, pieces: PiecesFile | None
) -> pa.RecordBatch:
    order = _order(rows)
    if (partitions != partitions[0]).any():
        if order is None:
            order = np.argsort(partitions, kind="stable")
        else:
            order = order[np.argsort(partitions[order], kind="stable")]
        partitions = partitions[order]
    if order is not None:
        rows = rows.take(order)
    packed = []
    cuts = [0, *(np.flatnonzero(np.diff(partitions)) + 1).tolist(), len(partitions)]
    for start, end in pairwise(cuts):
        piece = rows.slice(start, end - start)
        times = _int64s(piece["timestamp"])
        places = _int64s(piece["place"])
        samples = np.linspace(0, len(places) - 1, max(1, piece.nbytes // _SAMPLE_BYTES))
        packed.append(
            {
                "partition": int(partitions[start]),
                "row": row,
                "records": len(piece),
                "bytes": piece.nbytes,
                "first_ms": int(times.min()),
                "last_ms": int(times.max()),
                # Kafka's value for "no timestamp" is -1.
                "wrong_times": int((times < -1).sum()),
                "nameless": _nameless(piece),
                "places": places[samples.astype(np.int64)].tolist(),
                "data": encoded(piece) if pieces is None else _filed(piece, pieces),
            }
        )
    return pa.RecordBatch.from_pylist(packed, schema=pa.schema(_PACKED))


def split(
    first_ranges: Mapping[int, tuple[int, tuple[int, ...]]],
    tasks: Sequence[int],
    batches: Iterator[pa.RecordBatch],
    *,
    with_data: bool,
) -> Iterator[pa.RecordBatch]:
    """Cut pieces into ranges: the function of the second `mapInArrow`.

    For each partition `first_ranges` has the number of its first range and the places where the
    others begin; `tasks` has the task of each range. Without data the rows only count.
    """
    for batch in batches:
        for packed in batch.select(["partition", "row", "records", "data"]).to_pylist():
            first, bounds = first_ranges[packed["partition"]]
            pieces: Iterable[tuple[int, int, bytes | None]]
            if bounds:
                pieces = _cut(packed["data"], first, bounds, with_data=with_data)
            else:
                pieces = [(first, packed["records"], packed["data"] if with_data else None)]
            split_rows = [
                {
                    "task": tasks[number],
                    "range": number,
                    "row": packed["row"],
                    "records": records,
                    "data": data,
                }
                for number, records, data in pieces
            ]
            yield pa.RecordBatch.from_pylist(split_rows, schema=SPLIT)


def _cut(
    data: bytes, first: int, bounds: Sequence[int], *, with_data: bool
) -> Iterator[tuple[int, int, bytes | None]]:
    piece = decoded(data)
    places = _int64s(piece["place"])
    cuts = [0, *np.searchsorted(places, np.array(bounds, dtype=np.int64)).tolist(), len(places)]
    for number, (start, end) in enumerate(pairwise(cuts), first):
        if start < end:
            yield number, end - start, _part(data, piece, start, end) if with_data else None


def _part(data: bytes, piece: pa.RecordBatch, start: int, end: int) -> bytes:
    if not data.startswith(_IN_FILE):
        return encoded(piece.slice(start, end - start))
    path, position, first, _ = json.loads(data)
    return json.dumps([path, position, first + start, end - start]).encode()


def in_order(pieces: Sequence[bytes]) -> Iterator[pa.RecordBatch]:
    """The rows of a range. Its pieces are in the order of the input. A range with very many rows of
    one place is cut: Arrow's arrays of bytes end at 2 GiB."""
    batches = [decoded(piece) for piece in pieces]
    if sum(batch.nbytes for batch in batches) <= JOINED_BYTES_MAX:
        yield _sorted(joined(batches))
        return
    names = [name for name in (PLACE, TIE) if name in batches[0].schema.names]
    keys = pa.Table.from_batches([batch.select(names) for batch in batches]).combine_chunks()
    order = _order(keys.to_batches()[0])
    if order is None:
        order = np.arange(len(keys))
    ends = np.cumsum([len(batch) for batch in batches])
    steps = -(-sum(batch.nbytes for batch in batches) // JOINED_BYTES_MAX)
    for rows in np.array_split(order, steps):
        yield from _taken(batches, ends, rows)


def _taken(
    batches: Sequence[pa.RecordBatch], ends: Int64Array, rows: Int64Array
) -> Iterator[pa.RecordBatch]:
    """The rows with these numbers, as few batches as JOINED_BYTES_MAX allows. `ends` has the number
    behind the last row of each batch."""
    ascending = np.sort(rows)
    parts = []
    for number, own in enumerate(np.split(ascending, np.searchsorted(ascending, ends[:-1]))):
        if len(own):
            parts.append(batches[number].take(own - (ends[number] - len(batches[number]))))
    if sum(part.nbytes for part in parts) > JOINED_BYTES_MAX and len(rows) > 1:
        del parts
        for half in np.array_split(rows, 2):
            yield from _taken(batches, ends, half)
    elif parts:
        yield joined(parts).take(np.searchsorted(ascending, rows))


def _sorted(rows: pa.RecordBatch) -> pa.RecordBatch:
    order = _order(rows)
    return rows if order is None else rows.take(order)


def joined_to(batches: Iterable[pa.RecordBatch], size_min: int) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of at least `size_min` bytes, but for the last."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if not len(batch):
            continue
        waiting.append(batch)
        size += batch.nbytes
        if size >= size_min:
            yield joined(waiting)
            waiting, size = [], 0
    if waiting:
        yield joined(waiting)


def joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    if len(batches) == 1:
        return batches[0]
    together: list[pa.RecordBatch] = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return together[0]


def _order(rows: pa.RecordBatch) -> npt.NDArray[np.int64] | None:
    """The order of the rows by place and tie, equal ones as they are. None if they are in order."""
    places = _int64s(rows["place"])
    if "tie" in rows.schema.names:
        return np.lexsort((_int64s(rows["tie"]), places))
    if (places[:-1] <= places[1:]).all():
        return None
    return np.argsort(places, kind="stable")


def _nameless(piece: pa.RecordBatch) -> int:
    """The number of headers without a name."""
    if "headers" not in piece.schema.names:
        return 0
    headers: Any = piece["headers"]
    return int(headers.flatten().field(0).null_count)


def _int64s(column: Any) -> Int64Array:
    values: Int64Array = column.to_numpy(zero_copy_only=False)
    return values


def encoded(piece: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, piece.schema) as stream:
        stream.write_batch(piece)
    return sink.getvalue().to_pybytes()


def _filed(piece: pa.RecordBatch, pieces: PiecesFile) -> bytes:
    """Append a piece to a file; returns its place: path, position, first row, number of rows."""
    position = pieces.file.tell()
    with pa.ipc.new_stream(pieces.file, piece.schema) as stream:
        stream.write_batch(piece)
    return json.dumps([pieces.path, position, 0, len(piece)]).encode()


def decoded(data: bytes) -> pa.RecordBatch:
    if not data.startswith(_IN_FILE):
        with pa.ipc.open_stream(data) as stream:
            return stream.read_next_batch()
    path, position, first, count = json.loads(data)
    with pa.memory_map(path) as file:
        file.seek(position)
        with pa.ipc.open_stream(file) as stream:
            return stream.read_next_batch().slice(first, count)
