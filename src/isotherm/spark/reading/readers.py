"""Reads segments in a Spark task: fetch ranges ahead, verify, decode.

Memory per task is bounded, whatever the size of a segment: `fetch_ahead` + 1 blocks of
`fetch_bytes` in flight or waiting, one block in the decoder with the rest of a batch from the block
before, and the rows of that block.

Every planned byte range is read: an object that is missing, short or damaged raises
CorruptObjectError.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple

from isotherm.errors import (
    CorruptRecordError,
    UnreadableDataError,
)
from isotherm.record.batch import BatchHeader, read_batch_header
from isotherm.record.batch_header import SEQUENCE_MASK
from isotherm.record.batch_table import verify_crcs
from isotherm.record.columns import RecordColumns, decode_columns
from isotherm.remote.history.holes import Gaps
from isotherm.remote.segment_metadata import IndexType
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.remote.storage.segment_blocks import (
    block_ranges,
    fetch_ahead,
    segment_blocks,
)
from isotherm.segment.offset_index import (
    OffsetPosition,
    check_offset_index,
    fetch_upper_bound,
    lookup_offset,
)
from isotherm.segment.producer_snapshot import ProducerSnapshotEntry, read_producer_snapshot
from isotherm.spark.plan.planning import ProducersAt, SegmentPiece, SegmentRead
from isotherm.spark.reading.proven_batches import (
    MissingOffsetsError,
    PositionRange,
    ProvenRun,
    proven_runs,
)
from isotherm.spark.reading.read_errors import (
    SegmentReadError,
    named,
)
from isotherm.spark.reading.transaction_proof import (
    TransactionProof,
    check_begun,
    check_open,
    drop_ended,
)
from isotherm.types import Offset, Position, ProducerId

_logger = logging.getLogger(__name__)

# The size of a GET of a look-up by time. The time index leads to within some KiB of the record, so
# a whole block of `fetch_bytes` would be fetched for nothing.
_LOOKUP_FETCH_BYTES = 256 * 1024
# The columns whose values the decoder copies out of the batches; the others are numbers.
_COLUMNS_COPIED = frozenset({"key", "value", "headers"})


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """`fetch_bytes` is the size of a ranged GET, `batch_bytes` that of the records that become one
    batch of rows.

    `fetch_ahead` is the number of ranges that are fetched before they are needed. If the query
    reads no key, value or headers, one batch of rows covers a whole range. `gaps` says whether
    offsets may have no record.
    """

    fetch_bytes: int = 8 * 1024 * 1024
    fetch_ahead: int = 3
    batch_bytes: int = 2 * 1024 * 1024
    gaps: Gaps = Gaps.REFUSED


# A proof looks for markers and first offsets. Gaps are permitted because it needs no other records.
_PROOF_SETTINGS = ReadSettings(_LOOKUP_FETCH_BYTES, gaps=Gaps.PERMITTED)


class LocatedRead(NamedTuple):
    read: SegmentRead
    positions: PositionRange


class _Block(NamedTuple):
    """Bytes [start, end) of the `.log` of a read's segment."""

    of: LocatedRead
    start: Position
    end: Position


def read_segments(
    reads: Sequence[SegmentRead],
    storage: RemoteStorageManager,
    columns: frozenset[str],
    *,
    settings: ReadSettings,
) -> Generator[tuple[SegmentRead, RecordColumns], None, None]:
    """Yield the decoded records of `reads` in order, and fetch ahead across segments.

    Offsets outside a read's range are left out. Raises CorruptObjectError, which names the object
    and the offsets. Failures of the store (RemoteStorageError) pass through.
    """
    with (
        ThreadPoolExecutor(settings.fetch_ahead, thread_name_prefix="isotherm-fetch") as pool,
        # Closed before the pool: fetches that have not begun are cancelled, and the pool waits for
        # the others only.
        closing(_fetched(reads, storage, pool, settings)) as fetched,
    ):
        for located, blocks in groupby(fetched, key=lambda item: item[0].of):
            results = (block.result() for _, block in blocks)
            for decoded in _decode(located, storage, results, columns, settings):
                yield located.read, decoded


def _fetched(
    reads: Iterable[SegmentRead],
    storage: RemoteStorageManager,
    pool: ThreadPoolExecutor,
    settings: ReadSettings,
) -> Generator[tuple[_Block, Future[memoryview]], None, None]:
    def fetch(block: _Block) -> memoryview:
        if block.start == block.end:
            return memoryview(b"")
        with named(block.of.read):
            return storage.fetch_log_segment(block.of.read.segment, block.start, block.end - 1)

    blocks = _blocks(reads, storage, settings.fetch_bytes)
    return fetch_ahead(blocks, fetch, pool, settings.fetch_ahead)


