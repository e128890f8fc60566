"""A follower's log: appends of fetched batches, truncations, and the state after a crash at any
step."""

from __future__ import annotations

import random
import shutil
import uuid
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from isotherm.config.broker import BrokerConfig
from isotherm.config.remote import RemoteLogManagerConfig
from isotherm.config.topic import TopicConfig
from isotherm.errors import (
    CorruptRecordError,
    OffsetsOutOfOrderError,
    UnexpectedAppendOffsetError,
)
from isotherm.log.fs import File, FileSystem, OsFileSystem
from isotherm.log.log_loader import LogCheckpoints
from isotherm.log.log_manager import LogManager
from isotherm.log.partition_log import PartitionLog
from isotherm.record.batch import build_batch
from isotherm.record.control import ControlRecordType, build_end_transaction_marker
from isotherm.segment.leader_epoch_checkpoint import EpochEntry
from isotherm.segment.offset_index import Buffer
from isotherm.segment.producer_snapshot import ProducerSnapshotEntry
from isotherm.testing.sim_clock import SimClock
from isotherm.types import UNKNOWN_OFFSET, TopicPartition
from tests.support.local_log import open_local_log

PARTITION = TopicPartition("topic", 0)
TOPIC_ID = uuid.UUID(int=7)
T0 = 1_700_000_000_000
SMALL = TopicConfig(
    internal_segment_bytes=1000, index_interval_bytes=200, segment_index_bytes=1200, retention_ms=-1
)


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    return open_local_log(tmp_path / "topic-0", config=SMALL)


def batch(
    base_offset: int, count: int = 1, *, epoch: int = 0, size: int = 10, **more: Any
) -> bytes:
    return bytes(
        build_batch(
            [(T0 + base_offset, b"k", b"v" * size, ())] * count,
            base_offset=base_offset,
            partition_leader_epoch=epoch,
            **more,
        )
    )


def fetched(log: PartitionLog, *batches: bytes, epoch: int = 9) -> Any:
    return log.append_as_follower(memoryview(b"".join(batches)), epoch)


def stored(log: PartitionLog) -> bytes:
    return b"".join(segment.log_path.read_bytes() for segment in log.segments())


def manager_of(log_dir: Path, config: TopicConfig, fs: FileSystem) -> LogManager:
    remote = RemoteLogManagerConfig(remote_log_storage_system_enable=True)
    manager = LogManager(
        (log_dir,),
        config=BrokerConfig(log_dirs=(log_dir,), topic_defaults=config, remote=remote),
        topic_config_for=lambda topic: config,
        clock=SimClock(T0),
        fs=fs,
        rng=random.Random(1),
    )
    manager.startup()
    return manager


def test_answer_without_a_whole_batch_appends_nothing(log: PartitionLog) -> None:
    for records in (b"", batch(0)[:-1], batch(0)[:20]):
        assert fetched(log, records) == (-1, -1, -1, 0, False)
    assert log.log_end_offset == 0


def test_batch_that_is_cut_off_is_left_out(log: PartitionLog) -> None:
    whole = batch(0, 2, epoch=3) + batch(5, 3, epoch=4)
    assert fetched(log, whole, batch(8)[:-1]) == (0, 7, 4, len(whole), False)
    assert stored(log) == whole
    assert log.leader_epochs.entries == ((3, 0), (4, 5))


def test_batch_of_a_later_epoch_than_the_request_ends_the_append(log: PartitionLog) -> None:
    """KAFKA-18723. Batches behind it are not appended either, even of the request's epoch."""
    first = batch(0, epoch=2)
    info = fetched(log, first, batch(1, epoch=3), batch(2, epoch=2), epoch=2)
    assert info == (0, 0, 2, len(first), False)
    assert (stored(log), log.leader_epochs.entries) == (first, ((2, 0),))


@pytest.mark.parametrize("damaged", [0, 1])
def test_wrong_crc_appends_nothing(log: PartitionLog, damaged: int) -> None:
    batches = [bytearray(batch(0)), bytearray(batch(1))]
    batches[damaged][-1] ^= 1
    with pytest.raises(CorruptRecordError, match="fails its crc"):
        fetched(log, *map(bytes, batches))
    assert (log.log_end_offset, stored(log), log.leader_epochs.entries) == (0, b"", ())


