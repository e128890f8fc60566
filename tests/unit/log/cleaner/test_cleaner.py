"""Rounds of the cleaner: the cases of Kafka's LogCleanerTest, and the bytes that Kafka's cleaner
wrote."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from isotherm.config.cleaner import CleanerConfig
from isotherm.errors import CorruptRecordError, LogCleaningAbortedError, LogDirFailedError
from isotherm.log.cleaner import offset_map
from isotherm.log.cleaner.choice import plan_log_to_clean
from isotherm.log.cleaner.chunk_reader import ChunkReader
from isotherm.log.cleaner.cleaner import Cleaner
from isotherm.log.fs import File, OsFileSystem
from isotherm.log.log_read import FetchIsolation
from isotherm.record.batch import BatchHeader, Record, iterate_batches, read_records
from isotherm.record.compression import CompressionType
from isotherm.record.control import ControlRecordType
from isotherm.record.validation import AppendOrigin
from isotherm.testing.sim_clock import SimClock
from isotherm.types import Offset
from tests.support.compacted_log import CONFIG, CompactedLog, StoredBatch
from tests.support.transcript import Command, Scenario, Script

T0 = 1_700_000_000_000
RETENTION_MS = CONFIG.delete_retention_ms
ROUNDS = Script(Path(__file__).with_name("rounds.txt"))
P1, P2 = (1, 0), (2, 0)

OpenLog = Callable[..., CompactedLog]


@pytest.fixture
def open_log(tmp_path: Path) -> OpenLog:
    def open_log(**more: Any) -> CompactedLog:
        return CompactedLog(tmp_path / "topic-0", **more)

    return open_log


@pytest.fixture
def log(open_log: OpenLog) -> CompactedLog:
    return open_log()


def put(log: CompactedLog, *keys: int, producer: tuple[int, int] | None = None) -> Offset:
    records = [(f"k{key}", "v") for key in keys]
    return log.append(*records, producer=producer, is_transactional=producer is not None)


def roll_and_clean(log: CompactedLog, first_dirty_offset: Offset | None = None) -> Offset:
    log.log.roll()
    return log.clean(first_dirty_offset=first_dirty_offset).end_offset


# Kafka's LogCleanerTest


class Rounds:
    """The commands of rounds.txt."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def run(self, command: Command) -> str:
        if command.name != "rounds":
            raise command.unknown()
        retention_ms = command.number("delete_retention_ms", RETENTION_MS)
        log = CompactedLog(
            self._directory / "topic-0",
            config=replace(CONFIG, delete_retention_ms=retention_ms),
            map_slots=command.number("slots", 1000),
            load_factor=command.number("load_percent", 90) / 100,
        )
        return "\n".join(self._round(log, line) for line in command.inputs())

    def _round(self, log: CompactedLog, line: Command) -> str:
        for word in [] if line.flag("none") else line.words():
            self._append(log, word)
        log.log.roll()
        log.clock.advance(line.number("wait", 0))
        cleaned = log.clean(first_dirty_offset=line.number("first", log.first_dirty_offset))
        stats = cleaned.stats
        invalid = f" {stats.invalid_messages_read} invalid" if stats.invalid_messages_read else ""
        return (
            f"to {cleaned.end_offset}, {stats.map_messages_read} read{invalid}, "
            f"{stats.buffer_utilization:.0%}: {_shown(log)}"
        )

    def _append(self, log: CompactedLog, word: str) -> None:
        of, _, content = word.rpartition(":")
        producer, _, sequence = of.partition("#")
        match content:
            case "roll":
                log.log.roll()
            case "commit":
                log.commit((int(producer), 0))
            case "abort":
                log.abort((int(producer), 0))
            case _:
                keys, _, timestamp = content.partition("@")
                records = [_record(key) for key in keys.split(",")]
                log.append(
                    *records,
                    timestamps=[int(timestamp or log.clock.now_ms())] * len(records),
                    producer=(int(producer), 0) if producer else None,
                    sequence=int(sequence) if sequence else None,
                    is_transactional=bool(producer),
                    origin=AppendOrigin.COORDINATOR if sequence else AppendOrigin.CLIENT,
                )