def _blocks(
    reads: Iterable[SegmentRead], storage: RemoteStorageManager, fetch_bytes: int
) -> Iterator[_Block]:
    for read in reads:
        located = LocatedRead(read, locate(read, storage))
        start, end = located.positions.start, located.positions.end
        if start == end:
            # Without an empty block the decoder would not see this read, nor its missing offsets.
            yield _Block(located, start, end)
        for position, block_end in block_ranges(start, end, fetch_bytes):
            yield _Block(located, position, block_end)


def locate(read: SegmentRead, storage: RemoteStorageManager) -> PositionRange:
    """The byte range of a read, by the segment's offset index. A read of the whole segment fetches
    no index.

    The index is a hint. If it cannot be used, for whatever reason, the segment is read from its
    start: if it is deleted, the log shows that.
    """
    size = read.segment.segment_size_in_bytes
    if not size:
        _check_names_none(read, storage)
    if not size or read.is_whole_segment:
        return PositionRange(0, size)
    with named(read):
        try:
            index = storage.fetch_index(read.segment, IndexType.OFFSET)
            check_offset_index(index, read.segment.start_offset)
            located = positions_of(read, index)
        except UnreadableDataError as error:
            _logger.warning("read without its offset index: %s", error)
            return PositionRange(0, size)
    # An index has no CRC: its positions may lie anywhere.
    is_inside = 0 <= located.start < located.end <= size
    return located if is_inside else PositionRange(0, size)


def _check_names_none(read: SegmentRead, storage: RemoteStorageManager) -> None:
    """Raise SegmentReadError if a segment of 0 bytes has index entries: it had records. The size of
    a listed segment is that of its object, which may be cut off."""
    with named(read):
        if any(
            len(storage.fetch_index(read.segment, kind))
            for kind in (IndexType.OFFSET, IndexType.TIMESTAMP)
        ):
            raise MissingOffsetsError(
                "object is empty and the segment's indexes are not"
                f" first={read.start_offset} last={read.end_offset - 1}",
                (read.start_offset, read.end_offset),
            )


def positions_of(read: SegmentRead, offset_index: bytes) -> PositionRange:
    """The byte range of a read, between two batch starts in the index. It is a few KiB larger than
    the batches of the read."""
    base, size = read.segment.start_offset, read.segment.segment_size_in_bytes
    named, start = lookup_offset(offset_index, base, read.start_offset)
    if read.end_offset > read.segment.end_offset_inclusive:
        return PositionRange(start, size, named)

    def next_indexed(position: Position) -> Position:
        entry = fetch_upper_bound(offset_index, base, OffsetPosition(base, position), 1)
        return size if entry is None else entry.position

    # The batch before the next index entry may end beyond the last wanted offset: read up to it.
    last = lookup_offset(offset_index, base, read.end_offset - 1)
    return PositionRange(start, next_indexed(next_indexed(last.position)), named)


def _decode(
    located: LocatedRead,
    storage: RemoteStorageManager,
    blocks: Iterable[memoryview],
    columns: frozenset[str],
    settings: ReadSettings,
) -> Iterator[RecordColumns]:
    """Decode consecutive blocks. A batch may lie across two of them."""
    read = located.read
    proof = None if read.aborted is None else TransactionProof(read, settings.gaps)
    reached = 0
    size_max = settings.batch_bytes
    if not columns & _COLUMNS_COPIED:
        # The rows are numbers and need little memory, so one call can take a whole block.
        size_max = max(size_max, settings.fetch_bytes)
    with named(read):
        for run in _proven(located, storage, blocks, settings):
            rest = run.data
            reached = run.position + len(rest)
            # Before the rows of this run: a contradiction in it withholds them.
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
            try:
                _prove_outcomes(proof, read, storage, reached, settings)
            except SegmentReadError as error:
                # The proof has reads of its own, which the caller does not know.
                error.read = read
                raise