def test_header_that_no_writer_produces_appends_nothing(log: PartitionLog) -> None:
    wrong = bytearray(batch(1))
    wrong[16] = 1  # magic
    with pytest.raises(CorruptRecordError, match="magic"):
        fetched(log, batch(0), bytes(wrong))
    assert log.log_end_offset == 0


def test_offsets_that_do_not_rise_append_nothing(log: PartitionLog) -> None:
    with pytest.raises(OffsetsOutOfOrderError, match="base_offset=1 after=1"):
        fetched(log, batch(0, 2), batch(1))
    assert log.log_end_offset == 0


def test_batches_below_the_log_end_append_nothing(log: PartitionLog) -> None:
    fetched(log, batch(0, 3))
    with pytest.raises(UnexpectedAppendOffsetError, match="log_end_offset=3") as raised:
        fetched(log, batch(2, 3), batch(5))
    assert (raised.value.first_offset, raised.value.last_offset) == (2, 5)
    assert log.log_end_offset == 3


def test_marker_that_cannot_be_read_appends_nothing(log: PartitionLog) -> None:
    broken = batch(1, producer_id=7, producer_epoch=0, is_transactional=True, is_control=True)
    with pytest.raises(CorruptRecordError):
        fetched(log, batch(0), broken)
    assert (log.log_end_offset, stored(log)) == (0, b"")


def test_log_rolls_within_an_answer_with_a_snapshot_at_each_start(log: PartitionLog) -> None:
    batches = [
        batch(n, size=100, producer_id=7, producer_epoch=0, base_sequence=n) for n in range(12)
    ]
    fetched(log, *batches)
    assert [segment.base_offset for segment in log.segments()] == [0, 5, 10]
    assert log.snapshots.offsets == (5, 10)
    assert stored(log) == b"".join(batches)


def test_batch_larger_than_a_segment_gets_a_segment_of_its_own(log: PartitionLog) -> None:
    """The leader appended it when segment.bytes was larger."""
    batches = [batch(0, size=2000), batch(1), batch(2, size=2000)]
    fetched(log, *batches)
    assert [segment.base_offset for segment in log.segments()] == [0, 1, 2]
    assert stored(log) == b"".join(batches)


def test_offsets_that_compaction_left_out_do_not_overflow_the_indexes(log: PartitionLog) -> None:
    far = 2**33
    batches = [batch(0), batch(far), batch(far + 1)]
    fetched(log, *batches)
    assert [segment.base_offset for segment in log.segments()] == [0, far]
    assert stored(log) == b"".join(batches)
    assert log.read(1, 10**6).records == batches[1] + batches[2]


