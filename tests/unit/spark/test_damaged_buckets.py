"""No damage to a bucket silently changes the rows of a query.

The oracle is the list of rows that the history's writer kept. Each case is a query, planned and
read as Spark's driver and tasks do it, without a session. It returns the right rows or a clear
error. Without failOnDataLoss there may be fewer rows but no wrong ones.
"""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from isotherm.errors import IsothermError
from isotherm.record.batch import CompressionType
from isotherm.remote.scrub.segment_scrub import SegmentScrubber
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.types import uuid_to_text
from tests.support.damaged_history import (
    OBJECTS,
    PLANTED,
    PLANTED_FROM_ANOTHER_TOPIC,
    STRICT,
    Question,
    damage,
    flipped_bits,
    questions,
)
from tests.support.model_history import START_MS, TOPIC, ModelHistory, Shape, rows
from tests.support.transformed_history import PLANTED_TRANSFORMS, transformed_history

pytestmark = pytest.mark.slow  # as a file: each kind of damage is read in every mode
FLIPS = 15
SOAK_SEEDS = range(10, 46)
SOAK_FLIPS = 150
DAMAGED_BESIDE_OVERLAPS = (
    "end-at-the-limit",
    "transaction-index-lost",
    "indexes-swapped",
    "batch-cut-out-of-the-middle",
    "log-missing",
    "manifest-garbage",
)


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> ModelHistory:
    return ModelHistory(tmp_path_factory.mktemp("history"), seed=1)


def check_flips(history: ModelHistory, suffix: str, count: int, seed: int) -> None:
    rng = random.Random(seed)
    asked = questions(history, rng)
    for changes in itertools.islice(flipped_bits(history, suffix, rng), count):
        with damage(changes):
            wrong = [
                answer
                for question in rng.sample(asked, 5)
                if (answer := question.wrong_answer(history.folder))
            ]
        assert not wrong, (sorted(changes), wrong)


def check_planted(history: ModelHistory, name: str, number: int, seed: int) -> None:
    with damage(PLANTED[name](history, number)):
        asked = questions(history, random.Random(seed), count=1)
        wrong = [answer for question in asked if (answer := question.wrong_answer(history.folder))]
    assert not wrong, (name, number, wrong)


def test_sound_history_is_read_whole(history: ModelHistory) -> None:
    for question in questions(history, random.Random(0), count=4):
        assert rows(history.folder, question.options) == list(question.expected), question.options


@pytest.mark.parametrize("suffix", OBJECTS)
def test_flipped_bit_changes_no_row_in_silence(history: ModelHistory, suffix: str) -> None:
    check_flips(history, suffix, FLIPS, seed=5)


@pytest.mark.parametrize("name", PLANTED)
def test_planted_damage_changes_no_row_in_silence(history: ModelHistory, name: str) -> None:
    check_planted(history, name, number=-1, seed=6)


@pytest.fixture(scope="module")
def overlapping(tmp_path_factory: pytest.TempPathFactory) -> ModelHistory:
    """A history with the segments of another replica too, which have other borders."""
    folder = tmp_path_factory.mktemp("overlapping")
    history = ModelHistory(folder, seed=1)
    history.copy_of_another_replica(folder / "replica")
    return history


def test_overlapping_segments_are_read_once(overlapping: ModelHistory) -> None:
    for question in questions(overlapping, random.Random(0), count=4):
        assert rows(overlapping.folder, question.options) == list(question.expected), (
            question.options
        )


@pytest.mark.parametrize("number", [2, 3])
@pytest.mark.parametrize("name", DAMAGED_BESIDE_OVERLAPS)
def test_damage_beside_overlapping_segments_changes_no_row_in_silence(
    overlapping: ModelHistory, name: str, number: int
) -> None:
    """Reads begin and end inside segments, where there is no producer snapshot."""
    check_planted(overlapping, name, number, seed=1)


@pytest.mark.parametrize("name", PLANTED_FROM_ANOTHER_TOPIC)
def test_objects_of_another_topic_change_no_row_in_silence(
    history: ModelHistory, tmp_path: Path, name: str
) -> None:
    other = ModelHistory(tmp_path, seed=2)
    for number in range(1, len(history.segments)):
        with damage(PLANTED_FROM_ANOTHER_TOPIC[name](history, other, number)):
            asked = questions(history, random.Random(number), count=1)
            assert not [
                answer for question in asked if (answer := question.wrong_answer(history.folder))
            ]


