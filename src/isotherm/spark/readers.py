"""What a Spark task does with its reads of segments: fetch ranges ahead, verify, decode.

Bounded memory per task: `fetch_ahead` + 1 blocks of `fetch_bytes` under way or waiting, one being
decoded together with the piece of a batch left over from the block before, and the rows decoded
from it. Nothing of a segment is kept longer, so its size does not matter.

Every byte range that was planned is accounted for: an object that is missing, short or damaged
raises CorruptObjectError.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import groupby

from isotherm.errors import CorruptDataError, CorruptObjectError, RemoteResourceNotFoundError
from isotherm.record.batch import LOG_OVERHEAD, BatchHeader, iterate_batches, read_batch_header
from isotherm.record.batch_table import read_batch_table
from isotherm.record.columns import RecordColumns, decode_columns
from isotherm.remote.segment_metadata import IndexType
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.segment.offset_index import (
    OffsetPosition,
    check_offset_index,
    fetch_upper_bound,
    lookup_offset,
)
from isotherm.segment.time_index import (
    check_time_index,
    first_younger_entry,
    lookup_timestamp,
)
from isotherm.spark.planning import SegmentPiece, SegmentRead
from isotherm.types import Offset, Position, TimestampMs

# To find a record by its time: the time index leaves some KiB to look through.
_LOOKUP_FETCH_BYTES = 256 * 1024
_COLUMNS_COPIED = frozenset({"key", "value", "headers"})


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """Sizes in bytes: of a ranged GET, and of the records that become one batch of rows.

    `fetch_ahead` is the number of ranges that are fetched before they are needed. Where no column
    holds a part of the records, one batch of rows stands for a whole range.
    """

    fetch_bytes: int = 8 * 1024 * 1024
    fetch_ahead: int = 3
    batch_bytes: int = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class PositionRange:
    """Bytes [start, end) of a segment's `.log` file."""

    start: Position
    end: Position


class SegmentGoneError(CorruptObjectError):
    """An object of the segment of `read` does not exist."""

    def __init__(self, message: str, read: SegmentRead) -> None:
        super().__init__(message)
        self.read = read


def read_segments(
    reads: Sequence[SegmentRead],
    storage: RemoteStorageManager,
    columns: frozenset[str],
    *,
    settings: ReadSettings,
) -> Generator[tuple[SegmentRead, RecordColumns], None, None]:
    """Decoded records of `reads` in order, fetching ahead across segments.

    Offsets outside a read's range are left out. Raises CorruptObjectError naming the object's
    place and the offsets; the store's own failures (RemoteStorageError) pass through.
    """
    with ThreadPoolExecutor(settings.fetch_ahead, thread_name_prefix="isotherm-fetch") as pool:
        fetched = _fetch_ahead(reads, storage, pool, settings)
        with closing(fetched):
            for read, blocks in groupby(fetched, key=lambda item: item[0]):
                for decoded in _decode(read, (b.result() for _, b in blocks), columns, settings):
                    yield read, decoded


def _fetch_ahead(
    reads: Sequence[SegmentRead],
    storage: RemoteStorageManager,
    pool: ThreadPoolExecutor,
    settings: ReadSettings,
) -> Generator[tuple[SegmentRead, Future[memoryview]], None, None]:
    under_way: deque[tuple[SegmentRead, Future[memoryview]]] = deque()
    try:
        for read in reads:
            positions = locate(read, storage)
            for start in range(positions.start, positions.end, settings.fetch_bytes):
                end = min(start + settings.fetch_bytes, positions.end)
                under_way.append((read, pool.submit(_fetch, read, storage, start, end)))
                if len(under_way) > settings.fetch_ahead:
                    yield under_way.popleft()
        while under_way:
            yield under_way.popleft()
    finally:
        for _, block in under_way:
            block.cancel()


def _fetch(
    read: SegmentRead, storage: RemoteStorageManager, start: Position, end: Position
) -> memoryview:
    with _named(read):
        return storage.fetch_log_segment(read.segment, start, end - 1)