def _prove_outcomes(
    proof: TransactionProof,
    read: SegmentRead,
    storage: RemoteStorageManager,
    reached: Position,
    settings: ReadSettings,
) -> None:
    """Read on from `reached`, inside the piece, up to the markers of the transactions that are open
    where the read ends. Then check the transactions that began before the read.

    The cheap evidence comes first: batches that are read already, then a few small GETs, and the
    producer snapshots only if the batches leave a transaction undecided.
    """
    assert read.beside is not None
    piece_start, piece_end, before = read.beside

    @functools.cache
    def states_before() -> list[ProducerSnapshotEntry]:
        return [] if before is None else producer_states(before, storage)

    begins_piece = read.start_offset <= piece_start
    if begins_piece and before is not None and proof.next_offset < piece_end:
        # Other tasks read the records of these transactions in earlier segments.
        proof.expect_ends(open_transactions(states_before()))
    if proof.has_undecided() and proof.next_offset < piece_end:
        rest = read.of(proof.next_offset, piece_end)
        # An empty range: nothing is fetched yet, and the batches are fetched on from `reached`.
        ahead = LocatedRead(rest, PositionRange(reached, reached))
        small = replace(settings, fetch_bytes=_LOOKUP_FETCH_BYTES)
        for run in _proven(ahead, storage, (), small):
            verify_crcs(run.data, run.table)
            proof.follow(run.data, run.table)
            if not proof.has_undecided():
                break
    # Only the end of a whole segment has a producer snapshot (docs/decisions/0085).
    if proof.has_undecided() and piece_end > read.segment.end_offset_inclusive:
        at_end = producer_states(ProducersAt(read.segment), storage)
        proof.check_undecided(open_transactions(at_end))
    _look_behind(proof, read, storage, settings)
    if proof.data.begun_before is not None and before is not None:
        proof.check(proof.data.fault_after(states_before()))
    if begins_piece and before is not None and proof.data.has_transactions_beside:
        proof.check(proof.data.fault_of_open(states_before()))
    proof.finish()
    if proof.needs_past and before is not None:
        proof.check_past(open_transactions(states_before()))


def _look_behind(
    proof: TransactionProof,
    read: SegmentRead,
    storage: RemoteStorageManager,
    settings: ReadSettings,
) -> None:
    """Read the batches before the read, inside its piece, for the starts of aborted transactions
    that the read contains data of."""
    assert read.beside is not None
    first = proof.data.begun_before
    start = read.beside.piece_start if first is None else max(first, read.beside.piece_start)
    if first is not None and start < read.start_offset:
        behind = proof.data.behind()
        back = read.of(start, read.start_offset)
        located = locate(back, storage)
        ahead = LocatedRead(back, replace(located, end=located.start))
        small = replace(settings, fetch_bytes=_LOOKUP_FETCH_BYTES)
        for run in _proven(ahead, storage, (), small):
            verify_crcs(run.data, run.table)
            is_before = run.table["base_offset"] < proof.start_offset
            proof.check(behind.fault(run.data, run.table[is_before]))
        proof.check(proof.data.fault_behind(behind))


def prove_committed(
    undecided: Mapping[ProducerId, Offset],
    pieces: Iterable[SegmentPiece],
    storage: RemoteStorageManager,
) -> None:
    """Check that `pieces` abort none of the `undecided` transactions (first offsets by producer),
    which no index lists as aborted. Reads up to their markers. Raises WrongTransactionsError, and
    SegmentReadError as a read does."""
    left = dict(undecided)
    for piece in pieces:
        if not left:
            return
        read = SegmentRead(piece.segment, piece.start_offset, piece.end_offset)
        with named(read):
            # Each small GET is made only while a transaction is undecided.
            for run in runs_of_proof(read, storage, PositionRange(0, 0)):
                drop_ended(left, run.data, run.table)
                if not left:
                    return


def prove_open(
    expected_open: Mapping[ProducerId, Offset],
    last: SegmentPiece,
    before: ProducersAt | None,
    storage: RemoteStorageManager,
) -> None:
    """Prove that the transactions of `expected_open` (first offsets by producer) are open where
    `last` ends.

    Reads the piece from the first of these offsets on. For transactions that began before the piece
    it reads the producers at its start, `before`. Raises WrongTransactionsError, and
    SegmentReadError as a read does.
    """
    if not expected_open:
        return
    start = max(last.start_offset, min(expected_open.values()))
    read = SegmentRead(last.segment, start, last.end_offset)
    begun: dict[ProducerId, Offset] = {}
    located = locate(read, storage)
    with named(read):
        for run in runs_of_proof(read, storage, located):
            begun |= {p: expected_open[p] for p in check_open(expected_open, run.data, run.table)}
        here = {p: first for p, first in expected_open.items() if first >= last.start_offset}
        check_begun(here, begun)
    earlier = {p: first for p, first in expected_open.items() if p not in here}
    if earlier and before is not None:
        with named(read):
            check_begun(earlier, open_transactions(producer_states(before, storage)))


