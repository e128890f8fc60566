"""Checks that the transaction indexes and the markers of a segment agree, while it is read.

A lost or damaged index makes aborted records look committed. These rules find it:

- If an ABORT marker ends a transaction with data, the index has an entry that ends at the marker
  and begins where the data begins.
- Where an entry ends, there is an ABORT marker of its producer. Inside an entry there is no marker.
- If a transaction began before the segment, the producer snapshot of the segment before contains
  its first offset.
- Inside an entry every batch of its producer belongs to the transaction.
- If data has no marker up to the segment's end, the segment's producer snapshot names its
  transaction as open.
- A transaction that the last segment's snapshot names as open begins in the log, and has no marker
  after that.

A marker alone proves nothing: its transaction may have no data in this partition. Python code runs
only for aborted transactions, and for those that are open between runs of batches. All others are
checked column by column.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from isotherm.errors import CorruptIndexError
from isotherm.record.batch_header import CONTROL_FLAG, TRANSACTIONAL_FLAG
from isotherm.record.control import ControlRecordType
from isotherm.record.control_table import NO_MARKER, marker_types
from isotherm.remote.history.holes import Gaps
from isotherm.remote.history.transaction_data import AbortedData
from isotherm.segment.transaction_index import AbortedTransaction
from isotherm.spark.plan.planning import SegmentRead
from isotherm.types import Offset, ProducerId

if TYPE_CHECKING:
    from isotherm.record.batch_table import BatchTable
    from isotherm.record.varint import ReadBuffer


class TransactionMismatchError(CorruptIndexError):
    """The index and the log disagree. Earlier rows of the read may be wrong."""


class _Stretch(NamedTuple):
    """Consecutive batches of one producer in a run: data, and at most one marker at the end.

    `first_data` is None if there is only a marker. `marker` is None if there is none.
    """

    producer_id: ProducerId
    first_data: Offset | None
    end: Offset
    marker: ControlRecordType | None


class TransactionProof:
    """The checks of one read of a segment with `aborted` set. Not thread-safe."""

    def __init__(self, read: SegmentRead, gaps: Gaps) -> None:
        self._read = read
        self._is_cleaned = gaps is Gaps.PERMITTED
        self.data = AbortedData(read.aborted or (), may_have_gaps=self._is_cleaned)
        self._entries: dict[ProducerId, list[AbortedTransaction]] = defaultdict(list)
        for entry in read.aborted or ():
            self._entries[entry.producer_id].append(entry)
        self._start: Offset | None = None
        # By producer, the first offset of the data after its last marker.
        self._open: dict[ProducerId, Offset] = {}
        # Producers with a marker so far. The first offset of their later data is exact: before its
        # first marker a producer's transaction may have begun before these batches.
        self._marked: set[ProducerId] = set()
        self._begun: set[tuple[ProducerId, Offset]] = set()
        self._ended: set[tuple[ProducerId, Offset]] = set()
        self._end: Offset = 0
        self._unexplained: list[tuple[ProducerId, Offset]] = []

    def follow(self, data: ReadBuffer, table: BatchTable) -> None:
        """Check the next batches. Raises TransactionMismatchError if they contradict the index."""
        # Leave out the batches outside the piece. Those after it are of a deposed leader. Those
        # before it are in another segment too, and the producers are known where the piece begins.
        assert self._read.beside is not None
        start, end, _ = self._read.beside
        ends = table["base_offset"] + table["last_offset_delta"] + 1
        table = table[
            int(ends.searchsorted(start, side="right")) : int(
                table["base_offset"].searchsorted(end)
            )
        ]
        if len(table) == 0:
            return
        if self._start is None:
            self._start = int(table["base_offset"][0])
        self._end = int(table["base_offset"][-1] + table["last_offset_delta"][-1]) + 1
        self.check(self.data.fault(data, table))
        for stretch in self._stretches(data, table):
            self._follow_stretch(stretch)

    @property
    def start_offset(self) -> Offset:
        """The base offset of the first batch, or the start of the read before there is a batch."""
        return self._read.start_offset if self._start is None else self._start

    @property
    def next_offset(self) -> Offset:
        """The offset after the last batch."""
        return self._end

    def expect_ends(self, open_before: Mapping[ProducerId, Offset]) -> None:
        """Add the transactions that are open at the start of the piece (first offsets by
        producer). A transaction without data or marker so far is then checked like one with data
        here."""
        for producer, first in open_before.items():
            # A marker here has ended the transaction that was open before.
            if producer not in self._marked:
                self._open.setdefault(producer, first)

    def has_undecided(self) -> bool:
        """Whether rows belong to a transaction without a marker so far."""
        return bool(self._undecided())

    @staticmethod
    def check(fact: str | None) -> None:
        """Raise TransactionMismatchError if `data` found a fault."""
        if fact is not None:
            raise TransactionMismatchError(f"transaction index and log disagree: {fact}")

    def check_undecided(self, named_open: Mapping[ProducerId, Offset]) -> None:
        """Check that transactions with data and without a marker here are in `named_open`, the
        transactions that the segment's snapshot names as open at its end."""
        for producer, first in self._undecided().items():
            named = named_open.get(producer)
            is_exact = producer in self._marked
            if named is None or named > first or (is_exact and named != first):
                raise TransactionMismatchError(
                    "producer snapshot and log disagree: data of a transaction without a marker"
                    f" producer_id={producer} first_data={first} first_offset={named}"
                )

    def _undecided(self) -> dict[ProducerId, Offset]:
        return {
            producer: first
            for producer, first in self._open.items()
            # A transaction that begins after the read has no rows in it.
            if first < self._read.end_offset and not self._is_listed(producer, first)
        }

    @property
    def needs_past(self) -> bool:
        """Whether `check_past` has something to check."""
        return bool(self._unexplained or self._reaching_back())

    def finish(self) -> None:
        """Check, after the last batch, that every entry with its start or end in these batches was
        found there."""
        start = 0 if self._start is None else self._start
        for entries in self._entries.values():
            for entry in entries:
                ended = (entry.producer_id, entry.last_offset)
                if start <= entry.last_offset < self._end and ended not in self._ended:
                    raise _wrong(
                        "entry ends where no transaction of its producer is aborted", entry
                    )
                begun = (entry.producer_id, entry.first_offset)
                is_here = start <= entry.first_offset < self._end
                # A cleaner may have removed the first batches of a transaction.
                if is_here and begun not in self._begun and not self._is_cleaned:
                    raise _wrong("entry begins where no transaction of its producer begins", entry)

    def check_past(self, open_before: Mapping[ProducerId, Offset]) -> None:
        """Check the transactions that began before the piece. `open_before` contains their first
        offsets, by producer."""
        for producer, marker in self._unexplained:
            if producer in open_before:
                raise _unlisted(producer, open_before[producer], marker)
        for entry in self._reaching_back():
            if open_before.get(entry.producer_id) != entry.first_offset:
                raise _wrong("entry begins elsewhere than its producer's snapshot says", entry)

    def _reaching_back(self) -> list[AbortedTransaction]:
        """The entries whose transaction began before the piece and has its marker in these
        batches."""
        assert self._read.beside is not None
        begin = self._read.beside.piece_start
        return [
            entry
            for entries in self._entries.values()
            for entry in entries
            if entry.first_offset < begin and (entry.producer_id, entry.last_offset) in self._ended
        ]

    def _stretches(self, data: ReadBuffer, table: BatchTable) -> list[_Stretch]:
        """The stretches that a rule needs: each producer's first in this run, its last if that has
        no marker, those of aborted transactions, and all of producers with entries.

        The many committed transactions in between cost no Python code.
        """
        is_of_producer = (table["attributes"] & (TRANSACTIONAL_FLAG | CONTROL_FLAG)) != 0
        rows = table[is_of_producer & (table["producer_id"] >= 0)]
        if len(rows) == 0:
            return []
        order = np.lexsort((rows["base_offset"], rows["producer_id"]))
        rows = rows[order]
        types = marker_types(data, rows)
        producers, offsets = rows["producer_id"], rows["base_offset"]
        is_other = producers[1:] != producers[:-1]
        # A stretch ends with a marker, or with the producer's last row.
        firsts = np.flatnonzero(np.append(True, is_other | (types[:-1] != NO_MARKER)))
        lasts = np.append(firsts[1:], len(rows)) - 1
        is_first_of_producer = np.append(True, is_other)[firsts]
        is_telling = (
            is_first_of_producer
            | (types[lasts] == ControlRecordType.ABORT)
            | (types[lasts] == NO_MARKER)
        )
        if self._entries:
            is_telling |= np.isin(producers[firsts], list(self._entries))
        chosen = np.flatnonzero(is_telling)
        return [
            _Stretch(
                int(producers[first]),
                int(offsets[first]) if types[first] == NO_MARKER else None,
                int(offsets[last]),
                None if types[last] == NO_MARKER else _marker(int(types[last])),
            )
            for first, last in zip(firsts[chosen].tolist(), lasts[chosen].tolist(), strict=True)
        ]

    def _follow_stretch(self, stretch: _Stretch) -> None:
        producer = stretch.producer_id
        first = self._open.pop(producer, None)
        # Data of a transaction that is open already begins none.
        if first is None:
            first = stretch.first_data
            if first is not None:
                self._begun.add((producer, first))
        if stretch.marker is None:
            assert first is not None, "there is data, or a marker"
            self._open[producer] = first
        else:
            self._follow_marker(producer, first, stretch.end, stretch.marker)
            self._marked.add(producer)

    def _follow_marker(
        self, producer: ProducerId, first: Offset | None, at: Offset, kind: ControlRecordType
    ) -> None:
        entry = None
        for transaction in self._entries.get(producer, ()):
            if transaction.first_offset <= at < transaction.last_offset:
                raise _wrong(
                    f"entry continues beyond a marker of its producer marker={at}", transaction
                )
            if transaction.last_offset == at:
                entry = transaction
        # An entry that ends at another marker never gets into `_ended`: `finish` reports it.
        if kind is not ControlRecordType.ABORT:
            return
        self._ended.add((producer, at))
        is_of_read = at >= self._read.start_offset
        if entry is not None:
            self._check_begin(entry, first, is_exact=producer in self._marked)
        elif first is not None and is_of_read and first < self._read.end_offset:
            raise _unlisted(producer, first, at)
        # Its data may lie before the piece: `check_past` compares with the producers there.
        elif first is None and is_of_read and self._starts_piece and producer not in self._marked:
            self._unexplained.append((producer, at))

    def _check_begin(
        self, entry: AbortedTransaction, first: Offset | None, *, is_exact: bool
    ) -> None:
        if first is None or self._is_cleaned:
            return
        if entry.first_offset > first or (is_exact and entry.first_offset != first):
            raise _wrong(f"entry begins elsewhere than its transaction first_data={first}", entry)

    @property
    def _starts_piece(self) -> bool:
        assert self._read.beside is not None
        return self._start is not None and self._start <= self._read.beside.piece_start

    def _is_listed(self, producer: ProducerId, offset: Offset) -> bool:
        return any(
            e.first_offset <= offset <= e.last_offset for e in self._entries.get(producer, ())
        )


