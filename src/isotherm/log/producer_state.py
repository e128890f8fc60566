"""The state of a partition's idempotent and transactional producers.

For each producer id: its epoch, its last batches (to answer a retry with the original offsets) and
the first offset of its ongoing transaction. The state is in memory and has no lock: the log that
owns it serializes calls, and writes snapshots.

A batch is first checked (`find_duplicate`, `check`: these change nothing) and applied once it is
written. Source: Kafka ProducerStateManager.java, ProducerAppendInfo.java; KIP-98.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from isotherm.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    PolicyViolationError,
    TransactionCoordinatorFencedError,
)
from isotherm.record.batch import BatchHeader
from isotherm.record.batch_header import CONTROL_FLAG, TRANSACTIONAL_FLAG
from isotherm.record.control import ControlRecord, ControlRecordType, read_control_record
from isotherm.segment.offset_index import Buffer
from isotherm.segment.producer_snapshot import LastRecord, ProducerSnapshotEntry
from isotherm.segment.transaction_index import AbortedTransaction
from isotherm.types import (
    NO_COORDINATOR_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_SEQUENCE,
    UNKNOWN_OFFSET,
    Offset,
    Position,
    ProducerEpoch,
    ProducerId,
    TimestampMs,
    TopicPartition,
)

# Kafka's ProducerStateEntry.NUM_BATCHES_TO_RETAIN: clients have at most this many in flight.
BATCHES_KEPT_MAX = 5

SEQUENCE_MAX = 2**31 - 1


class ProducerBatch(NamedTuple):
    last_sequence: int
    last_offset: Offset
    offset_delta: int
    timestamp_ms: TimestampMs

    @property
    def first_offset(self) -> Offset:
        return self.last_offset - self.offset_delta

    @property
    def first_sequence(self) -> int:
        # Sequences wrap from 2^31 - 1 to 0.
        return (self.last_sequence - self.offset_delta) & SEQUENCE_MAX


class CompletedTransaction(NamedTuple):
    producer_id: ProducerId
    first_offset: Offset
    last_offset: Offset
    is_aborted: bool


@dataclass(slots=True)
class ProducerState:
    producer_id: ProducerId
    epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    coordinator_epoch: int = NO_COORDINATOR_EPOCH
    last_timestamp_ms: TimestampMs = -1
    transaction_first_offset: Offset | None = None
    batches: deque[ProducerBatch] = field(default_factory=lambda: deque(maxlen=BATCHES_KEPT_MAX))

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    def move_to_epoch(self, epoch: ProducerEpoch) -> None:
        if epoch != self.epoch:
            self.batches.clear()
            self.epoch = epoch


class ProducerStateManager:
    def __init__(
        self, topic_partition: TopicPartition, expiration_ms: int, ids_max: int = sys.maxsize
    ) -> None:
        """`expiration_ms` is producer.id.expiration.ms. It may be changed later. `ids_max` bounds
        what clients add (`check`), not what is replayed or copied from a leader."""
        self._topic_partition = topic_partition
        self.expiration_ms = expiration_ms
        self._ids_max = ids_max
        self._producers: dict[ProducerId, ProducerState] = {}
        # First offsets of open transactions, in rising order: they open in the order of the log.
        self._ongoing: dict[ProducerId, Offset] = {}
        # Ended transactions whose marker is not below the high watermark yet.
        self._unreplicated: list[CompletedTransaction] = []
        self.first_unstable_offset: Offset | None = None
        """The first offset of any transaction whose outcome readers cannot know yet."""
        self.map_end_offset: Offset = 0
        """All batches below this offset have been applied."""

    @property
    def is_empty(self) -> bool:
        return not self._producers and not self._unreplicated

    @property
    def id_count(self) -> int:
        """Producer ids that are remembered. Any thread."""
        return len(self._producers)

    def producer(self, producer_id: ProducerId) -> ProducerState | None:
        return self._producers.get(producer_id)

    def last_records(self) -> dict[ProducerId, LastRecord]:
        """The last record of each producer."""
        return {
            producer_id: LastRecord(
                state.batches[-1].last_offset if state.batches else None, state.epoch
            )
            for producer_id, state in self._producers.items()
        }

    # ---- checks of a batch before it is written

    def find_duplicate(self, header: BatchHeader) -> ProducerBatch | None:
        """The earlier batch that `header` repeats: same epoch, first and last sequence."""
        state = self._producers.get(header.producer_id)
        if state is None or state.epoch != header.producer_epoch:
            return None
        last_sequence, delta = header.last_sequence, header.last_offset_delta
        for batch in state.batches:
            # Of as many records: so the first sequences are equal, too.
            if batch.last_sequence == last_sequence and batch.offset_delta == delta:
                return batch
        return None

    def check(self, header: BatchHeader) -> None:
        """Check a client's data batch against the state of its producer.

        Raises InvalidProducerEpochError for an older epoch (the producer was replaced),
        OutOfOrderSequenceError for a gap, and InvalidTxnStateError for a batch outside the open
        transaction of its producer. Raises PolicyViolationError for a new producer if there are as
        many as producer.ids.per.partition.max.
        """
        state = self._producers.get(header.producer_id)
        # A producer that is new here, or whose state has expired, may begin with any sequence, as
        # in Kafka.
        if state is None:
            self._check_room(header)
            return
        if header.producer_epoch != state.epoch:
            self._check_epoch(state, header)
        self._check_sequence(state, header)
        is_transactional = header.attributes & TRANSACTIONAL_FLAG
        if state.transaction_first_offset is not None and not is_transactional:
            raise InvalidTxnStateError(
                "batch is not transactional within a transaction"
                f" partition={self._topic_partition} producer_id={header.producer_id}"
            )

    def _check_room(self, header: BatchHeader) -> None:
        if len(self._producers) >= self._ids_max:
            raise PolicyViolationError(
                f"the partition has its maximum of producer ids"
                f" partition={self._topic_partition} producer_id={header.producer_id}"
                f" count={len(self._producers)} key=producer.ids.per.partition.max"
            )

    def check_marker(self, header: BatchHeader, marker: ControlRecord) -> None:
        """Check a marker. Raises InvalidProducerEpochError for an older producer epoch, and
        TransactionCoordinatorFencedError for an older coordinator epoch."""
        state = self._producers.get(header.producer_id)
        if state is None:
            return
        self._check_epoch(state, header)
        coordinator_epoch = marker.coordinator_epoch
        if coordinator_epoch is not None and coordinator_epoch < state.coordinator_epoch:
            raise TransactionCoordinatorFencedError(
                f"coordinator epoch is older partition={self._topic_partition}"
                f" coordinator_epoch={coordinator_epoch} current={state.coordinator_epoch}"
            )

    def _check_epoch(self, state: ProducerState, header: BatchHeader) -> None:
        if header.producer_epoch < state.epoch:
            raise InvalidProducerEpochError(
                f"producer epoch is older partition={self._topic_partition}"
                f" producer_id={header.producer_id} epoch={header.producer_epoch}"
                f" current={state.epoch}"
            )

    def _check_sequence(self, state: ProducerState, header: BatchHeader) -> None:
        # As in Kafka: no batch of this producer is known, so any sequence may be its next.
        if state.epoch == NO_PRODUCER_EPOCH:
            return
        is_new_epoch = header.producer_epoch != state.epoch
        # A new epoch starts again at 0 (KIP-360). Sequences wrap from 2^31 - 1 to 0.
        # NO_SEQUENCE is -1: an epoch that has begun with a marker expects 0 as well.
        expected = 0 if is_new_epoch else (state.last_sequence + 1) & SEQUENCE_MAX
        if header.base_sequence != expected:
            raise OutOfOrderSequenceError(
                f"sequence is out of order partition={self._topic_partition}"
                f" producer_id={header.producer_id} epoch={header.producer_epoch}"
                f" base_sequence={header.base_sequence} expected={expected}"
            )

    # ---- changes

    def apply(
        self, header: BatchHeader, buffer: Buffer, position: Position
    ) -> AbortedTransaction | None:
        """Apply any batch with a producer id that was written, or is replayed.

        For a control batch, `buffer` has it at `position`. For other batches only the header is
        used. Returns the transaction index entry if the batch is an abort marker.
        """
        if not header.attributes & CONTROL_FLAG:
            self.apply_batch(header)
            return None
        marker = read_control_record(buffer, position, header)
        if marker is None or not marker.is_transaction_marker:
            return None
        completed = self.apply_marker(header, marker)
        if completed is None or not completed.is_aborted:
            return None
        return self.aborted_transaction(completed)

    def apply_batch(self, header: BatchHeader) -> None:
        """Apply a data batch that was written, or is replayed."""
        # The look-up saves a call for each batch but a producer's first (docs/decisions/0136).
        state = self._producers.get(header.producer_id) or self._state_of(header.producer_id)
        if header.producer_epoch != state.epoch:
            state.move_to_epoch(header.producer_epoch)
        state.batches.append(
            ProducerBatch(
                header.last_sequence,
                header.base_offset + header.last_offset_delta,
                header.last_offset_delta,
                header.max_timestamp,
            )
        )
        state.last_timestamp_ms = header.max_timestamp
        if header.attributes & TRANSACTIONAL_FLAG and state.transaction_first_offset is None:
            state.transaction_first_offset = header.base_offset
            self._ongoing[header.producer_id] = header.base_offset
            # Batches come in the order of the log, so this offset is above those of all others.
            if self.first_unstable_offset is None:
                self.first_unstable_offset = header.base_offset

    def apply_marker(
        self, header: BatchHeader, marker: ControlRecord
    ) -> CompletedTransaction | None:
        """Apply a transaction marker; returns the transaction that it ended, or None if none was
        open.

        The transaction stays unstable until its marker is below the high watermark
        (`on_high_watermark`).
        """
        state = self._state_of(header.producer_id)
        state.move_to_epoch(header.producer_epoch)
        if marker.coordinator_epoch is not None:
            state.coordinator_epoch = marker.coordinator_epoch
        state.last_timestamp_ms = marker.timestamp_ms
        first_offset, state.transaction_first_offset = state.transaction_first_offset, None
        if first_offset is None:
            return None
        del self._ongoing[header.producer_id]
        is_aborted = marker.type is ControlRecordType.ABORT
        completed = CompletedTransaction(
            header.producer_id, first_offset, header.last_offset, is_aborted
        )
        # The first unstable offset stays: the transaction is as unstable as before.
        self._unreplicated.append(completed)
        return completed

    def aborted_transaction(self, completed: CompletedTransaction) -> AbortedTransaction:
        """The transaction index entry of a transaction that `apply_marker` has just aborted.

        Its last stable offset is the first offset of the transactions that are still open, or the
        offset after the marker.
        """
        ongoing = self._first_ongoing_offset()
        stable = completed.last_offset + 1 if ongoing is None else ongoing
        return AbortedTransaction(
            completed.producer_id, completed.first_offset, completed.last_offset, stable
        )

    def on_high_watermark(self, high_watermark: Offset) -> None:
        """Drop ended transactions whose markers are on every replica."""
        if self._unreplicated:
            self._forget_transactions_below(high_watermark)

    def on_log_start_offset(self, log_start_offset: Offset) -> None:
        """Drop ended transactions that were deleted with the start of the log."""
        if self._unreplicated:
            self._forget_transactions_below(log_start_offset)

    def remove_expired(self, now_ms: TimestampMs) -> None:
        # `_ongoing` stays as it is: a producer with an open transaction does not expire.
        self._producers = {
            producer_id: state
            for producer_id, state in self._producers.items()
            if not self._is_expired(state.last_timestamp_ms, state.transaction_first_offset, now_ms)
        }

    @property
    def expiration_due_ms(self) -> TimestampMs | None:
        """When the next producer expires; None if only records or markers can change that."""
        return min(
            (
                state.last_timestamp_ms + self.expiration_ms
                for state in self._producers.values()
                if state.transaction_first_offset is None
            ),
            default=None,
        )

    # ---- snapshots

    def snapshot_entries(self) -> list[ProducerSnapshotEntry]:
        return [_snapshot_entry(state) for state in self._producers.values()]

    def load(
        self,
        entries: Iterable[ProducerSnapshotEntry],
        map_end_offset: Offset,
        now_ms: TimestampMs,
    ) -> None:
        """Replace the state by a snapshot taken at `map_end_offset`, without expired producers."""
        self._producers = {}
        self._unreplicated = []
        for entry in entries:
            state = _producer_state(entry)
            if not self._is_expired(
                state.last_timestamp_ms, state.transaction_first_offset, now_ms
            ):
                self._producers[state.producer_id] = state
        # Sorted, because the first item must be the oldest open transaction.
        self._ongoing = dict(sorted(self._open_transactions(), key=lambda item: item[1]))
        self.map_end_offset = map_end_offset
        self._refresh_first_unstable_offset()

    def _state_of(self, producer_id: ProducerId) -> ProducerState:
        state = self._producers.get(producer_id)
        if state is None:
            state = self._producers[producer_id] = ProducerState(producer_id)
        return state

    def _forget_transactions_below(self, offset: Offset) -> None:
        # `>=`: a marker at the high watermark is not replicated yet.
        self._unreplicated = [done for done in self._unreplicated if done.last_offset >= offset]
        self._refresh_first_unstable_offset()

    def _is_expired(
        self, last_timestamp_ms: TimestampMs, ongoing: Offset | None, now_ms: TimestampMs
    ) -> bool:
        # An open transaction keeps its producer: its state decides the last stable offset.
        return ongoing is None and now_ms - last_timestamp_ms >= self.expiration_ms

    def _open_transactions(self) -> Iterator[tuple[ProducerId, Offset]]:
        for state in self._producers.values():
            if state.transaction_first_offset is not None:
                yield state.producer_id, state.transaction_first_offset

    def _first_ongoing_offset(self) -> Offset | None:
        return next(iter(self._ongoing.values()), None)

    def _refresh_first_unstable_offset(self) -> None:
        offsets = [done.first_offset for done in self._unreplicated]
        ongoing = self._first_ongoing_offset()
        if ongoing is not None:
            offsets.append(ongoing)
        self.first_unstable_offset = min(offsets, default=None)


def _snapshot_entry(state: ProducerState) -> ProducerSnapshotEntry:
    # Kafka's format has room for the last batch only.
    last = state.batches[-1] if state.batches else ProducerBatch(NO_SEQUENCE, UNKNOWN_OFFSET, 0, -1)
    first_offset = state.transaction_first_offset
    return ProducerSnapshotEntry(
        producer_id=state.producer_id,
        producer_epoch=state.epoch,
        last_sequence=last.last_sequence,
        last_offset=last.last_offset,
        offset_delta=last.offset_delta,
        timestamp_ms=state.last_timestamp_ms,
        coordinator_epoch=state.coordinator_epoch,
        current_transaction_first_offset=UNKNOWN_OFFSET if first_offset is None else first_offset,
    )


def _producer_state(entry: ProducerSnapshotEntry) -> ProducerState:
    first_offset = entry.current_transaction_first_offset
    state = ProducerState(
        entry.producer_id,
        entry.producer_epoch,
        entry.coordinator_epoch,
        entry.timestamp_ms,
        None if first_offset < 0 else first_offset,
    )
    if entry.last_offset >= 0:
        state.batches.append(
            ProducerBatch(
                entry.last_sequence, entry.last_offset, entry.offset_delta, entry.timestamp_ms
            )
        )
    return state
