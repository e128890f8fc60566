"""Reads segments in a Spark task: fetch ranges ahead, verify, decode.

Memory per task is bounded: `fetch_ahead` + 1 blocks of `fetch_bytes` in flight or waiting, one block
being decoded together with the part of a batch left over from the block before, and the rows decoded
from it. Nothing of a segment is kept longer, so its size does not matter.

Every planned byte range is read: an object that is missing, short or damaged raises
CorruptObjectError.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

from isotherm.errors import (
    CorruptDataError,
    CorruptIndexError,
    CorruptObjectError,
    CorruptRecordError,
    RemoteResourceNotFoundError,
)
from isotherm.record.batch import BatchHeader, read_batch_header
from isotherm.record.batch_table import verify_crcs
from isotherm.record.columns import RecordColumns, decode_columns
from isotherm.remote.history.gaps import Gaps
from isotherm.remote.segment_metadata import IndexType, RemoteLogSegmentMetadata
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.segment.offset_index import (
    OffsetPosition,
    check_offset_index,
    fetch_upper_bound,
    lookup_offset,
)
from isotherm.segment.producer_snapshot import read_producer_snapshot
from isotherm.segment.time_index import TimestampOffset, read_time_index
from isotherm.spark.plan.planning import EpochClaim, SegmentPiece, SegmentRead
from isotherm.spark.reading.proven_batches import (
    MissingOffsetsError,
    PositionRange,
    ProvenRun,
    proven_runs,
)
from isotherm.spark.reading.transaction_proof import (
    TransactionMismatchError,
    TransactionProof,
    check_begun,
    check_open,
    drop_ended,
)
from isotherm.types import NO_TIMESTAMP, Offset, Position, ProducerId, TimestampMs

_logger = logging.getLogger(__name__)

# To find a record by its time: the time index leaves some KiB to look through.
_LOOKUP_FETCH_BYTES = 256 * 1024
_GAPS_HINT = "hint='failOnOffsetGaps=false reads topics that were compacted'"
_UNCOMMITTED_HINT = "hint='isolationLevel=read_uncommitted reads without'"
_COLUMNS_COPIED = frozenset({"key", "value", "headers"})


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """Sizes in bytes: of a ranged GET, and of the records that become one batch of rows.

    `fetch_ahead` is the number of ranges that are fetched before they are needed. Where no column
    holds a part of the records, one batch of rows stands for a whole range. `gaps` says whether
    offsets may have no record.
    """

    fetch_bytes: int = 8 * 1024 * 1024
    fetch_ahead: int = 3
    batch_bytes: int = 2 * 1024 * 1024
    gaps: Gaps = Gaps.REFUSED


class LocatedRead(NamedTuple):
    read: SegmentRead
    positions: PositionRange


class SegmentReadError(CorruptObjectError):
    """Something is wrong with the segment of `read`, which the message names."""

    def __init__(self, message: str, read: SegmentRead) -> None:
        super().__init__(message)
        self.read = read


class SegmentLacksOffsetsError(SegmentReadError):
    """The segment claims to hold the offsets `missing` [first, end), and its object does not."""

    def __init__(self, message: str, read: SegmentRead, missing: tuple[Offset, Offset]) -> None:
        super().__init__(message, read)
        self.missing = missing


class WrongTransactionsError(SegmentReadError):
    """The segment's markers contradict its transaction index. Rows that were given may be of
    aborted transactions: to leave out the rest would not mend it."""


class SegmentGoneError(SegmentReadError):
    """An object of the segment does not exist."""


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
            for located, blocks in groupby(fetched, key=lambda item: item[0]):
                results = (block.result() for _, block in blocks)
                for decoded in _decode(located, storage, results, columns, settings):
                    yield located.read, decoded


def _fetch_ahead(
    reads: Sequence[SegmentRead],
    storage: RemoteStorageManager,
    pool: ThreadPoolExecutor,
    settings: ReadSettings,
) -> Generator[tuple[LocatedRead, Future[memoryview]], None, None]:
    under_way: deque[tuple[LocatedRead, Future[memoryview]]] = deque()
    try:
        for read in reads:
            positions = locate(read, storage)
            located = LocatedRead(read, positions)
            if positions.start == positions.end:
                under_way.append((located, _nothing()))
            for start in range(positions.start, positions.end, settings.fetch_bytes):
                end = min(start + settings.fetch_bytes, positions.end)
                block = pool.submit(_fetch, read, storage, start, end)
                under_way.append((located, block))
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


def _nothing() -> Future[memoryview]:
    """The empty block of a segment without bytes, so that its missing offsets are checked too."""
    empty: Future[memoryview] = Future()
    empty.set_result(memoryview(b""))
    return empty


def _fetch_on(
    read: SegmentRead, storage: RemoteStorageManager, start: Position, fetch_bytes: int
) -> Iterator[memoryview]:
    size = read.segment.segment_size_in_bytes
    for position in range(start, size, fetch_bytes):
        yield _fetch(read, storage, position, min(position + fetch_bytes, size))


def locate(read: SegmentRead, storage: RemoteStorageManager) -> PositionRange:
    """Where the bytes of a read may lie; fetches the segment's offset index unless all is read.

    An index that is damaged is no loss: the segment is then read from its start.
    """
    size = read.segment.segment_size_in_bytes
    if read.is_whole_segment:
        return PositionRange(0, size)
    with _named(read):
        try:
            index = storage.fetch_index(read.segment, IndexType.OFFSET)
            check_offset_index(index, read.segment.start_offset)
            located = positions_of(read, index)
        except CorruptDataError as error:
            _logger.warning("read without its offset index: %s", error)
            return PositionRange(0, size)
    is_inside = 0 <= located.start < located.end <= size
    return located if is_inside else PositionRange(0, size)


def positions_of(read: SegmentRead, offset_index: bytes) -> PositionRange:
    """The bytes of a read, cut where the index says that batches begin: a few KiB more than its
    own, in which batches of its borders lie. Whatever an index that is damaged says."""
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
    located: LocatedRead,
    storage: RemoteStorageManager,
    blocks: Iterable[memoryview],
    columns: frozenset[str],
    settings: ReadSettings,
) -> Iterator[RecordColumns]:
    """Decode blocks that follow one another; batches may straddle their borders."""
    read = located.read
    proof = None if read.aborted is None else TransactionProof(read, settings.gaps)
    reached = 0
    size_max = settings.batch_bytes
    if not columns & _COLUMNS_COPIED:
        # Nothing of the records ends up in the rows: a call may as well take all of a block.
        size_max = max(size_max, settings.fetch_bytes)
    with _named(read):
        for run in _proven(located, storage, blocks, settings):
            rest = run.data
            reached = run.position + len(rest)
            if proof is not None:
                proof.follow(rest, run.table)
            while len(rest):
                decoded = decode_columns(
                    rest,
                    offset_range=(read.start_offset, read.end_offset),
                    columns=columns,
                    aborted=read.aborted or (),
                    decoded_size_max=size_max,
                )
                _check_offsets_rise(decoded)
                rest = rest[decoded.position_end :]
                yield decoded
        if proof is not None:
            _prove_outcomes(proof, read, storage, reached, settings)


def _prove_outcomes(
    proof: TransactionProof,
    read: SegmentRead,
    storage: RemoteStorageManager,
    reached: Position,
    settings: ReadSettings,
) -> None:
    """Read on from `reached`, inside the segment, for the markers of transactions that are open
    where the read ends; and check those that began before the segment."""
    assert read.beside is not None
    piece_end, before = read.beside
    begins_segment = read.start_offset <= read.segment.start_offset
    if begins_segment and before is not None and proof.next_offset < piece_end:
        # Other tasks read the records of these transactions in earlier segments.
        proof.expect_ends(open_transactions(storage, before))
    if proof.has_undecided() and proof.next_offset < piece_end:
        rest = read.of(proof.next_offset, piece_end)
        ahead = LocatedRead(rest, PositionRange(reached, reached))
        small = replace(settings, fetch_bytes=_LOOKUP_FETCH_BYTES)
        for run in _proven(ahead, storage, (), small):
            verify_crcs(run.data, run.table)
            proof.follow(run.data, run.table)
            if not proof.has_undecided():
                break
    proof.finish()
    if proof.needs_past and before is not None:
        proof.check_past(open_transactions(storage, before))


def prove_committed(
    undecided: Mapping[ProducerId, Offset],
    pieces: Iterable[SegmentPiece],
    storage: RemoteStorageManager,
    gaps: Gaps,
) -> None:
    """That the transactions of `undecided` (first offsets by producer), which no index lists as
    aborted, are not aborted in `pieces`, those that follow. Reads up to their markers; raises
    WrongTransactionsError, and SegmentReadError as a read does."""
    left = dict(undecided)
    for piece in pieces:
        if not left:
            return
        read = SegmentRead(piece.segment, piece.start_offset, piece.end_offset)
        settings = ReadSettings(_LOOKUP_FETCH_BYTES, gaps=gaps)
        with _named(read):
            located = LocatedRead(read, PositionRange(0, 0))
            for run in _proven(located, storage, (), settings):
                verify_crcs(run.data, run.table)
                drop_ended(left, run.data, run.table)
                if not left:
                    return


def prove_open(
    expected_open: Mapping[ProducerId, Offset],
    last: SegmentPiece,
    before: RemoteLogSegmentMetadata | None,
    storage: RemoteStorageManager,
    gaps: Gaps,
) -> None:
    """Prove that the transactions of `expected_open` (first offsets by producer) are open where `last` ends.

    Reads the segment from the first of them on, and the snapshot of the segment `before` for those
    that began earlier; WrongTransactionsError, and SegmentReadError as a read does.
    """
    if not expected_open:
        return
    start = max(last.start_offset, min(expected_open.values()))
    read = SegmentRead(last.segment, start, last.end_offset)
    begun: dict[ProducerId, Offset] = {}
    settings = ReadSettings(_LOOKUP_FETCH_BYTES, gaps=gaps)
    located = locate(read, storage)
    with _named(read):
        ahead = LocatedRead(read, PositionRange(located.start, located.start))
        for run in _proven(ahead, storage, (), settings):
            verify_crcs(run.data, run.table)
            begun |= {p: expected_open[p] for p in check_open(expected_open, run.data, run.table)}
        here = {
            p: first for p, first in expected_open.items() if first >= last.segment.start_offset
        }
        check_begun(here, begun)
    earlier = {p: first for p, first in expected_open.items() if p not in here}
    if earlier and before is not None:
        with _named(read):
            check_begun(earlier, open_transactions(storage, before))


def open_transactions(
    storage: RemoteStorageManager, segment: RemoteLogSegmentMetadata
) -> dict[ProducerId, Offset]:
    """The transactions open where a segment ends, as its snapshot of producers says: their first
    offsets, by producer."""
    snapshot = storage.fetch_index(segment, IndexType.PRODUCER_SNAPSHOT)
    return {
        producer.producer_id: producer.current_transaction_first_offset
        for producer in read_producer_snapshot(snapshot)
        if producer.current_transaction_first_offset >= 0
    }


def _proven(
    located: LocatedRead,
    storage: RemoteStorageManager,
    blocks: Iterable[memoryview],
    settings: ReadSettings,
) -> Iterator[ProvenRun]:
    def fetch_on(position: Position) -> Iterator[memoryview]:
        return _fetch_on(located.read, storage, position, settings.fetch_bytes)

    return proven_runs(located.read, located.positions, blocks, fetch_on, settings.gaps)


def _check_offsets_rise(decoded: RecordColumns) -> None:
    """With as many records as offsets in each batch, that is: every offset has its record."""
    offsets = decoded.offset
    if (offsets[1:] <= offsets[:-1]).any():
        raise CorruptRecordError(
            f"offsets of records do not rise next_offset={decoded.next_offset}"
        )


@contextmanager
def _named(read: SegmentRead) -> Iterator[None]:
    """Data that is lost or damaged becomes a CorruptObjectError that says which records."""
    try:
        yield
    except SegmentReadError:
        raise
    except (RemoteResourceNotFoundError, CorruptDataError) as error:
        partition = read.segment.topic_id_partition
        problem = (
            f"records cannot be read from the tier topic={partition.topic}"
            f" partition={partition.partition} start_offset={read.start_offset}"
            f" end_offset={read.end_offset} segment={read.segment.segment_id} reason={str(error)!r}"
        )
        if isinstance(error, RemoteResourceNotFoundError):
            raise SegmentGoneError(problem, read) from error
        if isinstance(error, MissingOffsetsError):
            raise SegmentLacksOffsetsError(
                f"{problem} {_GAPS_HINT}", read, error.missing
            ) from error
        if isinstance(error, TransactionMismatchError):
            raise WrongTransactionsError(f"{problem} {_UNCOMMITTED_HINT}", read) from error
        raise SegmentReadError(problem, read) from error


def prove_epoch(claim: EpochClaim, storage: RemoteStorageManager) -> None:
    """SegmentReadError when the batch of the claim's offset is of another leader epoch."""
    read = SegmentRead(claim.segment, claim.offset, claim.offset + 1)
    with closing(_batches(read, storage, Gaps.PERMITTED)) as batches:
        # Each one was held against the epochs of the segment on its way here.
        next(batches, None)