def drop_ended(undecided: dict[ProducerId, Offset], data: ReadBuffer, table: BatchTable) -> None:
    """Remove from `undecided` (first offsets by producer) the transactions that these batches
    commit. Raises TransactionMismatchError if they abort one, since no index lists it."""
    rows = table[(table["attributes"] & CONTROL_FLAG) != 0]
    types = marker_types(data, rows)
    for producer, offset, kind in zip(
        rows["producer_id"].tolist(), rows["base_offset"].tolist(), types.tolist(), strict=True
    ):
        first = undecided.pop(producer, None)
        if first is not None and kind == ControlRecordType.ABORT:
            raise _unlisted(producer, first, offset)


def check_open(
    expected_open: Mapping[ProducerId, Offset], data: ReadBuffer, table: BatchTable
) -> set[ProducerId]:
    """The producers of `expected_open` (first offsets by producer) whose transactions begin in
    these batches. Raises TransactionMismatchError if one ends in them: the snapshot is then of
    another offset."""
    rows = table[(table["attributes"] & CONTROL_FLAG) != 0]
    for producer, offset in zip(
        rows["producer_id"].tolist(), rows["base_offset"].tolist(), strict=True
    ):
        if offset > expected_open.get(producer, offset):
            raise _not_open(producer, expected_open[producer], f"marker={offset}")
    is_begun = ((table["attributes"] & TRANSACTIONAL_FLAG) != 0) & np.isin(
        table["base_offset"], list(expected_open.values())
    )
    begun = table[is_begun]
    places = zip(begun["producer_id"].tolist(), begun["base_offset"].tolist(), strict=True)
    return {producer for producer, offset in places if expected_open.get(producer) == offset}


