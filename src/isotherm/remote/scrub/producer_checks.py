"""Checks a segment's transaction index and producer snapshot against its batches. Pure.

A segment has the producer snapshot at the offset after its end. The snapshot of the segment before
has the transactions that are open where this one begins. With it, this segment's index and snapshot
follow from its batches for every producer that writes in it. Without it, as at the start of a
history, the entries of index and snapshot for earlier transactions are accepted. The work is by
columns, with a row per transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from isotherm.errors import CorruptDataError
from isotherm.record.batch_header import TRANSACTIONAL_FLAG
from isotherm.record.control import ControlRecordType
from isotherm.record.control_table import NO_MARKER
from isotherm.remote.history.transaction_data import TransactionSpans, next_sequences
from isotherm.remote.scrub.findings import FindingKind, Problem
from isotherm.remote.scrub.log_batches import LogBatches
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.segment.producer_snapshot import ProducerSnapshotEntry, read_producer_snapshot
from isotherm.segment.transaction_index import AbortedTransaction, read_transaction_index
from isotherm.types import NO_COORDINATOR_EPOCH, UNKNOWN_OFFSET, Offset, ProducerId

if TYPE_CHECKING:
    import numpy.typing as npt

    from isotherm.remote.scrub.log_batches import Rows

_PROBLEMS_MAX = 5
_SEQUENCE_MAX = 2**31 - 1
_NEVER = np.iinfo(np.int64).max
# The first offset of a transaction that began earlier, without a known snapshot before the segment.
_UNKNOWN_START = -2
# The field of a snapshot's entry.
_OPEN_SINCE = "current_transaction_first_offset"

_TRANSACTION = np.dtype(
    [
        ("producer_id", np.int64),
        # UNKNOWN_OFFSET if the transaction has no data in this partition.
        ("first_offset", np.int64),
        # The first of its batches in this segment; _NEVER if there is none.
        ("first_here", np.int64),
        # _NEVER if the transaction is open at the segment's end.
        ("marker_offset", np.int64),
        ("is_abort", np.bool_),
    ]
)


@dataclass(frozen=True, slots=True)
class ProducersBefore:
    """The snapshot of the segment before, by producer."""

    entries: dict[ProducerId, ProducerSnapshotEntry]

    @staticmethod
    def of(entries: Sequence[ProducerSnapshotEntry]) -> ProducersBefore:
        return ProducersBefore({entry.producer_id: entry for entry in entries})

    def open_transaction(self, producer_id: ProducerId) -> Offset:
        """The first offset of the producer's open transaction; UNKNOWN_OFFSET if there is none."""
        entry = self.entries.get(producer_id)
        return UNKNOWN_OFFSET if entry is None else entry.current_transaction_first_offset


class Transactions:
    """The transactions with batches or a marker in a segment, and all others that are open
    meanwhile."""

    def __init__(self, batches: LogBatches, before: ProducersBefore | None) -> None:
        self.before = before
        self.rows = _transactions(batches, before)
        begun = self.rows[self.rows["first_offset"] >= 0]
        by_first = begun[np.argsort(begun["first_offset"], kind="stable")]
        self._firsts = by_first["first_offset"]
        self._latest_ends = np.maximum.accumulate(by_first["marker_offset"])

    def aborted(self) -> list[AbortedTransaction]:
        """The transactions that the index must list: those with data, in marker order. If the start
        of an earlier one is unknown, it starts with its first batch here."""
        rows = self.rows[self.rows["is_abort"]]
        rows = rows[np.argsort(rows["marker_offset"])]
        return [
            AbortedTransaction(
                int(row["producer_id"]),
                _first(row),
                int(row["marker_offset"]),
                self.last_stable_offset(int(row["marker_offset"])),
            )
            for row in rows
            if _has_data(row)
        ]

    def last_stable_offset(self, marker: Offset) -> Offset:
        """The leader's last stable offset after a marker: the lowest first offset of the open
        transactions, or the offset after the marker."""
        # In the order of first offsets, the largest end so far exceeds the marker at first at the
        # earliest transaction that is open there. "right": that of the marker itself has ended.
        at = int(np.searchsorted(self._latest_ends, marker, side="right"))
        if at < len(self._firsts) and self._firsts[at] < marker:
            return int(self._firsts[at])
        return marker + 1