def first_offset_not_before(
    pieces: Iterable[SegmentPiece],
    storage: RemoteStorageManager,
    timestamp_ms: TimestampMs,
    *,
    gaps: Gaps = Gaps.REFUSED,
) -> Offset | None:
    """The first offset in `pieces` whose record, or marker, is not older than `timestamp_ms`.

    Fetches the indexes of the first segment that is young enough and the records from the place
    on that they point to; of later segments only when that one has no such record after all. What
    is read is proved as the records of a query are; SegmentReadError as there.
    """
    passed_over: SegmentPiece | None = None
    for piece in (*pieces, None):
        if piece is not None and piece.segment.max_timestamp_ms < timestamp_ms:
            passed_over = piece
            continue
        # The last one that is too old, as the metadata say, is asked itself: they may be wrong.
        for young in filter(None, (passed_over, piece)):
            whole = SegmentRead(young.segment, young.start_offset, young.end_offset)
            if young is passed_over and not _may_be_young(whole, storage, timestamp_ms):
                continue
            found = _first_young_offset(whole, storage, timestamp_ms, gaps)
            if found is not None:
                return found
        passed_over = None
    return None


def _may_be_young(
    whole: SegmentRead, storage: RemoteStorageManager, timestamp_ms: TimestampMs
) -> bool:
    entries = _time_entries(whole, storage)
    return not entries or entries[-1].timestamp_ms >= timestamp_ms


