"""Checks that the batches within a transaction belong to it. Pure, by columns.

While a transaction is open the leader keeps its producer's state, and refuses a batch of the
producer that is not transactional or does not continue its sequence. So from the first offset of an
entry of the transaction index to its marker every batch of the producer is transactional and in
sequence. A batch that lost its transactional bit, or got a wrong producer id, breaks this, and is
not returned as committed.

A batch of an aborted transaction may also get the id of a producer whose transaction is committed.
No entry of the index covers it there, but its sequence does not fit. So sequences are compared
within every transaction as soon as aborted ones are near.

Source: Kafka ProducerAppendInfo.appendDataBatch and checkSequence;
ProducerStateManager.isProducerExpired.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from isotherm.record.batch_header import (
    BASE_SEQUENCE_POSITION,
    CONTROL_FLAG,
    OFFSET_MAX,
    PRODUCER_EPOCH_POSITION,
    SEQUENCE_MASK,
    TRANSACTIONAL_FLAG,
)
from isotherm.record.batch_table import gather_integers
from isotherm.segment.producer_snapshot import ProducerSnapshotEntry
from isotherm.segment.transaction_index import AbortedTransaction
from isotherm.types import UNKNOWN_OFFSET, Offset

if TYPE_CHECKING:
    from isotherm.record.batch_table import BatchTable, Int64Array
    from isotherm.record.varint import ReadBuffer


# A producer and the first offset of its transaction; an epoch and a sequence.
_Key: TypeAlias = tuple[int, int]
_Sequence: TypeAlias = tuple[int, int]


class TransactionSpans(NamedTuple):
    """Transactions by producer and offset. Those of one producer do not overlap."""

    producer_ids: Int64Array
    first_offsets: Int64Array
    last_offsets: Int64Array

    def within(self, first: int, last: int) -> TransactionSpans:
        """The transactions with offsets in [first, last]."""
        touching = (self.first_offsets <= last) & (self.last_offsets >= first)
        return TransactionSpans(*(column[touching] for column in self))

    def holding(
        self, producer_ids: Int64Array, offsets: Int64Array
    ) -> tuple[Int64Array, Int64Array]:
        """The rows of those batches that lie in a transaction of their producer, ordered by
        producer and offset, and the row of the transaction of each."""
        count = len(self.producer_ids)
        is_batch = np.repeat([False, True], [count, len(offsets)])
        # The last key sorts first. At one offset a transaction comes before its first batch.
        order = np.lexsort(
            (
                is_batch,
                np.concatenate([self.first_offsets, offsets]),
                np.concatenate([self.producer_ids, producer_ids]),
            )
        )
        is_batch = is_batch[order]
        # The place of the last transaction that begins before each batch.
        before = np.maximum.accumulate(np.where(is_batch, -1, np.arange(len(order))))
        is_candidate = is_batch & (before >= 0)
        rows, spans = order[is_candidate] - count, order[before[is_candidate]]
        is_inside = (self.producer_ids[spans] == producer_ids[rows]) & (
            # `<`: at the last offset lies the marker.
            offsets[rows] < self.last_offsets[spans]
        )
        return rows[is_inside], spans[is_inside]


class AbortedData:
    """Checks the batches of a read, run by run, against the aborted transactions that touch it.

    With `may_have_gaps` a cleaner may have removed batches, and sequences are not compared. Not
    thread-safe.
    """

    def __init__(self, aborted: Iterable[AbortedTransaction], *, may_have_gaps: bool) -> None:
        entries = list(aborted)
        self._spans = TransactionSpans(
            *(
                np.fromiter((entry[field] for entry in entries), np.int64, len(entries))
                for field in range(3)
            )
        )
        self._may_have_gaps = may_have_gaps
        # Both are keyed by producer and first offset. `_going_on` has the transactions that
        # continue after the last run, with the epoch and the next sequence. `_begun_before` has
        # those that began before the first run, with epoch and sequence of their first batch in it.
        self._going_on: dict[_Key, _Sequence] = {}
        self._begun_before: dict[_Key, _Sequence] = {}
        self._open = OpenSequences()

    def fault(self, buffer: ReadBuffer, table: BatchTable) -> str | None:
        """The first fault in the next run of batches, as a fact; None if there is none."""
        if len(self._spans.producer_ids) == 0 or len(table) == 0:
            return None
        return self._fault_of_aborted(buffer, table) or (
            None if self._may_have_gaps else self._open.fault(buffer, table)
        )

    def _fault_of_aborted(self, buffer: ReadBuffer, table: BatchTable) -> str | None:
        end = int(table["base_offset"][-1])
        spans = self._spans.within(int(table["base_offset"][0]), end)
        is_data = (table["attributes"] & CONTROL_FLAG) == 0
        data = table[is_data & np.isin(table["producer_id"], spans.producer_ids)]
        if len(data) == 0:
            return None
        rows, transactions = spans.holding(data["producer_id"], data["base_offset"])
        data = data[rows]
        is_outside = (data["attributes"] & TRANSACTIONAL_FLAG) == 0
        if is_outside.any():
            return _fact(
                "batch inside an aborted transaction is not transactional", data, is_outside
            )
        if self._may_have_gaps or len(data) == 0:
            return None
        sequences = gather_integers(buffer, data["position"] + BASE_SEQUENCE_POSITION, ">i4")
        epochs = gather_integers(buffer, data["position"] + PRODUCER_EPOCH_POSITION, ">i2")
        expected = next_sequences(sequences, data["last_offset_delta"], epochs)
        is_wrong = sequences != expected
        is_first = np.append(True, transactions[1:] != transactions[:-1])
        is_last = np.append(is_first[1:], True)
        # The batch before the first one of a transaction, if any, was in an earlier run: see below.
        is_wrong[is_first] = False
        keys = list(
            zip(
                data["producer_id"].tolist(),
                spans.first_offsets[transactions].tolist(),
                strict=True,
            )
        )
        offsets = data["base_offset"]
        for row in np.flatnonzero(is_first).tolist():
            sequence = int(epochs[row]), int(sequences[row])
            before = self._going_on.pop(keys[row], None)
            if before is not None:
                is_wrong[row] = not _continues(before, sequence)
            elif offsets[row] > keys[row][1]:
                self._begun_before.setdefault(keys[row], sequence)
        if is_wrong.any():
            return _fact("batch inside an aborted transaction skips sequences", data, is_wrong)
        goes_on = np.flatnonzero(is_last & (spans.last_offsets[transactions] > end))
        after = (sequences + data["last_offset_delta"] + 1) & SEQUENCE_MASK
        for row in goes_on.tolist():
            self._going_on[keys[row]] = int(epochs[row]), int(after[row])
        return None

    @property
    def has_transactions_beside(self) -> bool:
        """Whether `fault_of_open` has something to check."""
        return self._open.has_first

    def fault_of_open(self, snapshot: Iterable[ProducerSnapshotEntry]) -> str | None:
        """Same as `fault_after`, for all transactions that are open in the snapshot."""
        return self._open.fault_after(snapshot)

    @property
    def begun_before(self) -> Offset | None:
        """The lowest first offset of the transactions whose batches before the runs are unknown."""
        return min((first for _, first in self._begun_before), default=None)

    def behind(self) -> AbortedData:
        """A checker for the batches before the runs, to be fed in the order of the log."""
        # Up to any offset: they do not end before the runs.
        entries = (
            AbortedTransaction(producer, first, OFFSET_MAX, UNKNOWN_OFFSET)
            for producer, first in self._begun_before
        )
        return AbortedData(entries, may_have_gaps=self._may_have_gaps)

    def fault_behind(self, behind: AbortedData) -> str | None:
        """The contradiction to the batches that `behind` has checked up to the first run."""
        return self._fault_before(behind._going_on)

    def fault_after(self, snapshot: Iterable[ProducerSnapshotEntry]) -> str | None:
        """The contradiction to the producer snapshot at the start of the read: that of the segment
        before, for a read from a segment's start."""
        return self._fault_before(
            {
                (entry.producer_id, entry.current_transaction_first_offset): _next_of(entry)
                for entry in snapshot
            }
        )

    def _fault_before(self, before: Mapping[_Key, _Sequence]) -> str | None:
        for key in before.keys() & self._begun_before.keys():
            begun = self._begun_before.pop(key)
            if not _continues(before[key], begun):
                return (
                    "batch inside an aborted transaction skips sequences"
                    f" producer_id={key[0]} first_offset={key[1]} expected={before[key][1]}"
                    f" sequence={begun[1]}"
                )
        return None


