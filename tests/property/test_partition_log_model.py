"""`PartitionLog` against a list of batches, under random operations."""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from isotherm.config.topic import TopicConfig
from isotherm.log.log_loader import LogCheckpoints
from isotherm.record.batch import build_batch, iterate_batches
from isotherm.testing.sim_clock import SimClock
from tests.support.crash_fs import CrashFileSystem
from tests.support.local_log import open_local_log

T0 = 1_700_000_000_000
PRODUCER_ID = 7


class Batch(NamedTuple):
    """A batch of the model. `stored` is what the log must return; `sequence` is the last sequence,
    None without a producer."""

    base_offset: int
    last_offset: int
    timestamp: int
    epoch: int
    sequence: int | None
    stored: bytes


class PartitionLogMachine(RuleBasedStateMachine):
    """A log and the list of its batches, under operations, restarts and crashes."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.history: list[Batch] = []
        self.log_start = 0
        self.end = 0
        self.epoch = 0
        self.opened = 0

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    @initialize(segment_bytes=st.sampled_from([400, 900, 5000]), interval=st.sampled_from([1, 300]))
    def open_empty(self, segment_bytes: int, interval: int) -> None:
        self.config = TopicConfig(
            internal_segment_bytes=segment_bytes,
            index_interval_bytes=interval,
            segment_index_bytes=240,
            retention_ms=-1,
            file_delete_delay_ms=0,
        )
        self.directory = self.root / "0" / "topic-0"
        self._open(LogCheckpoints())

    def _open(self, checkpoints: LogCheckpoints) -> None:
        self.fs = CrashFileSystem.adopting(self.directory)
        self.log = open_local_log(
            self.directory,
            config=self.config,
            fs=self.fs,
            clock=SimClock(T0),
            checkpoints=checkpoints,
        )
        self.log.update_high_watermark(self.log.log_end_offset)

    @rule(
        times=st.integers(1, 4),
        count=st.integers(1, 4),
        size=st.integers(0, 60),
        later=st.integers(-20, 20),
        idempotent=st.booleans(),
    )
    def append(self, times: int, count: int, size: int, later: int, idempotent: bool) -> None:
        for _ in range(times):
            self._append(count, size, later, idempotent)

    def _append(self, count: int, size: int, later: int, idempotent: bool) -> None:
        base = self.end
        timestamp = T0 + 10 * base + later
        records = [(timestamp, b"%d" % (base + n), b"v" * size, ()) for n in range(count)]
        producer = {}
        sequence = None
        if idempotent:
            first = self._last_sequence() + 1
            producer = {"producer_id": PRODUCER_ID, "producer_epoch": 0, "base_sequence": first}
            sequence = first + count - 1
        info = self.log.append_as_leader(build_batch(records, **producer), self.epoch, now_ms=T0)
        self.log.update_high_watermark(self.log.log_end_offset)
        assert (info.first_offset, info.last_offset) == (base, base + count - 1)
        self.end = base + count
        stored = build_batch(
            records, base_offset=base, partition_leader_epoch=self.epoch, **producer
        )
        self.history.append(
            Batch(base, base + count - 1, timestamp, self.epoch, sequence, bytes(stored))
        )

    def _last_sequence(self) -> int:
        state = self.log.producers.producer(PRODUCER_ID)
        return -1 if state is None else state.last_sequence

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def new_leader_epoch(self) -> None:
        self.epoch += 1
        self.log.leader_epochs.assign(self.epoch, self.log.log_end_offset)

    @rule(closed_only=st.booleans())
    def flush(self, closed_only: bool) -> None:
        self.log.flush(closed_segments_only=closed_only)

    @rule(back=st.integers(0, 60), max_bytes=st.integers(1, 700), one=st.booleans())
    def read(self, back: int, max_bytes: int, one: bool) -> None:
        offset = max(self.log_start, self.end - back)
        read = self.log.read(offset, max_bytes, min_one_message=one)
        available = [batch for batch in self.history if batch.last_offset >= offset]
        found = bytes(read.records)
        count = sum(1 for _ in iterate_batches(found))
        assert found == b"".join(batch.stored for batch in available[:count])
        if available and (one or len(available[0].stored) <= max_bytes):
            assert count >= 1
        assert count <= 1 or len(found) <= max_bytes

    @rule(later=st.integers(-60, 700))
    def look_up_a_timestamp(self, later: int) -> None:
        found = self.log.offset_for_timestamp(T0 + later)
        expected = next(
            (
                (batch.timestamp, max(batch.base_offset, self.log_start), batch.epoch)
                for batch in self.history
                if batch.last_offset >= self.log_start and batch.timestamp >= T0 + later
            ),
            None,
        )
        assert found == expected

    @rule(back=st.integers(0, 10))
    def truncate(self, back: int) -> None:
        offset = max(self.log_start, self.end - back)
        self.log.truncate_to(offset)
        kept = [batch for batch in self.history if batch.last_offset < offset]
        self.history = kept
        if offset < self.end:
            # The log dropped the whole batch that held the offset.
            end_of_kept = kept[-1].last_offset + 1 if kept else 0
            self.end = self.log.log_end_offset
            # Unequal only if an earlier crash left a gap there.
            assert max(self.log_start, end_of_kept) <= self.end <= offset

    @rule(back=st.integers(0, 40))
    def delete_records(self, back: int) -> None:
        offset = max(0, self.end - back)
        self.log.maybe_increment_log_start_offset(offset)
        self.log_start = max(self.log_start, offset)
        self.log.delete_old_segments(T0)
        self.log.delete_marked_files(T0)

    @rule()
    def close_and_reopen(self) -> None:
        self.log.close()
        assert self.log.recovery_point == self.log.log_end_offset
        self._open(
            LogCheckpoints(
                recovery_point=self.log.recovery_point,
                log_start_offset=self.log.log_start_offset,
                clean_shutdown=True,
            )
        )

    @rule(seed=st.integers(0, 2**32), flush_first=st.booleans())
    def crash_and_reopen(self, seed: int, flush_first: bool) -> None:
        if flush_first:
            self.log.flush()
        durable_end = self.log.recovery_point
        checkpoints = LogCheckpoints(
            recovery_point=durable_end, log_start_offset=self.log.log_start_offset
        )
        self.opened += 1
        directory = self.root / str(self.opened) / "topic-0"
        directory.mkdir(parents=True)
        self.fs.crash_clone(random.Random(seed), self.directory, directory)
        self.directory = directory
        self._open(checkpoints)
        self.end = self.log.log_end_offset
        assert self.end >= durable_end
        self._forget_what_the_crash_took(durable_end)
        self.epoch += 1

    def _forget_what_the_crash_took(self, durable_end: int) -> None:
        """Remove from the model what a crash lost. Any batch that was not durable may be lost, not
        only the last ones; all others are unchanged."""
        found: set[bytes] = set()
        for segment in self.log.segments():
            data = segment.log_path.read_bytes()
            batches = [(at, at + header.size_in_bytes) for at, header in iterate_batches(data)]
            assert (batches[-1][1] if batches else 0) == len(data)
            found |= {data[start:end] for start, end in batches}
        survivors = [batch for batch in self.history if batch.stored in found]
        assert len(survivors) == len(found)
        lost = [batch for batch in self.history if batch.stored not in found]
        first_base = self.log.segments()[0].base_offset
        assert all(b.last_offset >= durable_end or b.base_offset < first_base for b in lost)
        self.history = survivors

    @invariant()
    def offsets_are_those_of_the_model(self) -> None:
        if not hasattr(self, "log"):
            return
        assert self.log.log_end_offset == self.end
        assert self.log.log_start_offset == self.log_start
        assert self.log.local_log_start_offset <= self.log.log_end_offset

    @invariant()
    def epochs_are_those_of_the_batches(self) -> None:
        if not hasattr(self, "log"):
            return
        for batch in self.history:
            if batch.base_offset >= self.log_start:
                assert self.log.leader_epochs.epoch_for_offset(batch.base_offset) == batch.epoch

    @invariant()
    def producer_is_known_by_its_last_batch(self) -> None:
        if not hasattr(self, "log"):
            return
        last = next((b for b in reversed(self.history) if b.sequence is not None), None)
        if last is not None and last.last_offset >= self.log_start:
            assert self._last_sequence() == last.sequence


TestPartitionLog = PartitionLogMachine.TestCase
TestPartitionLog.settings = settings(max_examples=60, stateful_step_count=30)