def check_begun(
    expected_open: Mapping[ProducerId, Offset], begun: Mapping[ProducerId, Offset]
) -> None:
    """Raise TransactionMismatchError unless `begun` has every producer of `expected_open`, with the
    same first offset."""
    for producer, first in expected_open.items():
        if begun.get(producer) != first:
            raise _not_open(producer, first, "it does not begin there")


def _not_open(producer: ProducerId, first: Offset, fact: str) -> TransactionMismatchError:
    return TransactionMismatchError(
        "producer snapshot and log disagree: a transaction is not open where the segment ends"
        f" producer_id={producer} first_offset={first} fact={fact!r}"
    )


def _marker(kind: int) -> ControlRecordType:
    types = (ControlRecordType.ABORT, ControlRecordType.COMMIT)
    return ControlRecordType(kind) if kind in types else ControlRecordType.UNKNOWN


def _wrong(fact: str, entry: AbortedTransaction) -> TransactionMismatchError:
    return TransactionMismatchError(
        f"transaction index and log disagree: {fact} producer_id={entry.producer_id}"
        f" first_offset={entry.first_offset} last_offset={entry.last_offset}"
    )


def _unlisted(producer: ProducerId, first: Offset, marker: Offset) -> TransactionMismatchError:
    return TransactionMismatchError(
        "transaction index and log disagree: an aborted transaction is not listed"
        f" producer_id={producer} first_offset={first} last_offset={marker}"
    )