class OpenSequences:
    """Checks the sequences within all transactions of a read, run by run. Not thread-safe."""

    def __init__(self) -> None:
        # The epoch and the next sequence of each producer with an open transaction.
        self._going_on: dict[int, _Sequence] = {}
        # Epoch and sequence of each producer's first batch, unless that was a marker.
        self._first: dict[int, _Sequence] = {}
        self._ended: set[int] = set()

    def fault(self, buffer: ReadBuffer, table: BatchTable) -> str | None:
        """The first batch of the next run that does not continue its transaction, as a fact."""
        data = table[(table["attributes"] & TRANSACTIONAL_FLAG) != 0]
        if len(data) == 0:
            return None
        data = data[np.argsort(data["producer_id"], kind="stable")]
        sequences = gather_integers(buffer, data["position"] + BASE_SEQUENCE_POSITION, ">i4")
        epochs = gather_integers(buffer, data["position"] + PRODUCER_EPOCH_POSITION, ">i2")
        is_marker = (data["attributes"] & CONTROL_FLAG) != 0
        producers = data["producer_id"]
        is_first = np.append(True, producers[1:] != producers[:-1])
        # A marker has no sequence: it is not compared, nor is the batch after it.
        is_compared = ~is_first & ~is_marker
        is_compared[1:] &= ~is_marker[:-1]
        expected = next_sequences(sequences, data["last_offset_delta"], epochs)
        is_wrong = is_compared & (sequences != expected)
        for row in np.flatnonzero(is_first & ~is_marker).tolist():
            producer, sequence = int(producers[row]), (int(epochs[row]), int(sequences[row]))
            before = self._going_on.get(producer)
            # After a marker in an earlier run the batch does not continue the snapshot.
            if producer not in self._ended:
                self._first.setdefault(producer, sequence)
            is_wrong[row] = before is not None and not _continues(before, sequence)
        if is_wrong.any():
            return _fact("batch inside a transaction skips sequences", data, is_wrong)
        after = (sequences + data["last_offset_delta"] + 1) & SEQUENCE_MASK
        for row in np.flatnonzero(np.append(is_first[1:], True)).tolist():
            producer = int(producers[row])
            if is_marker[row]:
                self._going_on.pop(producer, None)
            else:
                self._going_on[producer] = int(epochs[row]), int(after[row])
        self._ended.update(producers[is_marker].tolist())
        return None

    @property
    def has_first(self) -> bool:
        return bool(self._first)

    def fault_after(self, snapshot: Iterable[ProducerSnapshotEntry]) -> str | None:
        """The contradiction to the producer snapshot at the start of the first run."""
        for entry in snapshot:
            first = self._first.get(entry.producer_id)
            before = _next_of(entry)
            is_open = entry.current_transaction_first_offset != UNKNOWN_OFFSET
            if first is not None and is_open and not _continues(before, first):
                return (
                    "batch inside a transaction skips sequences"
                    f" producer_id={entry.producer_id} expected={before[1]} sequence={first[1]}"
                )
        return None


def _next_of(entry: ProducerSnapshotEntry) -> _Sequence:
    return entry.producer_epoch, (entry.last_sequence + 1) & SEQUENCE_MASK


def _continues(before: _Sequence, sequence: _Sequence) -> bool:
    epoch, expected = before
    return sequence[1] == (expected if sequence[0] == epoch else 0)


def next_sequences(
    sequences: Int64Array, last_offset_deltas: Int64Array, epochs: Int64Array
) -> Int64Array:
    """The sequence that each batch must have after the one before it, by producer. The first one
    has its own. A producer with a new epoch begins at 0."""
    expected = sequences.copy()
    following = (sequences[:-1] + last_offset_deltas[:-1] + 1) & SEQUENCE_MASK
    expected[1:] = np.where(epochs[1:] == epochs[:-1], following, 0)
    return expected


def _fact(fact: str, data: BatchTable, is_wrong: np.typing.NDArray[np.bool_]) -> str:
    batch = data[is_wrong.argmax()]
    return f"{fact} producer_id={batch['producer_id']} base_offset={batch['base_offset']}"
