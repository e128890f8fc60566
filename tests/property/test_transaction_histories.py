"""A partition under random transactions in both tiers: a read_committed consumer gets every
committed record and no aborted one.

The model is a list with the value and producer of each record, and how its transaction ended. The
consumer filters as Kafka's clients do, by the list of aborted transactions of each read. A history
follows from its seed. Between the steps the log is rolled, copied to the remote tier, deleted
locally and opened again.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from isotherm.errors import OffsetOutOfRangeError
from isotherm.log.log_read import FetchIsolation
from isotherm.record.batch import build_batch, iterate_batches, read_records
from isotherm.record.control import (
    ControlRecordType,
    build_end_transaction_marker,
    read_control_record,
)
from isotherm.record.validation import AppendOrigin
from isotherm.spark.plan.offsets import OffsetRange
from isotherm.spark.plan.planning import lineage_pieces, plan_reads
from isotherm.spark.reading.committed_history import CommittedHistory
from isotherm.spark.reading.readers import ReadSettings, read_segments
from isotherm.types import Offset
from tests.support.tiered_partition import TieredPartition

SEEDS = range(20)
STEPS = 60
PRODUCERS = 4
NOT_TRANSACTIONAL = -1
TINY_READS = ReadSettings(fetch_bytes=150, fetch_ahead=1, batch_bytes=300)


@dataclass
class Written:
    """A record of the model."""

    value: bytes
    producer_id: int
    committed: bool | None = None  # None while its transaction is open
    marker_offset: Offset | None = None


@dataclass
class Transactional:
    """A producer of the model. `open_offsets` are the records of its open transaction."""

    producer_id: int
    epoch: int = 0
    sequence: int = 0
    open_offsets: list[Offset] = field(default_factory=list)


class History:
    """Random steps on one tiered partition with several producers, and what a consumer must
    read."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.tiered = TieredPartition(directory, seed=seed)
        self.written: dict[Offset, Written] = {}
        self.producers = [Transactional(producer_id) for producer_id in range(PRODUCERS)]
        self.weights: dict[Callable[[], None], int] = {
            self.append_transactional: 10,
            self.append_plain: 3,
            self.end: 6,
            self.roll: 3,
            self.copy: 3,
            self.delete_local: 2,
            self.restart: 1,
        }

    def step(self) -> None:
        (action,) = self.rng.choices(list(self.weights), list(self.weights.values()))
        action()
        self.tiered.clock.advance(1000)

    def append_transactional(self) -> None:
        producer = self.rng.choice(self.producers)
        offsets = self._append(
            producer.producer_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            base_sequence=producer.sequence,
            is_transactional=True,
        )
        producer.sequence += len(offsets)
        producer.open_offsets += offsets

    def append_plain(self) -> None:
        for offset in self._append(NOT_TRANSACTIONAL):
            self.written[offset].committed = True
            self.written[offset].marker_offset = offset

    def _append(self, owner: int, **producer: object) -> list[Offset]:
        count = self.rng.randint(1, 3)
        first = self.tiered.log.log_end_offset
        offsets = list(range(first, first + count))
        values = [b"%06d" % offset for offset in offsets]
        now_ms = self.tiered.clock.now_ms()
        batch = build_batch([(now_ms, None, value, ()) for value in values], **producer)
        assert self.tiered.append_batch(batch) == first
        self.written |= {
            offset: Written(value, owner) for offset, value in zip(offsets, values, strict=True)
        }
        return offsets

    def end(self) -> None:
        """End the transaction of any producer. It may have none open: an extra marker does no
        harm."""
        producer = self.rng.choice(self.producers)
        commit = self.rng.random() < 0.5
        if self.rng.random() < 0.3:  # fenced, or a client of transaction version 2
            producer.epoch += 1
            producer.sequence = 0
        marker = build_end_transaction_marker(
            ControlRecordType.COMMIT if commit else ControlRecordType.ABORT,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            coordinator_epoch=0,
            timestamp_ms=self.tiered.clock.now_ms(),
        )
        marker_offset = self.tiered.append_batch(marker, origin=AppendOrigin.COORDINATOR)
        for offset in producer.open_offsets:
            self.written[offset].committed = commit
            self.written[offset].marker_offset = marker_offset
        producer.open_offsets = []

    def roll(self) -> None:
        self.tiered.log.roll()

    def copy(self) -> None:
        self.tiered.copy_task.run()

    def delete_local(self) -> None:
        self.tiered.delete_local_segments()

    def restart(self) -> None:
        self.tiered.restart()

    # ---- what a consumer may see

    def last_stable_offset(self) -> Offset:
        return min(
            (offset for offset, each in self.written.items() if each.committed is None),
            default=self.tiered.log.log_end_offset,
        )

    def check(self) -> None:
        stable = self.last_stable_offset()
        assert self.tiered.log.last_stable_offset == stable
        start = self.rng.randrange(self.tiered.log.log_end_offset + 1)
        wanted = {
            offset: each.value
            for offset, each in self.written.items()
            if start <= offset < stable and each.committed
        }
        assert self.read_committed(start, stable) == wanted

    def read_committed(self, start: Offset, stable: Offset) -> dict[Offset, bytes]:
        found: dict[Offset, bytes] = {}
        offset = start
        while offset < stable:
            records, aborted = self._read(offset, self.rng.choice([1, 300, 5000]))
            assert records, f"nothing can be read below the last stable offset offset={offset}"
            waiting = sorted(aborted, key=lambda each: each[1])
            dropped: set[int] = set()
            for position, header in iterate_batches(records):
                while waiting and waiting[0][1] <= header.last_offset:
                    dropped.add(waiting.pop(0)[0])
                if header.is_control:
                    marker = read_control_record(records, position, header)
                    assert marker is not None
                    if marker.type is ControlRecordType.ABORT:
                        dropped.discard(header.producer_id)
                elif not (header.is_transactional and header.producer_id in dropped):
                    for record in read_records(records, position, header):
                        if record.offset >= start:
                            found[record.offset] = record.value
                offset = header.next_offset
        return found

    def check_bucket(self) -> int:
        """Check what Spark reads from the bucket alone. Return the number of records."""
        partition = self.tiered.partition.topic_partition
        pieces = lineage_pieces(self.tiered.segments())
        history = CommittedHistory(self.tiered.store, {partition: pieces})
        stable = history.stable_pieces()[partition]
        if not pieces:
            assert stable == []
            return 0
        bucket_end = pieces[-1].end_offset
        undecided = [
            offset
            for offset, each in self.written.items()
            if offset < bucket_end
            and (each.marker_offset is None or each.marker_offset >= bucket_end)
        ]
        end = min(undecided, default=bucket_end)
        assert max((piece.end_offset for piece in stable), default=0) == end
        start = self.rng.randrange(end + 1)
        wanted = OffsetRange(partition, start, self.rng.randint(start, end))
        reads = plan_reads(stable, wanted)
        parts = [part for read in reads for part in read.split(self.rng.randint(1, 3))]
        (marked,) = history.with_aborted([parts])
        decoded = read_segments(
            marked, self.tiered.store, frozenset({"value"}), settings=TINY_READS
        )
        found = {
            offset: value.as_py()
            for _, columns in decoded
            for offset, value in zip(columns.offset.tolist(), columns.value, strict=True)
        }
        assert found == {
            offset: each.value
            for offset, each in self.written.items()
            if wanted.start <= offset < wanted.end and each.committed
        }
        return len(found)

    def _read(self, offset: Offset, max_bytes: int) -> tuple[memoryview, list[tuple[int, Offset]]]:
        isolation = FetchIsolation.TXN_COMMITTED
        try:
            local = self.tiered.log.read(offset, max_bytes, isolation=isolation)
            records, aborted = local.records, local.aborted_transactions
        except OffsetOutOfRangeError:
            remote = self.tiered.read(offset, max_bytes, isolation=isolation)
            records = memoryview(b"".join(remote.records))
            aborted = remote.aborted_transactions
        assert aborted is not None
        return records, [
            (transaction.producer_id, transaction.first_offset) for transaction in aborted
        ]


@pytest.mark.parametrize("seed", SEEDS)
def test_read_committed_sees_what_was_committed_and_nothing_else(tmp_path: Path, seed: int) -> None:
    history = History(tmp_path, seed)
    for _ in range(STEPS):
        history.step()
        history.check()


@pytest.mark.parametrize("seed", SEEDS)
def test_spark_reads_of_the_bucket_what_was_committed_and_nothing_else(
    tmp_path: Path, seed: int
) -> None:
    history = History(tmp_path, seed)
    for step in range(STEPS):
        history.step()
        if step % 6 == 0:
            history.check_bucket()


def test_histories_reach_both_tiers_and_aborted_transactions(tmp_path: Path) -> None:
    """Without these counts the test above could pass on histories that test little."""
    aborted = remote = in_bucket = 0
    for seed in SEEDS:
        history = History(tmp_path / str(seed), seed)
        for _ in range(STEPS):
            history.step()
        aborted += sum(each.committed is False for each in history.written.values())
        remote += history.tiered.log.local_log_start_offset
        in_bucket += sum(history.check_bucket() for _ in range(5))
    assert aborted > 100
    assert remote > 100
    assert in_bucket > 100