class _WrongEntryError(CorruptIndexError):
    """An entry of a time index does not say what is there."""


def _first_young_offset(
    whole: SegmentRead, storage: RemoteStorageManager, timestamp_ms: TimestampMs, gaps: Gaps
) -> Offset | None:
    segment = whole.segment
    entries = [TimestampOffset(NO_TIMESTAMP, segment.start_offset), *_time_entries(whole, storage)]
    # Strictly older: an entry of the very time may stand for a later record of that time.
    count = bisect_left(entries, timestamp_ms, key=lambda entry: entry.timestamp_ms)
    # An entry that is wrong and not found out is so by little: the one before it is right then.
    hints = entries[:count][-2:]
    start = max(whole.start_offset, hints[0].offset if hints else 0)
    # Up to the offset of the next entry there is such a record, unless the piece begins behind it.
    end = whole.end_offset
    cut = max(start, min(entries[count].offset + 1, end) if count < len(entries) else end)
    try:
        relied_on = deque(hints if start > whole.start_offset else ())
        found = _first_young_record(whole.of(start, cut), storage, timestamp_ms, gaps, relied_on)
    except _WrongEntryError as error:
        _logger.warning("looked up without the time index: %s", error)
        return _first_young_record(whole, storage, timestamp_ms, gaps)
    if found is None:
        found = _first_young_record(whole.of(cut, end), storage, timestamp_ms, gaps)
    return found