def _record(key: str) -> tuple[str | None, str | None]:
    if key == "null":
        return None, "v"
    value = None if key.startswith("!") else "v"
    return key.removeprefix("!").encode().decode("unicode_escape"), value


def _shown(log: CompactedLog) -> str:
    shown = []
    for segment in log.log.segments():
        for batch in log.batches_from(segment.base_offset):
            if batch.segment_base == segment.base_offset:
                shown.append(_shown_batch(batch))
        shown += [
            f"[{transaction.first_offset}-{transaction.last_offset}]"
            for transaction in segment.aborted_transactions()
        ]
        shown.append("|")
    return " ".join(shown[:-1])


def _shown_batch(batch: StoredBatch) -> str:
    header = batch.header
    records = " ".join(
        f"{record.offset}{'!' if record.value is None else ''}{_shown_key(header, record)}"
        for record in batch.records
    )
    producer = "" if header.producer_id < 0 else header.producer_id
    horizon = "^" if header.has_delete_horizon else ""
    return f"{producer}({records or f'..{header.last_offset}'}){horizon}"


def _shown_key(header: BatchHeader, record: Record) -> str:
    if header.is_control:
        return ControlRecordType(record.key[3]).name.lower() if record.key else ""
    return "null" if record.key is None else record.key.decode().encode("unicode_escape").decode()


@pytest.mark.parametrize("scenario", ROUNDS.scenarios, ids=lambda each: each.name)
def test_rounds(scenario: Scenario, tmp_path: Path, rewrite: bool) -> None:
    scenario.check(Rounds(tmp_path), rewrite=rewrite)


def test_all_records_and_bytes_of_the_dirty_section_are_counted(log: CompactedLog) -> None:
    put(log, 1, 2)
    log.log.roll()
    put(log, 1, 2, producer=P1)
    log.abort(P1)
    put(log, 1, producer=P2)
    log.commit(P2)
    log.append((None, "1"))
    log.log.roll()
    clean, dirty, _ = log.log.segments()
    size = dirty.size_in_bytes
    stats = log.clean(first_dirty_offset=clean.read_next_offset()).stats
    assert (stats.map_messages_read, stats.map_bytes_read) == (6, size)


def test_round_covers_a_gap_at_the_end_of_a_segment(open_log: OpenLog) -> None:
    log = open_log(config=replace(CONFIG, internal_segment_bytes=150))
    put(log, 1)
    put(log, 2)
    log.log.roll()
    put(log, 2)
    roll_and_clean(log)
    assert log.offsets() == [0, 2]
    to_clean = replace(
        plan_log_to_clean(log.log.view(), 0, log.log.config, T0), first_uncleanable_offset=2
    )
    cleaned = log.cleaner.clean(
        log.log, to_clean, throttle=lambda size: None, check_abort=lambda: None
    )
    assert cleaned.end_offset == 2


def test_large_batch_is_read_as_a_whole(open_log: OpenLog) -> None:
    log = open_log(read_size=100)
    log.append(("a", "x" * 100_000), ("b", "1"))
    log.append(("a", "y" * 1000))
    roll_and_clean(log)
    assert [(record.offset, record.key) for record in log.records()] == [(1, b"b"), (2, b"a")]


# Tombstones