def _transactions(batches: LogBatches, before: ProducersBefore | None) -> Rows:
    rows = batches.rows
    is_end = (rows["marker"] == ControlRecordType.ABORT) | (
        rows["marker"] == ControlRecordType.COMMIT
    )
    is_data = (rows["marker"] == NO_MARKER) & ((rows["attributes"] & TRANSACTIONAL_FLAG) != 0)
    rows = rows[(is_end | is_data) & (rows["producer_id"] >= 0)]
    rows = rows[np.lexsort((rows["base_offset"], rows["producer_id"]))]
    is_end = rows["marker"] != NO_MARKER
    is_other = rows["producer_id"][1:] != rows["producer_id"][:-1]
    # A transaction begins with its producer's first batch, or after its producer's marker.
    firsts = np.flatnonzero(np.append(True, is_other | is_end[:-1])[: len(rows)])
    lasts = np.append(firsts[1:], len(rows))[: len(firsts)] - 1
    transactions = np.empty(len(firsts), _TRANSACTION)
    producers = transactions["producer_id"] = rows["producer_id"][firsts]
    here = np.where(is_end[firsts], _NEVER, rows["base_offset"][firsts])
    transactions["first_here"] = here
    transactions["marker_offset"] = np.where(is_end[lasts], rows["base_offset"][lasts], _NEVER)
    transactions["is_abort"] = rows["marker"][lasts] == ControlRecordType.ABORT
    is_first_of_producer = np.append(True, producers[1:] != producers[:-1])[: len(transactions)]
    transactions["first_offset"] = np.where(here == _NEVER, UNKNOWN_OFFSET, here)
    first_rows = np.flatnonzero(is_first_of_producer)
    open_before = _open_before(producers[first_rows], before)
    transactions["first_offset"][first_rows] = np.where(
        open_before == UNKNOWN_OFFSET, transactions["first_offset"][first_rows], open_before
    )
    return np.concatenate([transactions, _idle(before, set(producers[first_rows].tolist()))])


def _open_before(
    producers: npt.NDArray[np.int64], before: ProducersBefore | None
) -> npt.NDArray[np.int64]:
    if before is None:
        return np.full(len(producers), _UNKNOWN_START)
    offsets = map(before.open_transaction, producers.tolist())
    return np.fromiter(offsets, np.int64, len(producers))


def _idle(before: ProducersBefore | None, seen: set[ProducerId]) -> Rows:
    """Transactions that are open throughout the segment, without a batch in it."""
    rows = [
        (entry.producer_id, entry.current_transaction_first_offset, _NEVER, _NEVER, False)
        for entry in ({} if before is None else before.entries).values()
        if entry.current_transaction_first_offset >= 0 and entry.producer_id not in seen
    ]
    return np.array(rows, _TRANSACTION)


def check_producer_batches(batches: LogBatches, transactions: Transactions) -> list[Problem]:
    """Batches that a leader refuses: non-transactional ones inside a transaction of their producer,
    and sequence gaps.

    A sequence gap is possible if a leader had dropped the producer's state and batches were lost in
    an unclean election. That is rare, and worth a report. A new producer state begins at 0.
    """
    rows = batches.rows[batches.rows["marker"] == NO_MARKER]
    is_transactional = (rows["attributes"] & TRANSACTIONAL_FLAG) != 0
    header, sequence = FindingKind.WRONG_HEADER, FindingKind.WRONG_SEQUENCE
    problems: list[Problem] = []
    suspects = rows[~is_transactional & (rows["producer_id"] >= 0)]
    begun = transactions.rows
    begun = begun[(begun["first_offset"] != UNKNOWN_OFFSET) | (begun["first_here"] != _NEVER)]
    if len(suspects) and len(begun):
        begins = np.where(
            begun["first_offset"] >= 0,
            begun["first_offset"],
            begun["first_here"],
        )
        spans = TransactionSpans(begun["producer_id"], begins, begun["marker_offset"])
        inside, _ = spans.holding(suspects["producer_id"], suspects["base_offset"])
        fact = "batch inside a transaction of its producer is not transactional"
        problems += _of_rows(header, fact, suspects[inside])
    if not batches.is_cleaned:
        fact = "batch of a producer is not the next in sequence"
        problems += _of_rows(sequence, fact, _out_of_sequence(rows, transactions.before))
    return problems[:_PROBLEMS_MAX]