def _time_entries(whole: SegmentRead, storage: RemoteStorageManager) -> list[TimestampOffset]:
    """None of an index that is damaged: the segment is then looked through from its start."""
    with _named(whole):
        try:
            index = storage.fetch_index(whole.segment, IndexType.TIMESTAMP)
            return read_time_index(index, whole.segment.start_offset)
        except CorruptDataError as error:
            _logger.warning("looked up without the time index: %s", error)
            return []


def _first_young_record(
    read: SegmentRead,
    storage: RemoteStorageManager,
    timestamp_ms: TimestampMs,
    gaps: Gaps,
    relied_on: deque[TimestampOffset] | None = None,
) -> Offset | None:
    """`relied_on` are entries of the time index, ascending, that vouch for what lies before the
    read; _WrongEntryError when one is not what it says, or is not met in the read."""
    if read.start_offset >= read.end_offset:
        _check_all_met(relied_on, read)
        return None
    with closing(_batches(read, storage, gaps)) as batches:
        for header, batch in batches:
            while relied_on and relied_on[0].offset <= header.last_offset:
                _check_entry(relied_on.popleft(), header)
            if header.max_timestamp >= timestamp_ms and header.last_offset >= read.start_offset:
                offset = _young_offset_in(read, header, batch, timestamp_ms)
                if offset is not None and relied_on:
                    _check_entry(relied_on.popleft(), header)
                if offset is not None:
                    return offset
    _check_all_met(relied_on, read)
    return None