def test_horizon_that_makes_a_batch_too_large_is_set_all_the_same(open_log: OpenLog) -> None:
    config = replace(CONFIG, internal_segment_bytes=1_000_000, delete_retention_ms=86_400_000)
    log = open_log(config=config, read_size=100)
    tombstones = [(f"{number:03}", None) for number in range(50)]
    log.append(*tombstones)
    (before,) = log.batches()
    log.log.update_config(replace(config, max_message_bytes=before.header.size_in_bytes))
    roll_and_clean(log)
    (after,) = log.batches()
    assert after.header.size_in_bytes == before.header.size_in_bytes + 50 * 3
    assert after.records == before.records
    read = log.log.read(0, 1, isolation=FetchIsolation.LOG_END)
    assert len(read.records) == after.header.size_in_bytes
    log.clock.advance(86_400_000)
    roll_and_clean(log, 0)
    assert log.offsets() == []
    assert log.last_offsets() == [49], "the round's last batch holds the last offset"


# Batches


def test_untouched_batches_are_copied_byte_for_byte(log: CompactedLog, tmp_path: Path) -> None:
    for codec in CompressionType:
        log.append((f"a{codec}", "1" * 50), (f"b{codec}", "2"), compression=codec)
    before = log.log.segments()[0].log_path.read_bytes()
    log.append(("a0", "3"))
    roll_and_clean(log)
    (_, _), (position, _), *_ = iterate_batches(before)
    assert before[position:] in log.log.segments()[0].log_path.read_bytes()
    assert next(log.batches()).records[0].key == b"b0", "the first batch was not"


@pytest.mark.parametrize("codec", list(CompressionType))
def test_rebuilt_batch_keeps_its_codec_and_its_fields(log: CompactedLog, codec: Any) -> None:
    log.append(
        ("a", "1"),
        ("b", "2"),
        ("c", None),
        headers=[("h", b"x"), ("n", None)],
        timestamps=[T0 + 9, T0 + 5, T0 + 7],
        compression=codec,
        producer=P1,
        leader_epoch=4,
    )
    before = next(log.batches())
    log.append(("a", "3"))
    roll_and_clean(log)
    after = next(log.batches())
    assert after.records == before.records[1:]
    assert after.header == before.header._replace(
        length=after.header.length,
        crc=after.header.crc,
        attributes=before.header.attributes | 0x40,
        base_timestamp=log.clock.now_ms() + RETENTION_MS,
        max_timestamp=T0 + 7,
        records_count=2,
    )


def test_producers_go_on_after_their_records_went(log: CompactedLog) -> None:
    """A restart finds the producer state from before the round: sequences continue, and epochs
    fence."""
    log.append(("a", "1"), ("a", "2"), producer=(7, 3))
    log.append(("b", "1"), producer=(8, 1))
    log.append(("a", "3"), ("b", "2"))
    roll_and_clean(log)
    assert log.last_offsets() == [1, 2, 4]
    before = log.log.producers.snapshot_entries()
    log.log.close()
    for snapshot in log.directory.glob("*.snapshot"):
        snapshot.unlink()
    again = CompactedLog(log.directory, clock=log.clock)
    assert sorted(again.log.producers.snapshot_entries()) == sorted(before)
    again.append(("c", "1"), producer=(7, 3), sequence=2)


# A run of Kafka's cleaner, recorded byte for byte


