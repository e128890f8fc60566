"""The cleaner's results against those of Kafka's own Cleaner on a copy of the same log, round after
round.

Hypothesis draws the histories; one JVM cleans all of them. Logs are closed before each round, so
both cleaners start from the files. Every file must be equal, except for compressed batches: their
bytes depend on the compressor, so they are compared record for record and field for field.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from isotherm.log.log_loader import LogCheckpoints
from isotherm.log.log_read import floor_index
from isotherm.record.batch import (
    BatchHeader,
    CompressionType,
    Record,
    iterate_batches,
    read_records,
)
from isotherm.record.batch_header import DELETE_HORIZON_FLAG
from isotherm.segment.file_names import parse_segment_file_name, segment_file_name
from isotherm.segment.producer_snapshot import ProducerSnapshotEntry, read_producer_snapshot
from isotherm.types import Offset
from oracle.dump_text import parse_dump
from oracle.kafka import dump_log_segments
from oracle.kafka_cleaner import KafkaCleaner
from tests.support.cleaning_histories import CleaningHistory
from tests.support.compacted_log import CONFIG, CompactedLog
from tests.support.crash_fs import CrashFileSystem, SimulatedCrash

Batch: TypeAlias = tuple[BatchHeader, list[Record]]
ROUNDS_MAX = 5
NOW = 1_700_000_000_000
GROUPED = replace(CONFIG, internal_segment_bytes=400)
STEPS_MAX = 30


def checked(examples: int) -> settings:
    return settings(
        max_examples=examples,
        suppress_health_check=list(HealthCheck),
        # A history does not get smaller by smaller random numbers.
        phases=(Phase.explicit, Phase.reuse, Phase.generate),
    )


@pytest.mark.slow
@given(rng=st.randoms(use_true_random=False))
@checked(100)
def test_every_round_leaves_the_bytes_that_kafkas_cleaner_leaves(
    kafka_cleaner: KafkaCleaner, rng: random.Random
) -> None:
    for directory, copy, _ in rounds(kafka_cleaner, rng):
        assert names(directory) == names(copy)
        for name in names(directory):
            assert_equal_file(directory / name, copy / name)


@pytest.mark.slow
@given(rng=st.randoms(use_true_random=False))
@checked(40)
def test_every_round_over_compressed_batches_leaves_the_same_records(
    kafka_cleaner: KafkaCleaner, rng: random.Random
) -> None:
    for directory, copy, _ in rounds(kafka_cleaner, rng, codecs=tuple(CompressionType)):
        assert names(directory) == names(copy)
        for name in names(directory):
            if name.endswith(".log"):
                assert batches(directory / name) == batches(copy / name), name
            elif not name.endswith(".index"):  # its positions depend on the compressor too
                assert_equal_file(directory / name, copy / name)


@pytest.mark.slow
@given(rng=st.randoms(use_true_random=False))
@checked(60)
def test_round_with_a_full_map_differs_in_horizons_above_it_alone(
    kafka_cleaner: KafkaCleaner, rng: random.Random
) -> None:
    """Kafka gives a tombstone a horizon although older records of its key stay: decision 0023."""
    for directory, copy, end_offset in rounds(kafka_cleaner, rng, map_slots=(3, 5, 9)):
        assert names(directory) == names(copy)
        for name in names(directory):
            if name.endswith(".log"):
                ours = without_horizons(batches(directory / name), end_offset)
                assert ours == without_horizons(batches(copy / name), end_offset), name
            elif not name.endswith(".index"):  # a horizon makes a batch longer
                assert_equal_file(directory / name, copy / name)


def rounds(
    kafka_cleaner: KafkaCleaner, rng: random.Random, **more: Any
) -> Iterator[tuple[Path, Path, Offset]]:
    """For each round of a history: our directory, Kafka's, and the end offset of the cleaned
    section.
    """
    with tempfile.TemporaryDirectory() as folder:
        history = CleaningHistory(Path(folder) / "topic-0", rng, **more)
        copy = Path(folder) / "kafka" / "topic-0"
        for _ in range(rng.randrange(1, ROUNDS_MAX)):
            for _ in range(rng.randrange(STEPS_MAX)):
                history.step()
            end_offset = history.close()
            shutil.copytree(history.directory, copy)
            history.open(end_offset)
            if kafka_takes_committed_records_for_aborted(history):
                break
            cleaned_end_offset = clean_both(kafka_cleaner, history, copy)
            end_offset = history.close()
            yield history.directory, copy, cleaned_end_offset
            shutil.rmtree(copy)
            history.open(end_offset)
        history.close()


def kafka_takes_committed_records_for_aborted(history: CleaningHistory) -> bool:
    """Decision 0023. Whether Kafka would drop committed records in this round.

    Kafka also notes aborted transactions of the dirty section's first segment that ended below that
    section. It may not meet their markers, and then treats later committed records of their
    producers as aborted.
    """
    to_clean = history.to_clean()
    start, end = to_clean.first_dirty_offset, to_clean.first_uncleanable_offset
    segments = history.log.log.segments()
    dirty = segments[floor_index(segments, start) :]
    aborted = {
        transaction.producer_id
        for transaction in dirty[0].aborted_transactions()
        if transaction.last_offset < start
    }
    return any(
        header.is_transactional and header.base_offset < end and header.producer_id in aborted
        for segment in dirty
        for _, header in segment.read_headers(start)
    )


def clean_both(kafka_cleaner: KafkaCleaner, history: CleaningHistory, copy: Path) -> Offset:
    to_clean = history.to_clean()
    end_offset, _, bytes_read, messages_read, invalid, _, messages_written = kafka_cleaner.clean(
        copy,
        to_clean.first_dirty_offset,
        to_clean.first_uncleanable_offset,
        history.clock.now_ms(),
        history.map_slots,
        history.read_size,
        history.config.delete_retention_ms,
        history.config.effective_segment_bytes,
        history.config.segment_index_bytes,
        history.config.index_interval_bytes,
    )
    cleaned = history.clean()
    assert cleaned.end_offset == end_offset
    stats = cleaned.stats
    assert stats.bytes_read == bytes_read
    assert (stats.messages_read, stats.messages_written) == (messages_read, messages_written)
    assert stats.invalid_messages_read == invalid
    return end_offset


def assert_equal_file(ours: Path, theirs: Path) -> None:
    if ours.suffix == ".snapshot":
        assert producers(ours) == producers(theirs), ours.name
        return
    if ours.suffix == ".log":
        assert batches(ours) == batches(theirs), ours.name
        assert modified(ours) == modified(theirs), ours.name
    assert ours.read_bytes() == theirs.read_bytes(), ours.name


def names(directory: Path) -> list[str]:
    found = (parse_segment_file_name(path.name) for path in directory.iterdir())
    return sorted(segment_file_name(*name) for name in found if name and not name.temporary_suffix)


def producers(path: Path) -> list[ProducerSnapshotEntry]:
    return sorted(read_producer_snapshot(path.read_bytes()))


def batches(path: Path) -> list[Batch]:
    data = path.read_bytes()
    return [
        (header._replace(length=0, crc=0), read_records(data, position, header))
        for position, header in iterate_batches(data)
    ]


def without_horizons(batches: list[Batch], end_offset: Offset) -> list[Batch]:
    """Remove the delete horizons of batches with a last offset at or above `end_offset`."""
    return [
        (header, records)
        if header.next_offset <= end_offset
        else (
            header._replace(attributes=header.attributes & ~DELETE_HORIZON_FLAG, base_timestamp=0),
            records,
        )
        for header, records in batches
    ]


def modified(path: Path) -> int:
    return path.stat().st_mtime_ns // 1_000_000


def test_kafkas_dump_finds_no_fault_in_cleaned_segments(kafka_tools: Path, tmp_path: Path) -> None:
    history = CleaningHistory(tmp_path / "topic-0", random.Random(4), codecs=tuple(CompressionType))
    for _ in range(4):
        for _ in range(60):
            history.step()
        history.clean()
        history.clock.advance(history.config.delete_retention_ms)
    expected = [batch.header for batch in history.log.batches()]
    history.close()
    assert any(header.has_delete_horizon for header in expected)
    assert any(header.records_count == 0 for header in expected)
    suffixes = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
    files = sorted(path for path in history.directory.iterdir() if path.suffix in suffixes)
    dump = parse_dump(dump_log_segments(files, "--deep-iteration", "--print-data-log"))
    assert [remark for file in dump.values() for remark in file.remarks if is_fault(remark)] == []
    dumped = [batch for path in files if path.suffix == ".log" for batch in dump[str(path)].batches]
    assert {batch["isvalid"] for batch in dumped} == {"true"}
    assert [
        (int(batch["baseOffset"]), int(batch["lastOffset"]), int(batch["count"]))
        for batch in dumped
    ] == [(header.base_offset, header.last_offset, header.records_count) for header in expected]


def is_fault(remark: str) -> bool:
    """Whether a remark of the tool is a fault.

    On any compacted log it remarks on gaps, and on batches without records: these have no
    timestamp, while the time index keeps the former one.
    """
    return not (
        remark.startswith(("Non-consecutive offsets in", "Found timestamp mismatch in"))
        or " is followed by " in remark
        or remark.endswith("log timestamp: -1")
    )


def test_kafka_finishes_a_swap_that_left_nothing_of_the_last_segment(
    kafka_cleaner: KafkaCleaner, tmp_path: Path
) -> None:
    log = CompactedLog(tmp_path / "topic-0", config=GROUPED)
    for value in ("1", "2"):
        log.append(("a", value), ("b", value), timestamps=[NOW, NOW])
        log.log.roll()
    log.append(("a", "3"), ("b", "3"), ("c", "3" * 300), timestamps=[NOW] * 3)
    log.log.roll()
    end_offset = log.log.log_end_offset
    log.log.close()
    fs = CrashFileSystem.adopting(tmp_path)
    log = CompactedLog(log.directory, config=GROUPED, fs=fs, checkpoints=closed_at(end_offset))
    with pytest.raises(SimulatedCrash):
        stop_before_old_files_go(fs, log)
    names = sorted(path.name for path in log.directory.iterdir())
    assert [name for name in names if name.endswith(".log.swap")] == [
        "00000000000000000000.log.swap", "00000000000000000002.log.swap"
    ]  # fmt: skip
    kafka_cleaner.clean(log.directory, 7, 7, NOW, 100, 1000, 1000, 400, 12_000, 1)
    left = sorted(path.name for path in log.directory.glob("*.log"))
    assert left == [f"{base:020}.log" for base in (0, 2, 4, 7)]
    assert [(log.directory / name).stat().st_size for name in left[:2]] == [0, 0]


def closed_at(end_offset: Offset) -> LogCheckpoints:
    return LogCheckpoints(end_offset, 0, end_offset, clean_shutdown=True)


def stop_before_old_files_go(fs: CrashFileSystem, log: CompactedLog) -> None:
    rename = fs.rename

    def stopping(source: Path, target: Path) -> None:
        if target.name.endswith(".deleted"):
            raise SimulatedCrash(target.name)
        rename(source, target)

    fs.rename = stopping  # type: ignore[method-assign]
    log.clean()