def locate(read: SegmentRead, storage: RemoteStorageManager) -> PositionRange:
    """The bytes of a read; fetches the segment's offset index unless all of it is read."""
    size = read.segment.segment_size_in_bytes
    if read.is_whole_segment:
        return PositionRange(0, size)
    with _named(read):
        index = storage.fetch_index(read.segment, IndexType.OFFSET)
        check_offset_index(index, read.segment.start_offset)
    return positions_of(read, index)


def positions_of(read: SegmentRead, offset_index: bytes) -> PositionRange:
    """The bytes of a read, cut where the index says that batches begin: a few KiB more than its
    own, in which batches of its borders lie."""
    base, size = read.segment.start_offset, read.segment.segment_size_in_bytes
    start = lookup_offset(offset_index, base, read.start_offset).position
    if read.end_offset > read.segment.end_offset_inclusive:
        return PositionRange(start, size)

    def next_indexed(position: Position) -> Position:
        entry = fetch_upper_bound(offset_index, base, OffsetPosition(base, position), 1)
        return size if entry is None else entry.position

    # The next indexed batch is the first that can end beyond the last wanted offset: it is read.
    last = lookup_offset(offset_index, base, read.end_offset - 1)
    return PositionRange(start, next_indexed(next_indexed(last.position)))


def _decode(
    read: SegmentRead,
    blocks: Iterable[memoryview],
    columns: frozenset[str],
    settings: ReadSettings,
) -> Iterator[RecordColumns]:
    """Decode blocks that follow one another; batches may straddle their borders."""
    reached = read.segment.start_offset
    size_max = settings.batch_bytes
    if not columns & _COLUMNS_COPIED:
        # Nothing of the records ends up in the rows: a call may as well take all of a block.
        size_max = max(size_max, settings.fetch_bytes)
    for rest in _runs_of_batches(read, blocks):
        while len(rest):
            with _named(read):
                decoded = decode_columns(
                    rest,
                    offset_range=(read.start_offset, read.end_offset),
                    columns=columns,
                    aborted=read.aborted,
                    decoded_size_max=size_max,
                )
                if decoded.position_end == 0:
                    raise CorruptObjectError(
                        f"bytes end inside a record batch size_left={len(rest)}"
                    )
                _check_order(read, rest, decoded, reached)
            reached = decoded.next_offset
            rest = rest[decoded.position_end :]
            yield decoded


def _runs_of_batches(read: SegmentRead, blocks: Iterable[memoryview]) -> Iterator[memoryview]:
    """The same bytes cut where batches end; the last run may end inside of one.

    Only a batch that straddles a border is copied: it is a run of its own.
    """
    straddling = bytearray()
    for block in blocks:
        begun = block
        if straddling:
            missing = _size_missing(straddling + block[:LOG_OVERHEAD], len(straddling))
            straddling += block[:missing]
            if missing > len(block):
                continue
            yield memoryview(straddling)
            begun = block[missing:]
        with _named(read):
            _, end = read_batch_table(begun)
        if end:
            yield begun[:end]
        straddling = bytearray(begun[end:])
    if straddling:
        yield memoryview(straddling)


def _size_missing(head: bytes | bytearray, size: int) -> int:
    """Bytes that a batch lacks of which there are `size`; as many as tell, when it is damaged."""
    missing = int.from_bytes(head[8:LOG_OVERHEAD], signed=True) + LOG_OVERHEAD - size
    return missing if len(head) >= LOG_OVERHEAD and missing > 0 else LOG_OVERHEAD


def _check_order(
    read: SegmentRead, buffer: memoryview, decoded: RecordColumns, reached: Offset
) -> None:
    """Raise unless these batches go on from `reached` and stay inside the segment.

    No CRC covers the offset of a batch: a damaged one would be left out as out of range.
    """
    first = read_batch_header(buffer).base_offset
    end = read.segment.end_offset_inclusive + 1
    if first < reached or decoded.next_offset > end:
        raise CorruptObjectError(
            f"object holds the batches of other offsets base_offset={first}"
            f" next_offset={decoded.next_offset} expected={reached}-{end}"
        )