@pytest.mark.parametrize("name", PLANTED_FROM_ANOTHER_TOPIC)
def test_objects_of_a_topic_of_equal_sizes_are_found_by_their_times(
    tmp_path: Path, name: str
) -> None:
    """The timestamps show it when the whole segment is read. A log does not name its topic."""
    shape = Shape(codecs=(CompressionType.NONE,))
    history = ModelHistory(tmp_path / "own", 1, shape)
    twin = ModelHistory(tmp_path / "twin", 1, replace(shape, twin=7))
    for number, segment in enumerate(history.segments):
        assert segment.segment_size_in_bytes == twin.segments[number].segment_size_in_bytes
        with damage(PLANTED_FROM_ANOTHER_TOPIC[name](history, twin, number)):
            for isolation, known in history.by_isolation().items():
                asked = Question({"isolationLevel": isolation}, tuple(known))
                assert asked.wrong_answer(history.folder) is None


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("compressed", marks=pytest.mark.nightly),
        pytest.param("encrypted", marks=pytest.mark.nightly),
        "compressed-encrypted",
    ],
)
def transformed(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> ModelHistory:
    folder = tmp_path_factory.mktemp("transformed")
    is_compressed, is_encrypted = ("press" in request.param, "crypt" in request.param)
    return transformed_history(folder, 3, compressed=is_compressed, encrypted=is_encrypted)


def test_transformed_history_is_read_whole(transformed: ModelHistory) -> None:
    for question in questions(transformed, random.Random(0), count=1):
        assert rows(transformed.folder, question.options) == list(question.expected), (
            question.options
        )


@pytest.mark.parametrize("name", PLANTED_TRANSFORMS)
def test_wrong_transforms_in_a_manifest_change_no_row_in_silence(
    transformed: ModelHistory, name: str
) -> None:
    """An error must name the segment. A scrub continues, and has findings unless the rows are
    right."""
    segment = transformed.segments[1]
    whole, *others = questions(transformed, random.Random(3), count=1)
    with damage(PLANTED_TRANSFORMS[name](transformed, 1)):
        asked = [whole, *random.Random(name).sample(others, 2)]
        wrong = [
            answer for question in asked if (answer := question.wrong_answer(transformed.folder))
        ]
        named = None
        try:
            rows(transformed.folder, {**whole.options, **STRICT})
        except IsothermError as error:
            named = str(error)
        settings = {"url": transformed.folder.as_uri(), **transformed.reading}
        scrubber = SegmentScrubber.of_bucket(ObjectStoreSettings.from_config(settings))
        findings = scrubber.scrub(segment, transformed.segments[0]).findings
    assert not wrong
    assert named is None or uuid_to_text(segment.segment_id.id) in named
    assert findings or named is None


@pytest.mark.soak
@pytest.mark.parametrize("seed", SOAK_SEEDS)
def test_no_damage_to_any_history_changes_rows_in_silence(tmp_path: Path, seed: int) -> None:
    history = ModelHistory(tmp_path, seed=seed)
    for suffix in OBJECTS:
        check_flips(history, suffix, SOAK_FLIPS, seed=seed)
    for name, number in itertools.product(PLANTED, range(1, len(history.segments))):
        check_planted(history, name, number, seed=seed)
    history.copy_of_another_replica(tmp_path / "replica")
    for name, number in itertools.product(PLANTED, range(1, len(history.segments))):
        check_planted(history, name, number, seed=seed)


def test_abort_beyond_the_end_that_a_manifest_tells(tmp_path: Path) -> None:
    """The manifest gives the last segment an end below the marker that aborts transactions of
    earlier ones."""
    check_planted(ModelHistory(tmp_path, seed=10), "end-a-batch-too-low", number=3, seed=10)


def test_aborted_batch_with_the_id_of_a_producer_that_commits(tmp_path: Path) -> None:
    """The batch has a right CRC, and lies inside a transaction of the other producer."""
    check_planted(ModelHistory(tmp_path, seed=43), "producer-id-of-another", 1, seed=43)


def test_batch_is_missing_behind_a_read_that_looks_on_for_its_markers(tmp_path: Path) -> None:
    """Without failOnDataLoss no row is returned twice."""
    check_planted(ModelHistory(tmp_path, seed=11), "batch-cut-out-of-the-middle", 2, seed=11)


def test_marker_may_lie_in_a_hole_behind_what_is_read(tmp_path: Path) -> None:
    """A transaction begins in the range that is read, and is aborted in a later segment whose
    manifest is damaged."""
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
    """The segment's index is lost. The part that is read ends before the marker, or is split into
    small tasks."""
    history = ModelHistory(tmp_path, seed=17)
    with damage(PLANTED["transaction-index-lost"](history, 1)):
        for ended in range(history.segments[1].start_offset, history.end, 3):
            limits = {"endingOffsets": json.dumps({TOPIC: {"0": ended}})}
            known = [row for row in history.committed() if row.offset < ended]
            asked = Question({"isolationLevel": "read_committed"} | limits | split, tuple(known))
            assert asked.wrong_answer(history.folder) is None


def test_snapshot_of_another_segment_does_not_hide_the_end(tmp_path: Path) -> None:
    """The snapshot lists ended transactions as open. If it were trusted, nothing after them would
    be read."""
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
            assert not [
                answer for question in asked if (answer := question.wrong_answer(history.folder))
            ]


def test_transactions_that_are_open_at_the_end_of_a_sound_bucket_are_read_up_to(
    tmp_path: Path,
) -> None:
    """The last segment is not copied yet. Its markers decide transactions that began in the
    bucket."""
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
