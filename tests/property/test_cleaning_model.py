"""Random histories of a compacted log against a small model, and every reader of logs on the
cleaner's result.

The model knows records and batches, not bytes. It decides which records a round keeps, and which
batches get a delete horizon. tests/oracle/test_cleaner.py checks markers and empty batches against
Kafka's own cleaner.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from isotherm.log.cleaner.choice import LogToClean
from isotherm.log.log_loader import LogCheckpoints
from isotherm.log.log_read import FetchIsolation
from isotherm.log.log_segment import LogSegment
from isotherm.record.batch import CompressionType, Record, iterate_batches
from isotherm.record.columns import decode_columns
from isotherm.segment.offset_index import OffsetPosition, read_offset_index
from isotherm.types import Offset, ProducerId, TimestampMs
from tests.support.cleaning_histories import CleaningHistory, Written
from tests.support.compacted_log import CompactedLog

RANDOM = st.randoms(use_true_random=False)
CHECKED = settings(
    max_examples=40,
    suppress_health_check=list(HealthCheck),
    # No shrinking: smaller random numbers do not give a smaller history.
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)


class Model:
    """The records that cleaning removed and the delete horizons of batches."""

    def __init__(self, history: CleaningHistory) -> None:
        self.history = history
        self.gone: set[Offset] = set()
        self.horizons: dict[Offset, TimestampMs] = {}
        """Delete horizons by the base offset of the batch."""

    def alive(self) -> list[Written]:
        written = self.history.written
        return [written[offset] for offset in sorted(written) if offset not in self.gone]

    def clean(self, to_clean: LogToClean, end_offset: Offset, bases: list[Offset]) -> None:
        """Apply a round that came to `end_offset` to the model. `bases` are the base offsets of the
        segments before it."""
        now_ms, latest = self.history.clock.now_ms(), end_offset - 1
        rewritten_end = next((base for base in bases if base >= end_offset), bases[-1])
        before = [each for each in self.alive() if each.record.offset < rewritten_end]
        newest = {
            each.record.key: each.record.offset
            for each in before
            if each.committed is not False
            and to_clean.first_dirty_offset <= each.record.offset <= latest
        }
        if end_offset == 0:
            return
        for each in before:
            record, batch = each.record, each.batch_base
            has_expired = record.value is None and now_ms >= self.horizons.get(batch, 2**63)
            is_newest = record.offset >= newest.get(record.key, -1) and record.key is not None
            if each.committed is False or (
                record.offset <= latest and (has_expired or not is_newest)
            ):
                self.gone.add(record.offset)
        for batch, records in self.batches().items():
            if batch < rewritten_end and batch + self.count(batch) - 1 <= latest:
                kept = [each for each in records if each.record.offset not in self.gone]
                if any(each.record.value is None for each in kept):
                    horizon = now_ms + self.history.config.delete_retention_ms
                    self.horizons.setdefault(batch, horizon)

    def batches(self) -> dict[Offset, list[Written]]:
        batches: dict[Offset, list[Written]] = {}
        for each in self.alive():
            batches.setdefault(each.batch_base, []).append(each)
        return batches

    def count(self, batch: Offset) -> int:
        return sum(each.batch_base == batch for each in self.history.written.values())


def rounds(rng: random.Random) -> Iterator[tuple[CleaningHistory, Model]]:
    """Yields a history and its model after each round of the cleaner."""
    with tempfile.TemporaryDirectory() as folder:
        history = CleaningHistory(
            Path(folder) / "topic-0",
            rng,
            codecs=tuple(CompressionType),
            map_slots=(1000, 1000, 3, 5, 9),
        )
        model = Model(history)
        for _ in range(rng.randrange(1, 6)):
            for _ in range(rng.randrange(30)):
                history.step()
            to_clean = history.to_clean()
            bases = [segment.base_offset for segment in history.log.log.segments()]
            cleaned = history.clean()
            model.clean(to_clean, cleaned.end_offset, bases)
            yield history, model
            if rng.random() < 0.3:
                history.reopen()
        history.close()


def data_records(log: CompactedLog) -> list[Record]:
    return [
        record for batch in log.batches() if not batch.header.is_control for record in batch.records
    ]


@given(rng=RANDOM)
@CHECKED
def test_round_keeps_what_the_model_keeps(rng: random.Random) -> None:
    for history, model in rounds(rng):
        assert data_records(history.log) == [each.record for each in model.alive()]
        horizons = {
            batch.header.base_offset: batch.header.delete_horizon_ms
            for batch in history.log.batches()
            if not batch.header.is_control and batch.records
        }
        batches = model.batches()
        assert horizons == {batch: model.horizons.get(batch) for batch in batches}


@given(rng=RANDOM)
@CHECKED
def test_consumers_see_the_newest_value_of_every_key(rng: random.Random) -> None:
    """One read_committed consumer begins at any offset, another one at the start."""
    for history, model in rounds(rng):
        log = history.log.log
        stable = log.last_stable_offset
        final: dict[bytes | None, bytes | None] = {}
        for offset, each in sorted(history.written.items()):
            if each.committed and offset < stable and each.record.key is not None:
                final[each.record.key] = each.record.value
        state: dict[bytes | None, bytes | None] = {}
        for _, key, value in committed(history.log, 0, rng):
            state[key] = value
        live = {key: value for key, value in state.items() if value is not None and key is not None}
        assert live == {key: value for key, value in final.items() if value is not None}
        expected = [
            (each.record.offset, each.record.key, each.record.value)
            for each in model.alive()
            if each.committed and each.record.offset < stable
        ]
        start = rng.randrange(log.log_end_offset + 1)
        assert list(committed(history.log, start, rng)) == [
            row for row in expected if row[0] >= start
        ]


def committed(
    compacted: CompactedLog, offset: Offset, rng: random.Random
) -> Iterator[tuple[Offset, bytes | None, bytes | None]]:
    log = compacted.log
    while True:
        size = rng.choice([1, 200, 10_000])
        read = log.read(offset, size, isolation=FetchIsolation.TXN_COMMITTED)
        if not len(read.records):
            return
        aborted = read.aborted_transactions or []
        columns = decode_columns(read.records, offset_range=(offset, 2**62), aborted=aborted)
        assert columns.position_end == len(read.records)
        yield from zip(
            columns.offset.tolist(), columns.key.to_pylist(), columns.value.to_pylist(), strict=True
        )
        assert columns.next_offset > offset
        offset = columns.next_offset


@given(rng=RANDOM)
@CHECKED
def test_lookups_find_what_is_left(rng: random.Random) -> None:
    for history, model in rounds(rng):
        log = history.log.log
        last_offsets = history.log.last_offsets()
        for offset in range(log.log_end_offset):
            read = log.read(offset, 1)
            following = [last for last in last_offsets if last >= offset]
            if following:
                _, header = next(iterate_batches(read.records))
                assert header.last_offset == following[0], "the batch that holds or follows it"
            else:
                assert not len(read.records)
        data = [each.record for each in model.alive()]
        for timestamp in {record.timestamp_ms + shift for record in data for shift in (0, 1)}:
            found = log.offset_for_timestamp(timestamp)
            everything = history.log.records()
            expected = next((each for each in everything if each.timestamp_ms >= timestamp), None)
            assert (found and found.offset) == (expected and expected.offset)


@given(rng=RANDOM)
@CHECKED
def test_recovery_rebuilds_what_the_cleaner_wrote(rng: random.Random) -> None:
    """Recovery builds indexes, epochs and producers from the batches alone."""
    for history, _ in rounds(rng):
        end_offset = history.close()
        copy = history.directory.parent / "copy" / "topic-0"
        shutil.copytree(history.directory, copy)
        for pattern in ("*.index", "*.txnindex", "*.snapshot"):
            for path in copy.glob(pattern):
                path.unlink()
        history.open(end_offset)
        recovered = CompactedLog(
            copy, config=history.config, clock=history.clock, checkpoints=LogCheckpoints()
        )
        ours, theirs = history.log, recovered
        assert list(ours.batches()) == list(theirs.batches())
        assert ours.log.log_end_offset == theirs.log.log_end_offset
        assert ours.log.last_stable_offset == theirs.log.last_stable_offset
        assert ours.log.leader_epochs.entries == theirs.log.leader_epochs.entries
        for mine, other in zip(ours.log.segments(), theirs.log.segments(), strict=True):
            assert aborts(other) <= aborts(mine), "one whose data is gone is not seen any more"
            places = {
                (header.last_offset, position)
                for position, header in mine.read_headers(mine.base_offset)
            }
            assert set(entries(mine)) <= places
            assert set(entries(other)) <= places
        assert list(committed(recovered, 0, rng)) == list(committed(ours, 0, rng))
        recovered.log.close()
        shutil.rmtree(copy)


def aborts(segment: LogSegment) -> set[tuple[ProducerId, Offset]]:
    return {
        (transaction.producer_id, transaction.last_offset)
        for transaction in segment.aborted_transactions()
    }


def entries(segment: LogSegment) -> list[OffsetPosition]:
    return read_offset_index(segment.offset_index_path.read_bytes(), segment.base_offset)