@contextmanager
def _named(read: SegmentRead) -> Iterator[None]:
    """Data that is lost or damaged becomes a CorruptObjectError that says which records."""
    try:
        yield
    except (RemoteResourceNotFoundError, CorruptDataError) as error:
        partition = read.segment.topic_id_partition
        problem = (
            f"records cannot be read from the tier topic={partition.topic}"
            f" partition={partition.partition} start_offset={read.start_offset}"
            f" end_offset={read.end_offset} segment={read.segment.segment_id} reason={str(error)!r}"
        )
        if isinstance(error, RemoteResourceNotFoundError):
            raise SegmentGoneError(problem, read) from error
        raise CorruptObjectError(problem) from error


def first_offset_not_before(
    pieces: Iterable[SegmentPiece], storage: RemoteStorageManager, timestamp_ms: TimestampMs
) -> Offset | None:
    """The first offset in `pieces` whose record, or marker, is not older than `timestamp_ms`.

    Fetches the indexes of the first segment that is young enough and the records from the place
    on that they point to; of later segments only when that one has no such record after all.
    """
    for piece in pieces:
        if piece.segment.max_timestamp_ms >= timestamp_ms:
            found = _first_young_offset(piece, storage, timestamp_ms)
            if found is not None:
                return found
    return None


def _first_young_offset(
    piece: SegmentPiece, storage: RemoteStorageManager, timestamp_ms: TimestampMs
) -> Offset | None:
    segment = piece.segment
    whole = SegmentRead(segment, piece.start_offset, piece.end_offset)
    with _named(whole):
        time_index = storage.fetch_index(segment, IndexType.TIMESTAMP)
        check_time_index(time_index, segment.start_offset)
    # Strictly older: an entry of the very time may stand for a later record of that time.
    entry = lookup_timestamp(time_index, segment.start_offset, timestamp_ms - 1)
    younger = first_younger_entry(time_index, segment.start_offset, timestamp_ms - 1)
    start = max(entry.offset, piece.start_offset)
    # Up to the offset of the next entry there is such a record, unless the piece begins behind it.
    cut = piece.end_offset if younger is None else min(younger.offset + 1, piece.end_offset)
    for read in (whole.of(start, cut), whole.of(max(start, cut), piece.end_offset)):
        found = _first_young_record(read, storage, timestamp_ms)
        if found is not None:
            return found
    return None


def _first_young_record(
    read: SegmentRead, storage: RemoteStorageManager, timestamp_ms: TimestampMs
) -> Offset | None:
    if read.start_offset >= read.end_offset:
        return None
    with closing(_batches(read, storage)) as batches:
        for header, batch in batches:
            if header.max_timestamp >= timestamp_ms and header.last_offset >= read.start_offset:
                offset = _young_offset_in(read, header, batch, timestamp_ms)
                if offset is not None:
                    return offset
    return None


def _batches(
    read: SegmentRead, storage: RemoteStorageManager
) -> Generator[tuple[BatchHeader, memoryview], None, None]:
    """The batches of a read that begin below its end, markers of transactions among them."""
    settings = ReadSettings(_LOOKUP_FETCH_BYTES, fetch_ahead=1)
    rest = memoryview(b"")
    with (
        ThreadPoolExecutor(settings.fetch_ahead, thread_name_prefix="isotherm-fetch") as pool,
        closing(_fetch_ahead([read], storage, pool, settings)) as fetched,
    ):
        for _, block in fetched:
            rest = memoryview(bytes(rest) + block.result())
            end = 0
            with _named(read):
                for position, header in iterate_batches(rest):
                    if header.base_offset >= read.end_offset:
                        return
                    end = position + header.size_in_bytes
                    yield header, rest[position:end]
            rest = rest[end:]


def _young_offset_in(
    read: SegmentRead, header: BatchHeader, batch: memoryview, timestamp_ms: TimestampMs
) -> Offset | None:
    """Markers count with their time, as they do for a Kafka broker that is asked for an offset."""
    if header.is_control:
        return header.base_offset
    with _named(read):
        columns = decode_columns(
            batch,
            offset_range=(read.start_offset, read.end_offset),
            columns=frozenset({"timestamp"}),
        )
    assert columns.timestamp_ms is not None
    young = (columns.timestamp_ms >= timestamp_ms).nonzero()[0]
    return int(columns.offset[young[0]]) if len(young) else None
