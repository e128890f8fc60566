"""A follower's log has the bytes, epochs, producers and aborted transactions of its leader's
log."""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from isotherm.config.topic import TopicConfig
from isotherm.errors import UnexpectedAppendOffsetError
from isotherm.log.log_loader import LogCheckpoints
from isotherm.log.partition_log import PartitionLog
from isotherm.record.batch import build_batch, iterate_batches
from isotherm.record.compression import CompressionType
from isotherm.record.control import ControlRecordType, build_end_transaction_marker
from isotherm.record.validation import AppendOrigin
from isotherm.segment.transaction_index import AbortedTransaction
from isotherm.testing.sim_clock import SimClock
from tests.support.crash_fs import CrashFileSystem
from tests.support.local_log import open_local_log

T0 = 1_700_000_000_000


def stored(log: PartitionLog) -> bytes:
    return b"".join(segment.log_path.read_bytes() for segment in log.segments())


def aborted(log: PartitionLog) -> list[AbortedTransaction]:
    return [
        transaction for segment in log.segments() for transaction in segment.aborted_transactions()
    ]


class FollowerMachine(RuleBasedStateMachine):
    """A leader's log and a follower's log. The follower restarts, also after crashes in which its
    file system loses data that was not synced."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.epoch = 0
        self.opened = 0
        self.sequences: dict[int, int] = {}
        self.open_transactions: set[int] = set()

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    @initialize(
        leader_bytes=st.sampled_from([500, 5000]), follower_bytes=st.sampled_from([300, 700, 5000])
    )
    def open_both(self, leader_bytes: int, follower_bytes: int) -> None:
        self.leader = open_local_log(
            self.root / "leader" / "topic-0", config=config(leader_bytes), clock=SimClock(T0)
        )
        self.leader.leader_epochs.assign(0, 0)
        self.config = config(follower_bytes)
        self.directory = self.root / "0" / "topic-0"
        self._open_follower(LogCheckpoints())

    def _open_follower(self, checkpoints: LogCheckpoints) -> None:
        self.fs = CrashFileSystem.adopting(self.directory)
        self.follower = open_local_log(
            self.directory,
            config=self.config,
            fs=self.fs,
            clock=SimClock(T0),
            checkpoints=checkpoints,
        )

    @rule(
        times=st.integers(1, 12),
        count=st.integers(1, 3),
        size=st.integers(0, 90),
        later=st.integers(-20, 20),
        codec=st.sampled_from([CompressionType.NONE, CompressionType.LZ4]),
        producer=st.sampled_from([None, 7, 8]),
        transactional=st.booleans(),
    )
    def append(
        self,
        times: int,
        count: int,
        size: int,
        later: int,
        codec: CompressionType,
        producer: int | None,
        transactional: bool,
    ) -> None:
        for _ in range(times):
            how: dict[str, object] = {}
            if producer is not None:
                sequence = self.sequences.get(producer, 0)
                transactional = transactional or producer in self.open_transactions
                how = {
                    "producer_id": producer,
                    "producer_epoch": 0,
                    "base_sequence": sequence,
                    "is_transactional": transactional,
                }
                self.sequences[producer] = sequence + count
                if transactional:
                    self.open_transactions.add(producer)
            timestamp = T0 + 10 * self.leader.log_end_offset + later
            batch = build_batch(
                [(timestamp, b"k", b"v" * size, ())] * count,
                compression=codec,
                **how,  # type: ignore[arg-type]
            )
            self.leader.append_as_leader(batch, self.epoch, now_ms=T0)

    @rule(producer=st.sampled_from([7, 8]), commit=st.booleans())
    def end_transaction(self, producer: int, commit: bool) -> None:
        marker = build_end_transaction_marker(
            ControlRecordType.COMMIT if commit else ControlRecordType.ABORT,
            producer_id=producer,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp_ms=T0,
        )
        self.leader.append_as_leader(marker, self.epoch, now_ms=T0, origin=AppendOrigin.COORDINATOR)
        self.open_transactions.discard(producer)

    @rule()
    def roll_the_leader(self) -> None:
        self.leader.roll()

    @rule(by=st.integers(1, 3))
    def elect_the_leader_again(self, by: int) -> None:
        self.epoch += by
        self.leader.leader_epochs.assign(self.epoch, self.leader.log_end_offset)

    @rule(max_bytes=st.integers(1, 3000), cut=st.integers(0, 100), older=st.booleans())
    def fetch(self, max_bytes: int, cut: int, older: bool) -> None:
        start = self.follower.log_end_offset
        records = self.leader.read(start, max_bytes).records
        sent = records[: max(0, len(records) - cut)]
        # An older request has an earlier epoch than the leader now has.
        epoch = self.epoch - 1 if older else self.epoch
        try:
            info = self.follower.append_as_follower(memoryview(bytes(sent)), epoch)
        except UnexpectedAppendOffsetError as error:
            self._begin_anew(start, error)
            info = self.follower.append_as_follower(memoryview(bytes(sent)), epoch)
        assert info.size <= len(sent)
        assert self.follower.log_end_offset == (info.last_offset + 1 if info.size else start)
        if older and info.size:
            assert info.last_leader_epoch <= epoch
        if not older and cut == 0 and start < self.leader.log_end_offset:
            assert info.size == len(sent) > 0
        self.follower.update_high_watermark(self.leader.log_end_offset)
        self._follower_is_a_prefix()

    def _begin_anew(self, start: int, error: UnexpectedAppendOffsetError) -> None:
        """Restart the follower's log at the base offset of a batch that begins before the log
        start. The log must be empty."""
        assert start == self.follower.log_start_offset
        assert error.first_offset < start <= error.last_offset
        self.follower.truncate_fully_and_start_at(error.first_offset)

    @rule(back=st.integers(0, 12))
    def truncate_and_fetch_again(self, back: int) -> None:
        self.follower.truncate_to(max(0, self.follower.log_end_offset - back))
        self._follower_is_a_prefix()

    @rule(back=st.integers(0, 12))
    def restart_from_the_leaders_start(self, back: int) -> None:
        offset = max(self.leader.log_start_offset, self.leader.log_end_offset - back)
        self.follower.truncate_fully_and_start_at(offset)
        assert (self.follower.log_start_offset, self.follower.log_end_offset) == (offset, offset)
        assert stored(self.follower) == b""
        assert self.follower.leader_epochs.entries == ()

    @rule()
    def close_and_reopen(self) -> None:
        self.follower.close()
        self._open_follower(
            LogCheckpoints(
                recovery_point=self.follower.recovery_point,
                log_start_offset=self.follower.log_start_offset,
                high_watermark=self.follower.high_watermark,
                clean_shutdown=True,
            )
        )
        self._follower_is_a_prefix()

    @rule(seed=st.integers(0, 2**32), flush_first=st.booleans())
    def crash_and_reopen(self, seed: int, flush_first: bool) -> None:
        if flush_first:
            self.follower.flush()
        durable_end = self.follower.recovery_point
        checkpoints = LogCheckpoints(
            recovery_point=durable_end, log_start_offset=self.follower.log_start_offset
        )
        self.opened += 1
        directory = self.root / str(self.opened) / "topic-0"
        directory.mkdir(parents=True)
        self.fs.crash_clone(random.Random(seed), self.directory, directory)
        self.directory = directory
        self._open_follower(checkpoints)
        assert self.follower.log_end_offset >= durable_end
        # A crash may leave a gap behind the durable part, so the follower continues at its end.
        self.follower.truncate_to(max(durable_end, self.follower.log_start_offset))
        self._follower_is_a_prefix()

    def _follower_is_a_prefix(self) -> None:
        """Check that the follower's log is a prefix of the leader's."""
        leader, follower = self.leader, self.follower
        start, end = follower.log_start_offset, follower.log_end_offset
        if start >= end:
            return
        expected, found = stored(leader), stored(follower)
        first = next(
            position
            for position, header in iterate_batches(expected)
            if header.last_offset >= start
        )
        assert expected[first:][: len(found)] == found
        rest = expected[first + len(found) :]
        assert (int.from_bytes(rest[:8]) if rest else leader.log_end_offset) == end
        for offset in range(start, end):
            epoch = leader.leader_epochs.epoch_for_offset(offset)
            assert follower.leader_epochs.epoch_for_offset(offset) == epoch
        for timestamp in range(T0 - 20, T0 + 10 * end, 37):
            ours, theirs = (log.offset_for_timestamp(timestamp) for log in (follower, leader))
            if theirs is not None and theirs.offset in range(start, end):
                assert ours == theirs
        if start == 0:  # else the follower may lack the first batch of a transaction
            ended = [each for each in aborted(leader) if each.last_offset < end]
            assert aborted(follower) == ended

    @invariant()
    def producers_are_the_leaders(self) -> None:
        if not hasattr(self, "follower"):
            return
        leader, follower = self.leader, self.follower
        if follower.log_start_offset == 0 and follower.log_end_offset == leader.log_end_offset:
            entries = [sorted(log.producers.snapshot_entries()) for log in (leader, follower)]
            assert entries[0] == entries[1]


def config(segment_bytes: int) -> TopicConfig:
    return TopicConfig(
        internal_segment_bytes=segment_bytes,
        index_interval_bytes=100,
        segment_index_bytes=240,
        retention_ms=-1,
        file_delete_delay_ms=0,
    )


TestFollowerLog = FollowerMachine.TestCase
TestFollowerLog.settings = settings(max_examples=150, stateful_step_count=40)