def _out_of_sequence(rows: Rows, before: ProducersBefore | None) -> Rows:
    rows = rows[rows["producer_id"] >= 0]
    rows = rows[np.lexsort((rows["base_offset"], rows["producer_id"]))]
    deltas = rows["last_offset"] - rows["base_offset"]
    expected = next_sequences(
        rows["base_sequence"].astype(np.int64), deltas, rows["producer_epoch"]
    )
    is_first = np.append(True, rows["producer_id"][1:] != rows["producer_id"][:-1])[: len(rows)]
    is_wrong = (rows["base_sequence"] != expected) & ~is_first
    entries = {} if before is None else before.entries
    for row in np.flatnonzero(is_first).tolist() if entries else ():
        earlier = entries.get(int(rows["producer_id"][row]))
        if earlier is not None and earlier.producer_epoch == rows["producer_epoch"][row]:
            is_wrong[row] = (earlier.last_sequence + 1) & _SEQUENCE_MAX != rows["base_sequence"][
                row
            ]
    is_wrong &= rows["base_sequence"] != 0
    wrong_rows: Rows = rows[is_wrong]
    return wrong_rows


def _of_rows(kind: FindingKind, fact: str, rows: Rows) -> list[Problem]:
    return [
        Problem(
            kind,
            f"{fact} position={row['position']} base_offset={row['base_offset']}"
            f" producer_id={row['producer_id']} base_sequence={row['base_sequence']}",
        )
        for row in rows[:_PROBLEMS_MAX]
    ]


def check_transaction_index_entries(
    index: bytes | None,
    batches: LogBatches,
    transactions: Transactions,
    segment: RemoteLogSegmentMetadata,
) -> list[Problem]:
    """Problems of a transaction index. `index` is None if the segment has none: then it must not
    have aborted transactions."""
    kind = FindingKind.WRONG_TRANSACTION_INDEX
    try:
        entries = read_transaction_index(index or b"", segment.start_offset)
    except CorruptDataError as error:
        return [Problem(kind, str(error))]
    rows = transactions.rows
    by_marker = {
        (int(row["producer_id"]), int(row["marker_offset"])): row for row in rows[rows["is_abort"]]
    }
    problems = [
        Problem(kind, f"{fact} producer_id={entry.producer_id} last_offset={entry.last_offset}")
        for entry in entries
        if (fact := _wrong_entry(entry, by_marker, batches, transactions)) is not None
    ]
    listed = {(entry.producer_id, entry.last_offset) for entry in entries}
    problems += [
        Problem(
            kind,
            "aborted transaction is not listed"
            f" producer_id={producer} first_offset={_first(row)} marker={marker}",
        )
        for (producer, marker), row in by_marker.items()
        if (producer, marker) not in listed and _has_data(row)
    ]
    return problems[:_PROBLEMS_MAX]


def _first(row: np.void) -> Offset:
    return int(row["first_offset"] if row["first_offset"] >= 0 else row["first_here"])


def _has_data(row: np.void) -> bool:
    """Whether the transaction has data. A marker alone does not prove it: the transaction may be
    empty, or be in other segments."""
    return bool(row["first_offset"] >= 0 or row["first_here"] != _NEVER)