def test_golden_run_gives_kafkas_bytes(log: CompactedLog) -> None:
    log.append(("a", "1"), ("b", "1"), timestamps=[T0, T0 + 1])
    log.append(("a", "2"), ("c", None), timestamps=[T0, T0 + 1])
    log.append(("d", "x"), producer=(7, 0), is_transactional=True, timestamps=[T0])
    log.abort((7, 0), coordinator_epoch=5)
    log.log.roll()
    log.append(("b", "2"), timestamps=[T0])
    log.log.roll()
    log.clock.advance(5000)
    assert log.clean().end_offset == 7
    assert log.offsets() == [2, 3, 5, 6]
    assert [
        (batch.header.base_offset, batch.header.size_in_bytes, batch.header.attributes)
        for batch in log.batches()
    ] == [(2, 80, 0x40), (4, 61, 0x10), (5, 78, 0x30), (6, 70, 0x00)]
    assert next(log.batches()).header.base_timestamp == T0 + 6000
    segment, active = log.log.segments()
    assert (segment.base_offset, active.base_offset) == (0, 7)
    assert segment.offset_index_path.read_bytes().hex() == (
        "0000000400000050000000050000008d00000006000000db"
    )
    assert segment.time_index_path.read_bytes() == (T0 + 1).to_bytes(8) + (3).to_bytes(4)
    assert segment.transaction_index_path.read_bytes().hex() == (
        "00000000000000000007000000000000000400000000000000050000000000000006"
    )
    names = {path.name for path in log.directory.iterdir() if not path.name.endswith(".deleted")}
    assert "00000000000000000006.snapshot" not in names
    assert "00000000000000000007.snapshot" in names
    log.clock.advance(1000)
    assert log.clean().end_offset == 0
    log.clock.advance(1)
    log.clean(first_dirty_offset=0)
    assert log.offsets() == [2, 5, 6]
    header = next(log.batches()).header
    assert (header.size_in_bytes, header.attributes) == (71, 0x40)
    assert (header.base_timestamp, header.max_timestamp) == (T0 + 6000, T0)
    assert log.log.segments()[0].time_index_path.read_bytes() == T0.to_bytes(8) + (3).to_bytes(4)


# Segments


def test_group_that_one_segment_cannot_hold_becomes_several(
    open_log: OpenLog,
) -> None:
    """Horizons lengthen batches. Kafka begins another segment too, from 4.5 on."""
    log = open_log(segment_size_max=300)
    for number in range(6):
        log.append((f"k{number}", "v"), producer=P1, is_transactional=True)
        log.abort(P1) if number % 2 else log.commit(P1)
    roll_and_clean(log)
    bases = [segment.base_offset for segment in log.log.segments()]
    assert len(bases) > 2
    assert bases[0] == 0
    assert all(segment.size_in_bytes <= 300 for segment in log.log.segments())
    for segment, following in zip(log.log.segments(), bases[1:], strict=False):
        assert segment.base_offset <= segment.read_next_offset() <= following
    aborted = [
        (transaction.last_offset, segment.base_offset)
        for segment in log.log.segments()
        for transaction in segment.aborted_transactions()
    ]
    assert [offset for offset, _ in aborted] == [3, 7, 11]
    assert all(base == max(b for b in bases if b <= offset) for offset, base in aborted)


def test_abort_marker_lies_beside_its_entry_wherever_a_segment_is_full(tmp_path: Path) -> None:
    """The segments of the group overlap no other, and their transactions none but the group's."""
    counts = set()
    for size_max in range(80, 560, 40):
        log = CompactedLog(tmp_path / f"{size_max}-0", segment_size_max=size_max)
        for number in range(4):
            log.append((f"k{number}", "v"), producer=P1, is_transactional=True)
            if number % 2:
                log.log.roll()
            log.abort(P1)
        put(log, 9)
        roll_and_clean(log)
        segments = log.log.segments()[:-1]
        counts.add(len(segments))
        for segment, following in zip(segments, log.log.segments()[1:], strict=True):
            markers = [
                header.base_offset for _, header in segment.read_headers(0) if header.is_control
            ]
            entries = segment.aborted_transactions()
            assert [entry.last_offset for entry in entries] == markers
            assert [entry.first_offset for entry in entries] == [marker - 1 for marker in markers]
            assert segment.read_next_offset() <= following.base_offset
        assert log.offsets() == [1, 3, 5, 7, 8]
    assert len(counts) > 3


def test_cleaned_segment_looks_as_old_as_the_last_one_it_replaces(log: CompactedLog) -> None:
    fs = OsFileSystem()
    put(log, 1)
    log.log.roll()
    put(log, 2)
    log.log.roll()
    for age, segment in enumerate(log.log.segments()):
        fs.set_modified_ms(segment.log_path, T0 + age)
    log.clean()
    assert fs.modified_ms(log.log.segments()[0].log_path) == T0 + 1


