"""No damage to a bucket changes the rows of a query in silence.

The truth is the list of rows that the history's writer kept. Each case is a query planned and read
as Spark's driver and tasks do it, without a session: right rows, or a clear error. Without
failOnDataLoss there may be fewer rows, never others.
"""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

import pytest

from tests.support.damaged_history import (
    OBJECTS,
    PLANTED,
    Question,
    damage,
    flipped_bits,
    questions,
)
from tests.support.model_history import START_MS, TOPIC, ModelHistory, rows

FLIPS = 15
SOAK_SEEDS = range(10, 40)
SOAK_FLIPS = 150


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> ModelHistory:
    return ModelHistory(tmp_path_factory.mktemp("history"), seed=1)


def check_flips(history: ModelHistory, suffix: str, count: int, seed: int) -> None:
    rng = random.Random(seed)
    asked = questions(history, rng)
    for changes in itertools.islice(flipped_bits(history, suffix, rng), count):
        with damage(changes):
            wrong = [
                told for each in rng.sample(asked, 5) if (told := each.wrong_answer(history.folder))
            ]
        assert not wrong, (sorted(changes), wrong)


def check_planted(history: ModelHistory, name: str, number: int, seed: int) -> None:
    with damage(PLANTED[name](history, number)):
        asked = questions(history, random.Random(seed), count=1)
        wrong = [told for each in asked if (told := each.wrong_answer(history.folder))]
    assert not wrong, (name, number, wrong)


def test_sound_history_is_read_whole(history: ModelHistory) -> None:
    for each in questions(history, random.Random(0), count=4):
        assert rows(history.folder, each.options) == list(each.expected), each.options


@pytest.mark.parametrize("suffix", OBJECTS)
def test_flipped_bit_changes_no_row_in_silence(history: ModelHistory, suffix: str) -> None:
    check_flips(history, suffix, FLIPS, seed=5)


@pytest.mark.parametrize("name", PLANTED)
def test_planted_damage_changes_no_row_in_silence(history: ModelHistory, name: str) -> None:
    check_planted(history, name, number=-1, seed=6)


@pytest.mark.soak
@pytest.mark.parametrize("seed", SOAK_SEEDS)
def test_no_damage_to_any_history_changes_rows_in_silence(tmp_path: Path, seed: int) -> None:
    history = ModelHistory(tmp_path, seed=seed)
    for suffix in OBJECTS:
        check_flips(history, suffix, SOAK_FLIPS, seed=seed)
    for name, number in itertools.product(PLANTED, range(1, len(history.segments))):
        check_planted(history, name, number, seed=seed)


def test_abort_beyond_the_end_that_a_manifest_tells(tmp_path: Path) -> None:
    """The last segment is told to end before the marker that aborts what earlier ones began."""
    check_planted(ModelHistory(tmp_path, seed=10), "end-a-batch-too-low", number=3, seed=10)


def test_batch_is_missing_behind_a_read_that_looks_on_for_its_markers(tmp_path: Path) -> None:
    """Without failOnDataLoss no row is given twice."""
    check_planted(ModelHistory(tmp_path, seed=11), "batch-cut-out-of-the-middle", 2, seed=11)


def test_marker_may_lie_in_a_hole_behind_what_is_read(tmp_path: Path) -> None:
    """A transaction that begins in what is read, and is aborted in a later segment whose manifest
    is damaged."""
    history = ModelHistory(tmp_path, seed=13)
    for number in range(1, len(history.segments)):
        check_planted(history, "manifest-garbage", number, seed=number)
        with damage(PLANTED["manifest-garbage"](history, number)):
            for ended in range(0, history.segments[number].start_offset, 7):
                limits = {"endingOffsets": json.dumps({TOPIC: {"0": ended}})}
                known = [row for row in history.committed() if row.offset < ended]
                asked = Question({"isolationLevel": "read_committed"} | limits, tuple(known))
                assert asked.wrong_answer(history.folder) is None


def test_entries_of_another_time_index_lead_beyond_the_segment(tmp_path: Path) -> None:
    history = ModelHistory(tmp_path, seed=13)
    with damage(PLANTED["indexes-swapped"](history, 3)):
        for time in range(START_MS - 50, START_MS + 10 * history.end + 50, 59):
            found = history.first_not_before(time)
            limits = {"startingTimestamp": time, "startingOffsetsByTimestampStrategy": "latest"}
            known = [row for row in history.written if row.offset >= found]
            assert Question(limits, tuple(known)).wrong_answer(history.folder) is None


@pytest.mark.parametrize("split", [{}, {"minPartitions": 9}])
def test_abort_of_earlier_segments_is_missed_in_a_segment_of_which_a_part_is_read(
    tmp_path: Path, split: dict[str, int]
) -> None:
    """Its index is lost, and what is read of it ends before the marker, or comes in small tasks."""
    history = ModelHistory(tmp_path, seed=17)
    with damage(PLANTED["transaction-index-lost"](history, 1)):
        for ended in range(history.segments[1].start_offset, history.end, 3):
            limits = {"endingOffsets": json.dumps({TOPIC: {"0": ended}})}
            known = [row for row in history.committed() if row.offset < ended]
            asked = Question({"isolationLevel": "read_committed"} | limits | split, tuple(known))
            assert asked.wrong_answer(history.folder) is None


def test_snapshot_of_another_segment_does_not_hide_the_end(tmp_path: Path) -> None:
    """It names transactions as open that have ended, and nothing behind them would be read."""
    history = ModelHistory(tmp_path, seed=37)
    level = {"isolationLevel": "read_committed"}
    known = history.committed()
    for start in (0, history.segments[-1].start_offset, history.end - 12):
        offsets = json.dumps({TOPIC: {"0": start}})
        wanted = tuple(row for row in known if row.offset >= start)
        by_time = {
            "startingTimestamp": START_MS + 10 * start,
            "startingOffsetsByTimestampStrategy": "latest",
        }
        found = history.first_not_before(START_MS + 10 * start)
        young = tuple(row for row in known if row.offset >= found)
        asked = [Question(level | {"startingOffsets": offsets}, wanted)]
        asked.append(Question(level | by_time, young))
        with damage(PLANTED["indexes-swapped"](history, len(history.segments) - 1)):
            assert not [told for each in asked if (told := each.wrong_answer(history.folder))]


def test_transactions_that_are_open_at_the_end_of_a_sound_bucket_are_read_up_to(
    tmp_path: Path,
) -> None:
    """The last segment is not copied yet. Markers in it decide what began before."""
    held_back = 0
    for seed in range(1, 4):
        history = ModelHistory(tmp_path / str(seed), seed=seed)
        *copied, later = history.segments
        end = copied[-1].end_offset_inclusive + 1
        not_copied = dict.fromkeys(history.objects(later).values())
        known = [row for row in history.committed() if row.offset < end]
        with damage(not_copied):
            found = rows(history.folder, {"isolationLevel": "read_committed"})
        assert found == known[: len(found)]
        held_back += len(found) < len(known)
    assert held_back