def _check_all_met(relied_on: deque[TimestampOffset] | None, read: SegmentRead) -> None:
    if relied_on:
        raise _WrongEntryError(
            f"time index entry leads beyond what is looked through offset={relied_on[0].offset}"
            f" end_offset={read.end_offset}"
        )


def _check_entry(entry: TimestampOffset, header: BatchHeader) -> None:
    """An entry names the largest timestamp so far, and an offset of the batch that has it."""
    is_there = header.base_offset <= entry.offset <= header.last_offset
    if not is_there or header.max_timestamp != entry.timestamp_ms:
        raise _WrongEntryError(
            f"time index entry leads to no batch of its time offset={entry.offset}"
            f" timestamp_ms={entry.timestamp_ms} batch={header.base_offset}-{header.last_offset}"
            f" batch_timestamp_ms={header.max_timestamp}"
        )


def _batches(
    read: SegmentRead, storage: RemoteStorageManager, gaps: Gaps
) -> Generator[tuple[BatchHeader, memoryview], None, None]:
    """The batches of a read that begin below its end, markers of transactions among them."""
    settings = ReadSettings(_LOOKUP_FETCH_BYTES, fetch_ahead=1, gaps=gaps)
    with (
        ThreadPoolExecutor(settings.fetch_ahead, thread_name_prefix="isotherm-fetch") as pool,
        closing(_fetch_ahead([read], storage, pool, settings)) as fetched,
        _named(read),
    ):
        for located, blocks in groupby(fetched, key=lambda item: item[0]):
            results = (block.result() for _, block in blocks)
            for run in _proven(located, storage, results, settings):
                verify_crcs(run.data, run.table)
                for position, size in run.table[["position", "size"]].tolist():
                    header = read_batch_header(run.data, position)
                    if header.base_offset >= read.end_offset:
                        return
                    yield header, run.data[position : position + size]


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