def test_only_the_last_batches_of_a_producer_are_applied_one_by_one(log: PartitionLog) -> None:
    batches = [
        batch(n, producer_id=1 + n % 2, producer_epoch=0, base_sequence=n // 2) for n in range(40)
    ]
    fetched(log, *batches)
    for producer in (1, 2):
        state = log.producers.producer(producer)
        assert state is not None
        assert [each.last_sequence for each in state.batches] == [15, 16, 17, 18, 19]
        assert state.batches[-1].last_offset == 37 + producer


def test_flush_messages_is_reported(tmp_path: Path) -> None:
    log = open_local_log(tmp_path / "topic-0", config=TopicConfig(flush_messages=2))
    assert fetched(log, batch(0)).needs_flush is False
    assert fetched(log, batch(1)).needs_flush is True


def test_last_stable_offset_follows_the_leaders_transactions(log: PartitionLog) -> None:
    transactional = {"producer_id": 7, "producer_epoch": 0, "is_transactional": True}
    fetched(log, batch(0), batch(1, base_sequence=0, **transactional))
    log.update_high_watermark(2)
    assert log.last_stable_offset == 1
    marker = build_end_transaction_marker(
        ControlRecordType.ABORT,
        producer_id=7,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp_ms=T0,
        base_offset=2,
    )
    fetched(log, bytes(marker))
    log.update_high_watermark(3)
    assert log.last_stable_offset == 3
    [aborted] = log.segments()[-1].aborted_transactions()
    assert (aborted.first_offset, aborted.last_offset) == (1, 2)


def test_truncation_leaves_ended_transactions_below_the_high_watermark_stable(
    log: PartitionLog,
) -> None:
    """The high watermark may stay where it is until the next append, also if this broker leads
    next."""
    transactional = {"producer_id": 7, "producer_epoch": 0, "is_transactional": True}
    marker = build_end_transaction_marker(
        ControlRecordType.COMMIT,
        producer_id=7,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp_ms=T0,
        base_offset=2,
    )
    fetched(log, batch(0), batch(1, base_sequence=0, **transactional), bytes(marker), batch(3))
    log.update_high_watermark(3)
    assert log.last_stable_offset == 3
    log.truncate_to(3)
    assert (log.log_end_offset, log.high_watermark, log.last_stable_offset) == (3, 3, 3)


@pytest.mark.parametrize("offset", [3, 5])
def test_truncation_at_the_end_drops_an_epoch_without_records(
    log: PartitionLog, offset: int
) -> None:
    """As in Kafka: a former leader may have begun an epoch that has no record on any replica. No
    record is dropped, so a copy to another directory need not start again."""
    fetched(log, batch(0, 3, epoch=1))
    log.leader_epochs.assign(2, 3)
    removals = log.removals
    log.truncate_to(offset)
    assert log.leader_epochs.entries == ((1, 0),)
    assert log.removals == removals


def test_truncation_below_the_log_start_lowers_it(log: PartitionLog) -> None:
    fetched(log, *(batch(n) for n in range(9)))
    log.update_high_watermark(9)
    log.maybe_increment_log_start_offset(5)
    log.truncate_to(2)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (2, 2, 2)
    fetched(log, batch(2))


@pytest.mark.parametrize("clean", [True, False])
def test_log_whose_start_lay_in_a_truncated_batch_is_loaded_again(
    tmp_path: Path, clean: bool
) -> None:
    log = open_local_log(tmp_path / "topic-0", config=SMALL)
    fetched(log, batch(0, 3), batch(3, 6))
    log.update_high_watermark(9)
    log.maybe_increment_log_start_offset(5)
    log.truncate_to(7)
    assert (log.log_start_offset, log.log_end_offset) == (5, 5)
    log.close()
    checkpoints = LogCheckpoints(log.recovery_point, 5, log.high_watermark, clean)
    log = open_local_log(tmp_path / "topic-0", config=SMALL, checkpoints=checkpoints)
    assert (log.log_start_offset, log.log_end_offset) == (5, 5)
    fetched(log, batch(5))


def test_log_begins_anew_with_the_history_of_the_remote_tier(tmp_path: Path) -> None:
    tiered = TopicConfig(remote_storage_enable=True, retention_ms=-1)
    log = open_local_log(tmp_path / "topic-0", config=tiered)
    fetched(log, batch(0, 3, epoch=1, producer_id=5, producer_epoch=0, base_sequence=0))
    producer = ProducerSnapshotEntry(
        producer_id=7,
        producer_epoch=2,
        last_sequence=11,
        last_offset=480,
        offset_delta=1,
        timestamp_ms=T0,
        coordinator_epoch=-1,
        current_transaction_first_offset=-1,
    )
    log.truncate_fully_and_start_at(
        500,
        log_start_offset=20,
        leader_epochs=[EpochEntry(0, 0), EpochEntry(3, 10), EpochEntry(4, 300)],
        producers=[producer],
    )

    def check(log: PartitionLog) -> None:
        assert (log.log_start_offset, log.local_log_start_offset) == (20, 500)
        assert (log.log_end_offset, log.high_watermark) == (500, 500)
        assert log.leader_epochs.entries == ((3, 20), (4, 300))
        assert log.producers.snapshot_entries() == [producer]
        assert stored(log) == b""

    check(log)
    fetched(log, batch(500, epoch=4))
    log.truncate_to(500)
    log.abandon()
    # Reopen as after a crash, with the log start that the manager checkpointed.
    checkpoints = LogCheckpoints(recovery_point=0, log_start_offset=20, high_watermark=500)
    check(open_local_log(tmp_path / "topic-0", config=tiered, checkpoints=checkpoints))


def test_log_that_begins_anew_with_the_epochs_it_has_keeps_them_over_a_kill(tmp_path: Path) -> None:
    """The epoch of its last records was not flushed yet. The batches after the new beginning do not
    say where the epoch began."""
    log_dir = tmp_path / "before"
    log = open_local_log(log_dir / "topic-0", config=SMALL)
    fetched(log, batch(0, 100, epoch=0))
    log.flush()
    fetched(log, batch(100, epoch=5))
    epochs = log.leader_epochs.entries
    assert epochs == ((0, 0), (5, 100))
    log.truncate_fully_and_start_at(1000, log_start_offset=0, leader_epochs=epochs)
    fetched(log, batch(1000, epoch=5))
    shutil.copytree(log_dir, tmp_path / "killed")
    checkpoints = LogCheckpoints(recovery_point=0, log_start_offset=0, high_watermark=1000)
    loaded = open_local_log(tmp_path / "killed/topic-0", config=SMALL, checkpoints=checkpoints)
    assert loaded.log_end_offset == 1001
    assert loaded.leader_epochs.entries == epochs


@pytest.mark.parametrize(
    ("offset", "stored"),
    [(3, 3), (5, 3), (6, 6), (7, 6), (9, 9), (11, 9), (2, 0), (UNKNOWN_OFFSET, 0)],
)
def test_recovery_point_of_a_truncation_is_where_its_last_segment_begins(
    tmp_path: Path, offset: int, stored: int
) -> None:
    """After a crash recovery reads this segment again: records may be missing from it, but not from
    segments below. If no segment stays, the recovery point is 0."""
    log = open_local_log(tmp_path / "topic-0", config=SMALL)
    log.truncate_fully_and_start_at(3)
    fetched(log, *(batch(n, size=200) for n in range(3, 12)))
    log.flush()
    assert [segment.base_offset for segment in log.segments()] == [3, 6, 9]
    start = 40 if offset == UNKNOWN_OFFSET else None

    def write_checkpoints() -> None:
        with log.about_to_truncate(offset, start):
            assert log.recovery_point == stored
            assert log.log_start_offset_to_store == (start or log.log_start_offset)
            raise OSError("No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_checkpoints()
    # The checkpoints were not written, so nothing is truncated.
    assert (log.recovery_point, log.log_start_offset_to_store) == (12, log.log_start_offset)


class CopyingFileSystem(OsFileSystem):
    """Copies the log directory before every change. Each copy is the state that a killed process
    leaves."""

    def __init__(self, log_dir: Path) -> None:
        self._log_dir = log_dir
        self.copies: list[Path] | None = None

    def _copy(self) -> None:
        if self.copies is not None:
            copy = self._log_dir.with_name(f"killed-{len(self.copies)}")
            shutil.copytree(self._log_dir, copy)
            self.copies.append(copy)

    def open_writable(self, path: Path) -> File:
        self._copy()
        return super().open_writable(path)

    def rename(self, source: Path, target: Path) -> None:
        self._copy()
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        self._copy()
        super().remove(path)

    def write_bytes(self, path: Path, data: Buffer) -> None:
        self._copy()
        super().write_bytes(path, data)

    def sync_directory(self, path: Path) -> None:
        self._copy()
        super().sync_directory(path)


@pytest.mark.parametrize("tiered", [False, True])
@pytest.mark.parametrize(
    "truncate",
    [
        lambda manager, log: manager.truncate_log(log, 7),
        lambda manager, log: manager.truncate_log(log, 1),
        lambda manager, log: manager.truncate_log_fully_and_start_at(log, 4),
        lambda manager, log: manager.truncate_log_fully_and_start_at(log, 40),
        lambda manager, log: manager.truncate_log_fully_and_start_at(
            log, 40, log_start_offset=3, leader_epochs=[EpochEntry(0, 0), EpochEntry(9, 20)]
        ),
    ],
)
def test_log_loads_wherever_a_kill_cuts_a_truncation_off(
    tmp_path: Path, truncate: Any, tiered: bool
) -> None:
    log_dir = tmp_path / "data"
    fs = CopyingFileSystem(log_dir)
    config = replace(SMALL, remote_storage_enable=tiered, file_delete_delay_ms=0)
    manager = manager_of(log_dir, config, fs)
    log = manager.create_log(PARTITION, TOPIC_ID, config)
    fetched(log, *(batch(n, size=200, epoch=n // 4) for n in range(3, 12)))
    log.update_high_watermark(12)
    log.flush()
    manager.checkpoint()
    fs.copies = []
    truncate(manager, log)
    copies, fs.copies = [*fs.copies], None
    assert len(copies) > 5
    for copy in copies:
        found = manager_of(copy, config, OsFileSystem())
        assert found.offline_logs() == ()
        killed = found.log(PARTITION)
        assert killed is not None
        assert killed.log_start_offset <= killed.log_end_offset
        headers = [each for segment in killed.segments() for _, each in segment.read_headers(0)]
        assert all(
            after.base_offset == before.last_offset + 1 for before, after in pairwise(headers)
        ), "a kill leaves a gap"
        latest = killed.leader_epochs.latest
        # Batches of the old history never stand beside epochs of the new one.
        if stored(killed):
            assert latest is not None
            assert latest.epoch < 9
        # An empty log that begins behind the tier has exactly the epochs of the new history.
        elif tiered and killed.log_start_offset == 3 and killed.log_end_offset == 40:
            assert killed.leader_epochs.entries == ((0, 3), (9, 20))


HISTORY = [EpochEntry(0, 0), EpochEntry(1, 36)]


def test_truncation_below_the_first_local_segment_keeps_the_history_of_the_remote_part(
    tmp_path: Path,
) -> None:
    """Without this history the partition would be offline after a restart, because its lineage
    would be lost."""
    log = open_local_log(tmp_path / "topic-0", config=SMALL)
    log.truncate_fully_and_start_at(289, log_start_offset=0, leader_epochs=HISTORY)
    log.truncate_to(36)
    assert (log.log_start_offset, log.log_end_offset) == (0, 36)
    assert list(log.leader_epochs.entries) == [EpochEntry(0, 0)]


def test_flush_that_a_new_beginning_overtakes_stores_nothing_of_the_old_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_local_log(tmp_path / "topic-0", config=SMALL)
    for offset in range(36):
        fetched(log, batch(offset))
    sync = log.snapshots.sync

    def begin_anew(offset: int) -> None:
        monkeypatch.setattr(log.snapshots, "sync", sync)
        log.truncate_fully_and_start_at(289, log_start_offset=0, leader_epochs=HISTORY)

    monkeypatch.setattr(log.snapshots, "sync", begin_anew)
    log.flush()
    stored = (tmp_path / "topic-0" / "leader-epoch-checkpoint").read_text()
    assert stored == "0\n2\n0 0\n1 36\n"


def test_flush_that_a_truncation_overtakes_at_last_leaves_the_recovery_point_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that ends below its recovery point would count as damaged at the next start."""
    log = open_local_log(tmp_path / "topic-0", config=SMALL)
    for offset in range(36):
        fetched(log, batch(offset))
    indexes = log._segments.transaction_indexes
    store = indexes.store

    def truncate() -> None:
        monkeypatch.setattr(indexes, "store", store)
        log.truncate_to(20)
        store()

    monkeypatch.setattr(indexes, "store", truncate)
    log.flush()
    assert log.log_end_offset == 20
    assert log.recovery_point <= 20
    fetched(log, *(batch(offset) for offset in range(20, 30)))
    assert log.recovery_point <= 20
    log.flush()
    assert log.recovery_point == 30
