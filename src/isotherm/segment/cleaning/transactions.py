"""Tracks transactions while the cleaner reads a log, batch after batch.

A data batch of an aborted transaction loses its records. A marker may be removed once a pass has
met no batch of its transaction, not even an empty one: the marker is the outcome of those batches,
and may be the last trace of its producer's epoch. Source: Kafka CleanedTransactionMetadata.java.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from isotherm.record.batch import BatchHeader
from isotherm.record.control import ControlRecord, ControlRecordType
from isotherm.segment.transaction_index import AbortedTransaction
from isotherm.types import Offset, ProducerId

_ENDS = (ControlRecordType.ABORT, ControlRecordType.COMMIT)


@dataclass(slots=True)
class _OngoingAborted:
    transaction: AbortedTransaction
    has_batches: bool = False


class CleanedTransactions:
    """Takes the transactional and control batches of a log in offset order.

    `add_aborted` adds aborted transactions before their first batch. A transaction may be added
    again by each segment that it overlaps.
    """

    def __init__(
        self, open_producers: Collection[ProducerId] = (), *, start_offset: Offset = 0
    ) -> None:
        """The pass begins at `start_offset`, so a log may be read in parts.

        `open_producers` have a batch below it whose marker lies above (see `OpenTransactions`).
        """
        self._announced: list[tuple[Offset, AbortedTransaction]] = []
        self._ongoing_aborted: dict[ProducerId, _OngoingAborted] = {}
        # Producers without an entry of the transaction index have committed.
        self._ongoing_committed = set(open_producers)
        self._open_before = frozenset(open_producers)
        self._start_offset = start_offset
        self._retained: list[AbortedTransaction] = []

    def add_aborted(self, transactions: Iterable[AbortedTransaction]) -> None:
        for transaction in transactions:
            heapq.heappush(self._announced, (transaction.first_offset, transaction))

    def on_data_batch(self, header: BatchHeader) -> bool:
        """Whether the batch belongs to an aborted transaction, and so loses all its records."""
        self._begin_aborted_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        aborted = self._ongoing_aborted.get(header.producer_id)
        if aborted is None:
            self._ongoing_committed.add(header.producer_id)
            return False
        # Emptied batches count too: while one is left, its marker must stay.
        aborted.has_batches = True
        return True

    def on_control_batch(self, header: BatchHeader, marker: ControlRecord | None) -> bool:
        """Whether the marker is no longer needed; `marker` is None if its record was removed."""
        self._begin_aborted_up_to(header.last_offset)
        # An earlier round removed the record. Its producer's state decides whether the batch stays.
        if marker is None:
            return True
        if marker.type is ControlRecordType.ABORT:
            aborted = self._ongoing_aborted.pop(header.producer_id, None)
            if aborted is None or not aborted.has_batches:
                return True
            self._retained.append(aborted.transaction)
            return False
        if marker.type is ControlRecordType.COMMIT:
            was_seen = header.producer_id in self._ongoing_committed
            self._ongoing_committed.discard(header.producer_id)
            return not was_seen
        return False

    def take_retained(self) -> list[AbortedTransaction]:
        """Aborted transactions whose markers were met since the last call and are kept.

        They belong in the new segment's transaction index.
        """
        retained, self._retained = self._retained, []
        return retained

    def _begin_aborted_up_to(self, offset: Offset) -> None:
        while self._announced and self._announced[0][0] <= offset:
            _, transaction = heapq.heappop(self._announced)
            producer_id = transaction.producer_id
            # Each segment that the transaction overlaps has an entry for it.
            if producer_id in self._ongoing_aborted:
                continue
            began_before = transaction.first_offset < self._start_offset
            self._ongoing_aborted[producer_id] = _OngoingAborted(
                transaction, has_batches=began_before and producer_id in self._open_before
            )
            # Counted as committed until its entry was met.
            if began_before:
                self._ongoing_committed.discard(producer_id)


class OpenTransactions:
    """Producers with an open transaction at the end of a part of a log.

    `open_after` combines the parts.
    """

    def __init__(self) -> None:
        self._is_open: dict[ProducerId, bool] = {}

    def add(self, header: BatchHeader, marker: ControlRecord | None) -> None:
        """Add the next transactional or control batch; `marker` is the record of the latter."""
        if not header.is_control:
            if header.is_transactional:
                self._is_open[header.producer_id] = True
        elif marker is not None and marker.type in _ENDS:
            self._is_open[header.producer_id] = False

    def items(self) -> Iterable[tuple[ProducerId, bool]]:
        """Every producer in the part, and whether its transaction is still open."""
        return self._is_open.items()


def open_after(
    before: Collection[ProducerId], seen: Mapping[ProducerId, bool]
) -> frozenset[ProducerId]:
    """Producers open after a part of a log, from those open before it and `items` of the part."""
    kept = (producer_id for producer_id in before if producer_id not in seen)
    return frozenset(kept) | {producer_id for producer_id, is_open in seen.items() if is_open}
