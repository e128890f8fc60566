"""A segment with offsets too far apart for its indexes is split at the start, and loses nothing.

The expected segments follow from Kafka's rule: a part ends before the first batch whose last offset
is more than 2^31 - 1 above the part's first batch, which names it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from isotherm.errors import CorruptLogError
from isotherm.log import segment_split
from isotherm.log.batch_scan import scan_sound_batches
from isotherm.log.fs import OsFileSystem
from isotherm.log.log_loader import LogCheckpoints
from isotherm.log.partition_log import PartitionLog
from isotherm.log.segment_split import plan_split
from isotherm.record.batch import build_batch
from isotherm.record.control import ControlRecordType, build_end_transaction_marker
from tests.support.crash_fs import CrashFileSystem, Files, PowerLoss, write_files
from tests.support.filled_log import CLEAN, CONFIG, T0, errors_in, offsets_in, reopen
from tests.support.local_log import open_local_log
from tests.support.memory_folder import memory_folder

FAR = 2**31
UNCLEAN = LogCheckpoints()
# Offsets of batches of one record, and the base offsets of the segments that Kafka makes of them.
SPLITS = [
    ((0, FAR - 1), [0]),
    ((0, FAR), [0, FAR]),
    ((0, 1, FAR + 10, FAR + 11, 4 * FAR, 4 * FAR + 1), [0, FAR + 10, 4 * FAR]),
    ((0, 1, 5, FAR + 6, FAR + 7), [0, FAR + 6]),
    # The first batch lies above the name of the file.
    ((7, FAR + 7), [7, FAR + 7]),
    ((7, FAR + 6), [7]),
    ((7, FAR - 1), [0]),
    ((3 * FAR, 3 * FAR + 1), [3 * FAR]),
    (tuple(range(0, 10 * FAR, FAR // 2)), list(range(0, 10 * FAR, FAR))),
]


def batch(offset: int, count: int = 1) -> bytes:
    return bytes(build_batch([(T0 + offset % 1000, b"k", b"v", ())] * count, base_offset=offset))


def plant(directory: Path, *batches: bytes, base: int = 0) -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / f"{base:020d}.log"
    path.write_bytes(b"".join(batches))
    return path


def bases(log: PartitionLog) -> list[int]:
    return [segment.base_offset for segment in log.segments()]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "topic-0"


@pytest.mark.parametrize("checkpoints", [UNCLEAN, CLEAN], ids=["unclean", "clean"])
@pytest.mark.parametrize(("offsets", "expected"), SPLITS)
def test_wide_segment_becomes_those_of_kafka(
    directory: Path,
    offsets: Sequence[int],
    expected: list[int],
    checkpoints: LogCheckpoints,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = plant(directory, *map(batch, offsets))
    data = path.read_bytes()
    for _ in range(2):
        log = reopen(directory, checkpoints)
        assert (bases(log), offsets_in(log)) == (expected, list(offsets))
        assert b"".join(segment.log_path.read_bytes() for segment in log.segments()) == data
        assert log.log_end_offset == offsets[-1] + 1
        for offset in offsets:
            span = [segment for segment in log.segments() if segment.base_offset <= offset][
                -1
            ].find_batch(offset)
            assert span is not None
            assert span.last_offset == offset
        assert not [name for name in directory.iterdir() if name.suffix in (".swap", ".deleted")]
        log.close()
    assert errors_in(caplog) == []


def test_flushed_wide_segment_below_others_is_split(directory: Path) -> None:
    plant(directory, batch(0), batch(FAR + 5))
    plant(directory, batch(FAR + 9), base=FAR + 9)
    log = reopen(directory, LogCheckpoints(recovery_point=FAR + 10))
    assert bases(log) == [0, FAR + 5, FAR + 9]
    # An append goes on after the last record, and may roll as always.
    assert log.append_as_leader(bytearray(batch(0)), 0, now_ms=T0).first_offset == FAR + 10


@pytest.mark.parametrize(
    ("offsets", "gap"), [((5, FAR + 5, FAR + 9, 4 * FAR), 3 * FAR - 5), ((3 * FAR,), 3 * FAR - 5)]
)
def test_largest_gap_is_told(
    directory: Path, offsets: Sequence[int], gap: int, caplog: pytest.LogCaptureFixture
) -> None:
    plant(directory, *map(batch, offsets), base=5)
    reopen(directory)
    assert f"largest_gap={gap}" in caplog.text


def test_batch_of_many_records_is_not_cut_in_two(directory: Path) -> None:
    """Its last offset decides, not its first."""
    plant(directory, batch(0), batch(FAR - 3, 5), batch(FAR + 2))
    assert bases(reopen(directory)) == [0, FAR - 3]


def test_torn_end_is_cut_from_the_last_part(directory: Path) -> None:
    plant(directory, batch(0), batch(FAR), batch(FAR + 1)[:-3])
    plant(directory, batch(FAR + 2), base=FAR + 2)
    log = reopen(directory)
    assert (bases(log), offsets_in(log)) == ([0, FAR], [0, FAR])


@pytest.mark.parametrize("after", [1, 2, 9])
def test_far_offset_that_a_later_batch_contradicts_is_damage(directory: Path, after: int) -> None:
    """No CRC covers the base offset.

    The batch after the far one continues where that one should.
    """
    plant(directory, batch(0), batch(FAR * 8 + 1), batch(after), batch(after + 1))
    log = reopen(directory)
    assert (bases(log), offsets_in(log)) == ([0], [0])


def test_batch_below_the_records_before_a_far_one_contradicts_nothing(directory: Path) -> None:
    plant(directory, batch(0), batch(FAR * 8), batch(0))
    log = reopen(directory)
    assert (bases(log), offsets_in(log)) == ([0, FAR * 8], [0, FAR * 8])


def test_contradiction_beyond_a_sound_split_is_cut_alone(directory: Path) -> None:
    plant(directory, batch(0), batch(FAR), batch(FAR * 9), batch(FAR + 2))
    log = reopen(directory)
    assert (bases(log), offsets_in(log)) == ([0, FAR], [0, FAR])


def test_damaged_flushed_segment_is_not_split(directory: Path) -> None:
    torn = bytearray(batch(5))
    torn[-1] ^= 1
    path = plant(directory, batch(0), bytes(torn), batch(FAR + 2))
    data = path.read_bytes()
    with pytest.raises(CorruptLogError, match="flushed records are damaged"):
        reopen(directory, CLEAN)
    assert {each.name: each.read_bytes() for each in directory.glob("*.log*")} == {path.name: data}


def test_aborted_transaction_keeps_its_index(directory: Path) -> None:
    """The parts' indexes come from the batches: the marker's part names the transaction."""
    write = build_batch(
        [(T0, b"k", b"v", ())],
        base_offset=3,
        producer_id=7,
        producer_epoch=0,
        base_sequence=0,
        is_transactional=True,
    )
    marker = build_end_transaction_marker(
        ControlRecordType.ABORT,
        producer_id=7,
        producer_epoch=0,
        coordinator_epoch=0,
        timestamp_ms=T0,
        base_offset=FAR + 9,
    )
    plant(directory, batch(0), bytes(write), bytes(marker))
    log = reopen(directory)
    assert bases(log) == [0, FAR + 9]
    aborted = [segment.aborted_transactions() for segment in log.segments()]
    assert [
        [(transaction.producer_id, transaction.first_offset) for transaction in part]
        for part in aborted
    ] == [
        [],
        [(7, 3)],
    ]


def test_parts_are_the_same_however_much_is_read_at_once(tmp_path: Path) -> None:
    """The plan against a plain loop, over random offsets and sizes of reads."""
    rng = random.Random(5)
    for _ in range(30):
        batches: list[bytes] = []
        expected: list[int] = []
        offset = 0
        for _ in range(rng.randint(1, 12)):
            offset += rng.choice((1, 2, FAR // 3, FAR - 1, FAR, 5 * FAR))
            count = rng.choice((1, 3))
            if not expected or offset + count - 1 - expected[-1] > FAR - 1:
                expected.append(offset)
            batches.append(batch(offset, count))
            offset += count - 1
        path = plant(tmp_path / "topic-0", *batches)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("isotherm.log.batch_scan.RECOVERY_READ_SIZE", rng.choice((90, 200, 4096)))
            file = OsFileSystem().open_readable(path)
            plan = plan_split(scan_sound_batches(file, file.size()))
        assert [part.base_offset for part in plan.parts] == expected
        assert plan.sound_end == path.stat().st_size


@pytest.fixture
def memory() -> Iterator[Path]:
    """`CrashFileSystem` decides what a disk would keep."""
    with memory_folder() as folder:
        yield folder


@pytest.mark.parametrize(
    ("first", "is_clean", "model"),
    [
        (0, False, PowerLoss.WRITES),
        (7, False, PowerLoss.WRITES),
        (7, True, PowerLoss.NAMES),
        (0, True, PowerLoss.SYNCED),
    ],
)
def test_crash_at_each_step_of_a_split_loses_nothing(
    memory: Path, first: int, is_clean: bool, model: PowerLoss, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first batch at 7: the parts begin above the old segment's name."""
    offsets = [first, first + 1, FAR + 20, FAR + 21, 4 * FAR, 4 * FAR + 1]
    monkeypatch.setattr(segment_split, "RECOVERY_READ_SIZE", 100)
    whole = memory / "whole" / "topic-0"
    whole.mkdir(parents=True)
    plant(whole, *map(batch, offsets))
    disks: dict[Files, int] = {}
    checkpoints = LogCheckpoints(4 * FAR + 2, clean_shutdown=True) if is_clean else UNCLEAN

    def stop(operation: int) -> None:
        disks.setdefault(fs.survivors(random.Random(operation), whole.parent, model), operation)

    fs = CrashFileSystem.adopting(whole.parent, on_operation=stop)
    open_local_log(whole, config=CONFIG, fs=fs, checkpoints=checkpoints)
    assert fs.operation_count > 20
    for number, files in enumerate(disks):
        survivor = memory / f"{number}"
        write_files(files, survivor)
        log = open_local_log(
            survivor / "topic-0",
            config=CONFIG,
            fs=CrashFileSystem.adopting(survivor),
            # A start that was stopped is no clean stop.
            checkpoints=LogCheckpoints(checkpoints.recovery_point),
        )
        assert offsets_in(log) == offsets
        # A crash between the swap and its last step may leave an empty segment of the old name.
        assert [base for base in bases(log) if base >= first] == [first, FAR + 20, 4 * FAR]
        names = {path.suffix for path in (survivor / "topic-0").iterdir()}
        assert not names & {".cleaned", ".swap", ".deleted"}