def test_reader_that_came_before_the_swap_reads_what_it_came_for(log: CompactedLog) -> None:
    put(log, 1, 2)
    put(log, 1)
    log.log.roll()
    (before, _) = log.log.segments()
    roll_and_clean(log)
    read = before.read(0, 1000, before.size_in_bytes, min_one_message=True)
    assert read is not None
    assert [header.base_offset for _, header in iterate_batches(read.records)] == [0, 2]
    assert read.records[:70] != log.log.read(0, 1000).records[:70]


def test_replaced_files_stay_for_their_time_though_the_name_was_marked_before(
    log: CompactedLog,
) -> None:
    delay_ms = CONFIG.file_delete_delay_ms
    deleted = log.directory / "00000000000000000000.log.deleted"
    for key in (1, 2):
        put(log, key)
        log.log.roll()
        log.clean(first_dirty_offset=0)
        log.clock.advance(delay_ms // 2)
    log.clock.advance(1)
    log.log.delete_marked_files(log.clock.now_ms())
    assert deleted.exists(), "that of the second round"
    log.clock.advance(delay_ms // 2)
    log.log.delete_marked_files(log.clock.now_ms())
    assert not deleted.exists()
    assert not list(log.directory.glob("*.deleted"))


# Failures


def test_aborted_round_leaves_no_files(log: CompactedLog) -> None:
    put(log, 1)
    put(log, 1)
    log.log.roll()
    to_clean = plan_log_to_clean(log.log.view(), 0, log.log.config, T0)
    log.log.flush()
    before = sorted(path.name for path in log.directory.iterdir())
    calls = iter(range(100))

    def check_abort() -> None:
        if next(calls) == 1:  # in the second pass
            raise LogCleaningAbortedError("wanted otherwise")

    with pytest.raises(LogCleaningAbortedError):
        log.cleaner.clean(log.log, to_clean, throttle=lambda size: None, check_abort=check_abort)
    assert sorted(path.name for path in log.directory.iterdir()) == before
    assert log.offsets() == [0, 1]


def test_segments_that_left_the_log_meanwhile_abort_the_round(log: CompactedLog) -> None:
    put(log, 1)
    log.log.roll()
    put(log, 1)
    log.log.roll()
    to_clean = plan_log_to_clean(log.log.view(), 0, log.log.config, T0)
    sizes: list[int] = []

    def throttle(size: int) -> None:
        sizes.append(size)
        if len(sizes) == 3:  # the first pass has read everything, the second one segment
            log.log.maybe_increment_log_start_offset(1)
            log.log.delete_old_segments(T0)

    with pytest.raises(LogCleaningAbortedError):
        log.cleaner.clean(log.log, to_clean, throttle=throttle, check_abort=lambda: None)
    assert log.offsets() == [1]
    assert not list(log.directory.glob("*.cleaned"))


@pytest.mark.parametrize("is_dirty", [True, False])
def test_damaged_batch_is_neither_believed_nor_given_a_new_crc(
    log: CompactedLog, is_dirty: bool
) -> None:
    put(log, 1, 2)
    put(log, 3)
    log.log.roll()
    put(log, 1)
    log.log.roll()
    path = log.log.segments()[0].log_path
    data = bytearray(path.read_bytes())
    (size, _), *_ = list(iterate_batches(data))[1:]
    data[size - 2] ^= 1  # the value of the first batch's last record
    path.write_bytes(data)
    with pytest.raises(CorruptRecordError, match="crc"):
        log.clean(first_dirty_offset=0 if is_dirty else 3)
    assert path.read_bytes() == data
    assert not list(log.directory.glob("*.cleaned"))


def test_batch_that_is_cut_off_is_named(log: CompactedLog) -> None:
    put(log, 1)
    put(log, 2)
    log.log.roll()
    segment = log.log.segments()[0]
    path = segment.log_path
    path.write_bytes(path.read_bytes()[:-1])
    segment.size_in_bytes -= 1
    with pytest.raises(CorruptRecordError, match=r"cut off path=.*0000\.log position=71"):
        log.clean()


def test_batch_of_an_old_format_is_named_and_left_alone(log: CompactedLog) -> None:
    """KIP-534 defines no horizon for old formats, and Isotherm does not read them (decision
    0023)."""
    put(log, 1)
    put(log, 1)
    log.log.roll()
    path = log.log.segments()[0].log_path
    data = bytearray(path.read_bytes())
    data[16] = 1
    path.write_bytes(data)
    with pytest.raises(CorruptRecordError, match="magic=1"):
        log.clean()
    assert path.read_bytes() == data


def test_failing_disk_takes_the_directory_offline(open_log: OpenLog) -> None:
    class FullDisk(OsFileSystem):
        def open_writable(self, path: Path) -> File:
            if path.name.endswith(".cleaned"):
                raise OSError(28, "no space left on device")
            return super().open_writable(path)

    log = open_log(fs=FullDisk())
    put(log, 1)
    log.log.roll()
    with pytest.raises(LogDirFailedError):
        log.clean()
    assert not log.log.log_dir.is_online


def test_read_size_is_no_matter(open_log: OpenLog, tmp_path: Path) -> None:
    results = []
    for read_size in (1, 100, 150, 10_000):
        log = CompactedLog(tmp_path / f"{read_size}-0", read_size=read_size)
        for number in range(30):
            log.append((f"{number % 7}", "v"), ("x", None), (f"{number % 3}", "v"))
        log.log.roll()
        log.clean()
        path = log.log.segments()[0].log_path
        results.append((path.read_bytes(), [*map(tuple, log.records())]))
        assert read_records(path.read_bytes(), 0, next(log.batches()).header)
    assert all(result == results[0] for result in results)


@pytest.mark.parametrize("codec", [CompressionType.NONE, CompressionType.LZ4])
def test_bits_are_no_matter(
    codec: CompressionType, open_log: OpenLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bits decide batches without their records. Without bits, keys decide each record."""
    contents = []
    for share in (offset_map.BITS_SHARE, 0):
        monkeypatch.setattr(offset_map, "BITS_SHARE", share)
        log, rng = open_log(), random.Random(5)
        for _ in range(150):
            keys = rng.choice([range(3), range(20), range(100, 1000)])
            batch = [(f"k{key}", rng.choice(["v", "v", None])) for key in rng.sample(keys, 3)]
            log.append(*batch, compression=codec)
        cleaned = roll_and_clean(log, 0)
        paths = sorted(path for path in (tmp_path / "topic-0").glob("*.log"))
        contents.append((cleaned, [path.read_bytes() for path in paths]))
        log.log.close()
        shutil.rmtree(tmp_path / "topic-0")
    assert contents[0] == contents[1]


def test_batch_below_the_one_before_it_is_found_across_reads(log: CompactedLog) -> None:
    put(log, 1)
    put(log, 2)
    log.log.roll()
    segment = log.log.segments()[0]
    data = bytearray(segment.log_path.read_bytes())
    (_, _), (position, _) = iterate_batches(data)
    data[position : position + 8] = bytes(8)  # its base offset, which no CRC covers
    segment.log_path.write_bytes(data)
    reader = ChunkReader(position, lambda size: None, lambda: None)
    with pytest.raises(CorruptRecordError, match="begins before"):
        list(reader.chunks(segment, 0))


def test_half_of_the_buffer_of_a_thread_is_for_reading() -> None:
    config = CleanerConfig(log_cleaner_io_buffer_size=600_000, log_cleaner_threads=3)
    assert Cleaner(config, SimClock(), random.Random(0))._read_size == 100_000