def _wrong_entry(
    entry: AbortedTransaction,
    by_marker: dict[tuple[ProducerId, Offset], np.void],
    batches: LogBatches,
    transactions: Transactions,
) -> str | None:
    rows = batches.rows
    at = int(np.searchsorted(rows["last_offset"], entry.last_offset))
    if at == len(rows) or rows["base_offset"][at] > entry.last_offset:
        return "entry's marker is not in the log"
    row = by_marker.get((entry.producer_id, entry.last_offset))
    if row is None:
        return "entry's marker is not an abort of its producer"
    if not entry.first_offset <= entry.last_offset:
        return "entry begins above its end"
    if batches.is_cleaned:
        return None
    first_offset = int(row["first_offset"])
    if first_offset == _UNKNOWN_START:
        here = int(row["first_here"])
        begins_well = entry.first_offset == here or entry.first_offset < rows["base_offset"][0]
        expected = f"{here} or below the segment" if here != _NEVER else "below the segment"
    else:
        begins_well = entry.first_offset == first_offset
        expected = str(first_offset)
    if not begins_well:
        return (
            f"entry's transaction does not begin there first_offset={entry.first_offset}"
            f" expected={expected}"
        )
    stable = transactions.last_stable_offset(entry.last_offset)
    if transactions.before is not None and entry.last_stable_offset != stable:
        return (
            "entry has another last stable offset than the log"
            f" last_stable_offset={entry.last_stable_offset} expected={stable}"
        )
    return None


def check_producer_snapshot(
    snapshot: bytes,
    batches: LogBatches,
    transactions: Transactions,
    segment: RemoteLogSegmentMetadata,
) -> list[Problem]:
    """Problems of a producer snapshot. A missing producer without an open transaction is no
    problem: brokers expire idle ones. Nor are batches that compaction removed."""
    kind = FindingKind.WRONG_PRODUCER_SNAPSHOT
    try:
        entries = read_producer_snapshot(snapshot)
    except CorruptDataError as error:
        return [Problem(kind, str(error))]
    written = _written_here(batches, transactions)
    named = {entry.producer_id for entry in entries}
    is_open = (transactions.rows["marker_offset"] == _NEVER) & ~np.isin(
        transactions.rows["producer_id"], list(named)
    )
    forgotten = [
        Problem(
            kind,
            "snapshot lacks a producer with an open transaction"
            f" producer_id={row['producer_id']} first_offset={_first(row)}",
        )
        for row in transactions.rows[is_open]
    ]
    return [
        *forgotten,
        *_wrong_producers(entries, written, batches, transactions, segment),
    ][:_PROBLEMS_MAX]


def _wrong_producers(
    entries: Sequence[ProducerSnapshotEntry],
    written: dict[ProducerId, dict[str, int]],
    batches: LogBatches,
    transactions: Transactions,
    segment: RemoteLogSegmentMetadata,
) -> list[Problem]:
    kind = FindingKind.WRONG_PRODUCER_SNAPSHOT
    return [
        Problem(kind, f"{fact} producer_id={entry.producer_id} last_offset={entry.last_offset}")
        for entry in entries
        for fact in _wrong_producer(
            entry, written, segment, transactions.before, is_cleaned=batches.is_cleaned
        )
    ]


def _wrong_producer(
    entry: ProducerSnapshotEntry,
    written: dict[ProducerId, dict[str, int]],
    segment: RemoteLogSegmentMetadata,
    before: ProducersBefore | None,
    *,
    is_cleaned: bool,
) -> Iterator[str]:
    if entry.last_offset > segment.end_offset_inclusive:
        yield "producer's last batch is beyond the segment"
    elif entry.current_transaction_first_offset > segment.end_offset_inclusive:
        yield "producer's transaction begins beyond the segment"
    elif is_cleaned:
        return
    elif entry.producer_id in written:
        for field, expected in written[entry.producer_id].items():
            if getattr(entry, field) != expected:
                yield (
                    f"snapshot and log differ field={field} snapshot={getattr(entry, field)}"
                    f" log={expected}"
                )
    elif max(entry.last_offset, entry.current_transaction_first_offset) >= segment.start_offset:
        yield "producer's last batch is not in the log"
    elif before is not None:
        yield from _changed_idly(entry, before.entries.get(entry.producer_id, entry))


