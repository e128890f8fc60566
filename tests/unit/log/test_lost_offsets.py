"""Offsets that are missing in a log when it is loaded: losses are reported, compaction is none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from isotherm.log.log_loader import LogCheckpoints
from isotherm.record.batch import iterate_batches
from tests.support.filled_log import (
    BATCH_SIZE,
    CONFIG,
    errors_in,
    fill,
    lose_end_of_first_segment,
    offsets_in,
    reopen,
)
from tests.support.local_log import open_local_log


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "topic-0"


def test_whole_batches_lost_before_the_next_segment_are_reported_and_the_rest_kept(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The file of a new segment may reach the disk before the end of the segment before it."""
    fill(directory)
    lose_end_of_first_segment(directory)
    log = reopen(directory)
    assert (offsets_in(log), log.log_end_offset) == ([0, 1, 2, *range(5, 12)], 12)
    assert next(iterate_batches(log.read(3, 1000).records))[1].base_offset == 5
    expected = "records are missing between segments partition=topic-0"
    assert errors_in(caplog) == [f"{expected} first_missing_offset=3 next_offset=5"]


@pytest.mark.parametrize("recovery_point", [0, 5, 12])
def test_gaps_of_a_compacted_log_are_not_reported(
    directory: Path, caplog: pytest.LogCaptureFixture, recovery_point: int
) -> None:
    fill(directory)
    lose_end_of_first_segment(directory)
    config = replace(CONFIG, cleanup_policy=("compact",))
    checkpoints = LogCheckpoints(recovery_point=recovery_point)
    log = open_local_log(directory, config=config, checkpoints=checkpoints)
    assert offsets_in(log) == [0, 1, 2, *range(5, 12)]
    assert errors_in(caplog) == []


def test_gaps_of_a_log_once_compacted_are_not_reported(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fill(directory).close()
    path = directory / f"{5:020d}.log"
    data = path.read_bytes()
    path.write_bytes(data[:BATCH_SIZE] + data[2 * BATCH_SIZE :])
    lose_end_of_first_segment(directory)
    assert offsets_in(reopen(directory)) == [0, 1, 2, 5, *range(7, 12)]
    assert errors_in(caplog) == []