def producer_states(at: ProducersAt, storage: RemoteStorageManager) -> list[ProducerSnapshotEntry]:
    """The producers at an offset, from a snapshot and the batches after it.

    Batches need to be read only where segments overlap, so that no snapshot was taken at the offset
    itself.
    """
    states: dict[ProducerId, ProducerSnapshotEntry] = {}
    if at.snapshot_of is not None:
        snapshot = storage.fetch_index(at.snapshot_of, IndexType.PRODUCER_SNAPSHOT)
        states = {entry.producer_id: entry for entry in read_producer_snapshot(snapshot)}
    for piece in at.since:
        read = SegmentRead(piece.segment, piece.start_offset, piece.end_offset)
        with closing(batches_of(read, storage, Gaps.PERMITTED)) as batches:
            for header, _ in batches:
                # The located bytes may begin with batches before the piece.
                if header.producer_id >= 0 and header.base_offset >= piece.start_offset:
                    states[header.producer_id] = _after(states.get(header.producer_id), header)
    return list(states.values())


def _after(state: ProducerSnapshotEntry | None, header: BatchHeader) -> ProducerSnapshotEntry:
    """The state of a producer after one more of its batches."""
    first = -1 if state is None else state.current_transaction_first_offset
    # A marker ends the transaction, and has no sequence (Kafka
    # ProducerAppendInfo.appendEndTxnMarker).
    if header.is_control:
        last_sequence, first = -1 if state is None else state.last_sequence, -1
    else:
        last_sequence = (header.base_sequence + header.last_offset_delta) & SEQUENCE_MASK
        if header.is_transactional and first < 0:
            first = header.base_offset
    return ProducerSnapshotEntry(
        header.producer_id,
        header.producer_epoch,
        last_sequence,
        header.last_offset,
        header.last_offset_delta,
        header.max_timestamp,
        coordinator_epoch=-1,
        current_transaction_first_offset=first,
    )


def open_transactions(states: Iterable[ProducerSnapshotEntry]) -> dict[ProducerId, Offset]:
    """The first offset of each open transaction, by producer."""
    return {
        producer.producer_id: producer.current_transaction_first_offset
        for producer in states
        if producer.current_transaction_first_offset >= 0
    }


def runs_of_proof(
    read: SegmentRead, storage: RemoteStorageManager, located: PositionRange
) -> Iterator[ProvenRun]:
    """The batches of a read from `located` on, with correct CRCs. Nothing is fetched ahead."""
    ahead = LocatedRead(read, replace(located, end=located.start))
    for run in _proven(ahead, storage, (), _PROOF_SETTINGS):
        verify_crcs(run.data, run.table)
        yield run


def _proven(
    located: LocatedRead,
    storage: RemoteStorageManager,
    blocks: Iterable[memoryview],
    settings: ReadSettings,
) -> Iterator[ProvenRun]:
    def fetch_on(position: Position) -> Iterator[memoryview]:
        with named(located.read):
            segment = located.read.segment
            yield from segment_blocks(storage, segment, settings.fetch_bytes, start=position)

    return proven_runs(located.read, located.positions, blocks, fetch_on, settings.gaps)


def _check_offsets_rise(decoded: RecordColumns) -> None:
    """Raise CorruptRecordError unless the offsets rise. The chain of batches has shown that a batch
    has as many records as offsets, so rising offsets mean that every offset has its record."""
    offsets = decoded.offset
    if (offsets[1:] <= offsets[:-1]).any():
        raise CorruptRecordError(
            f"offsets of records do not rise next_offset={decoded.next_offset}"
        )


def batches_of(
    read: SegmentRead, storage: RemoteStorageManager, gaps: Gaps
) -> Generator[tuple[BatchHeader, memoryview], None, None]:
    """The batches of a read that begin below its end, control batches included."""
    settings = ReadSettings(_LOOKUP_FETCH_BYTES, fetch_ahead=1, gaps=gaps)
    with (
        ThreadPoolExecutor(settings.fetch_ahead, thread_name_prefix="isotherm-fetch") as pool,
        closing(_fetched([read], storage, pool, settings)) as fetched,
        named(read),
    ):
        for located, blocks in groupby(fetched, key=lambda item: item[0].of):
            results = (block.result() for _, block in blocks)
            for run in _proven(located, storage, results, settings):
                verify_crcs(run.data, run.table)
                # A look-up skips a batch by the largest timestamp in its header. The decoder
                # compares that with the records, so a header that claims less cannot hide a record.
                decode_columns(run.data, columns=frozenset({"timestamp"}), verify_crc=False)
                for position, size in run.table[["position", "size"]].tolist():
                    header = read_batch_header(run.data, position)
                    if header.base_offset >= read.end_offset:
                        return
                    yield header, run.data[position : position + size]