def _changed_idly(entry: ProducerSnapshotEntry, earlier: ProducerSnapshotEntry) -> Iterator[str]:
    for field, now, then in zip(entry._fields, entry, earlier, strict=True):
        if now != then:
            yield (
                "producer wrote nothing, and its snapshots differ"
                f" field={field} snapshot={now} before={then}"
            )


def _written_here(
    batches: LogBatches, transactions: Transactions
) -> dict[ProducerId, dict[str, int]]:
    """The fields of each producer's snapshot entry that follow from its batches in this segment."""
    rows = batches.rows[batches.rows["producer_id"] >= 0]
    is_known = (
        (rows["marker"] == NO_MARKER)
        | (rows["marker"] == ControlRecordType.ABORT)
        | (rows["marker"] == ControlRecordType.COMMIT)
    )
    rows = rows[is_known]
    rows = rows[np.lexsort((rows["base_offset"], rows["producer_id"]))]
    producers: dict[ProducerId, dict[str, int]] = {}
    for row in _lasts(rows):
        producers[int(row["producer_id"])] = {
            "producer_epoch": int(row["producer_epoch"]),
            "timestamp_ms": int(row["max_timestamp"]),
        }
    for row in _lasts(rows[rows["marker"] == NO_MARKER]):
        fields = producers[int(row["producer_id"])]
        # As in Kafka, a later epoch, even that of a marker, drops the batches of an earlier one.
        if int(row["producer_epoch"]) == fields["producer_epoch"]:
            delta = int(row["last_offset"] - row["base_offset"])
            fields["last_offset"] = int(row["last_offset"])
            fields["offset_delta"] = delta
            fields["last_sequence"] = (int(row["base_sequence"]) + delta) & _SEQUENCE_MAX
    for row in _lasts(rows[rows["coordinator_epoch"] != NO_COORDINATOR_EPOCH]):
        producers[int(row["producer_id"])]["coordinator_epoch"] = int(row["coordinator_epoch"])
    # A leader takes no other batch of a producer with an open transaction.
    # A restored log with an open transaction here would hold its last stable offset for ever.
    transactional = set(transactions.rows["producer_id"].tolist())
    for producer in producers.keys() - transactional:
        producers[producer][_OPEN_SINCE] = UNKNOWN_OFFSET
    for row in _lasts(transactions.rows):
        _set_open_transaction(producers, row)
    if transactions.before is None:
        return producers
    return {
        producer: _from_before(transactions.before.entries.get(producer), fields) | fields
        for producer, fields in producers.items()
    }


def _from_before(earlier: ProducerSnapshotEntry | None, fields: dict[str, int]) -> dict[str, int]:
    """The fields of the earlier entry that a marker does not change."""
    if earlier is None:
        return {}
    kept = {"coordinator_epoch": earlier.coordinator_epoch}
    if earlier.producer_epoch == fields["producer_epoch"]:
        kept["last_offset"] = earlier.last_offset
        kept["last_sequence"] = earlier.last_sequence
        kept["offset_delta"] = earlier.offset_delta
    return kept


def _set_open_transaction(producers: dict[ProducerId, dict[str, int]], row: np.void) -> None:
    """Set each producer's open transaction at the segment's end, from its last one."""
    fields = producers.get(int(row["producer_id"]))
    if fields is None:
        return  # open throughout the segment: the snapshot before has it
    if row["marker_offset"] != _NEVER:
        fields[_OPEN_SINCE] = UNKNOWN_OFFSET
    elif row["first_offset"] != _UNKNOWN_START:
        fields[_OPEN_SINCE] = int(row["first_offset"])


def _lasts(rows: Rows) -> Rows:
    """The last row of each producer, in rows that are sorted by producer."""
    if len(rows) == 0:
        return rows
    lasts: Rows = rows[np.append(rows["producer_id"][1:] != rows["producer_id"][:-1], True)]
    return lasts
