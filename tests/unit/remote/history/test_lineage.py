"""Which segments are within a lineage. The vectors are those of Kafka's RemoteLogManagerTest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from isotherm.errors import CorruptObjectError
from isotherm.remote.history.lineage import (
    NO_OFFSET,
    OffsetAndEpoch,
    checkpoint_of_copy,
    highest_remote_offset,
    is_segment_within_lineage,
    remote_log_start_offset,
)
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata, RemoteLogSegmentState
from isotherm.segment.leader_epoch_checkpoint import EpochEntry, encode_leader_epoch_checkpoint

MakeSegment = Callable[..., RemoteLogSegmentMetadata]

LINEAGE = [EpochEntry(*entry) for entry in {0: 0, 1: 10, 2: 20, 3: 30, 4: 40, 5: 50, 7: 70}.items()]
LOG_END = 90


@pytest.mark.parametrize(
    ("epochs", "end", "within"),
    [
        ({1: 15, 2: 20, 3: 30}, 35, True),
        ({1: 15}, 19, True),
        ({7: 70}, 75, True),
        ({1: 15, 2: 20}, 29, True),
        ({5: 55, 6: 60}, 65, False),
        ({5: 55, 6: 60, 7: 70}, 75, False),
        ({1: 15, 2: 20, 4: 40}, 45, False),
        ({7: 70}, 90, False),
        ({7: 70}, 95, False),
        ({1: 5, 2: 20}, 25, False),
        ({1: 15, 2: 20}, 35, False),
        ({8: 80}, 85, False),
        ({0: 5, 1: 12}, 19, False),
        ({0: 0, 1: 10, 2: 20}, 25, True),
    ],
)
def test_segment_is_within_lineage_as_kafka_says(
    remote_segment: MakeSegment, epochs: dict[int, int], end: int, within: bool
) -> None:
    assert is_segment_within_lineage(remote_segment(epochs, end), LOG_END, LINEAGE) is within


def test_segment_with_epochs_below_the_lineage_is_within_it_when_the_rest_agrees(
    remote_segment: MakeSegment,
) -> None:
    """The log start moved into the segment, so its first epochs are no longer in the lineage."""
    lineage = [EpochEntry(2, 25), EpochEntry(3, 30)]
    assert is_segment_within_lineage(remote_segment({1: 15, 2: 20, 3: 30}, 35), 90, lineage)
    assert not is_segment_within_lineage(remote_segment({0: 5, 1: 10}, 19), 90, lineage)


def test_segment_with_an_empty_epoch_is_judged_without_it(remote_segment: MakeSegment) -> None:
    segment = remote_segment({1: 15, 2: 20, 3: 20}, 25)
    lineage = [EpochEntry(1, 10), EpochEntry(3, 20)]
    assert is_segment_within_lineage(segment, 90, lineage)


def test_no_segment_is_within_an_empty_lineage(remote_segment: MakeSegment) -> None:
    assert not is_segment_within_lineage(remote_segment({0: 0}, 5), 90, [])


@pytest.mark.parametrize(
    "entries", [[(0, 4), (2, 15)], [(0, 10), (2, 15)], [(0, 4), (2, 15), (3, 20)]]
)
def test_checkpoint_of_a_copy_has_the_epochs_of_its_segment(
    remote_segment: MakeSegment, entries: list[tuple[int, int]]
) -> None:
    checkpoint = [EpochEntry(*entry) for entry in entries]
    data = encode_leader_epoch_checkpoint(checkpoint)
    assert checkpoint_of_copy(remote_segment({0: 10, 2: 15}, 19), data) == checkpoint


@pytest.mark.parametrize(
    "entries", [[], [(0, 4)], [(2, 15)], [(0, 4), (1, 12), (2, 15)], [(0, 4), (2, 16)]]
)
def test_checkpoint_with_other_epochs_than_its_segment_is_refused(
    remote_segment: MakeSegment, entries: list[tuple[int, int]]
) -> None:
    data = encode_leader_epoch_checkpoint([EpochEntry(*entry) for entry in entries])
    with pytest.raises(CorruptObjectError, match="are not those of its metadata"):
        checkpoint_of_copy(remote_segment({0: 10, 2: 15}, 19), data)


def test_highest_remote_offset_of_unknown_log_is_none() -> None:
    assert highest_remote_offset(LINEAGE, LOG_END, lambda epoch: None) == NO_OFFSET
    assert highest_remote_offset([], LOG_END, lambda epoch: 5) == NO_OFFSET


def test_highest_remote_offset_after_unclean_election_is_cut_to_the_epochs_end() -> None:
    lineage = [EpochEntry(0, 0), EpochEntry(1, 150), EpochEntry(2, 300)]
    highest = highest_remote_offset(lineage, 400, {0: 200}.get)
    assert highest == OffsetAndEpoch(149, 0)


def test_highest_remote_offset_goes_by_the_latest_epoch_that_the_tier_knows() -> None:
    lineage = [EpochEntry(0, 0), EpochEntry(1, 150), EpochEntry(2, 300)]
    assert highest_remote_offset(lineage, 400, {0: 149, 1: 180}.get) == OffsetAndEpoch(180, 1)
    assert highest_remote_offset(lineage, 400, {2: 350}.get) == OffsetAndEpoch(350, 2)


def test_remote_log_start_offset_is_that_of_the_first_segment_of_the_earliest_epoch(
    remote_segment: MakeSegment,
) -> None:
    lineage = [EpochEntry(0, 0), EpochEntry(1, 250), EpochEntry(2, 550)]
    listed = {1: [remote_segment({1: 500}, 539), remote_segment({1: 540}, 700)]}
    assert remote_log_start_offset(lineage, 600, lambda epoch: listed.get(epoch, [])) == 500
    assert remote_log_start_offset(lineage, 600, lambda epoch: []) == 600


def test_remote_log_start_offset_is_that_of_a_finished_segments_first_record(
    remote_segment: MakeSegment,
) -> None:
    lineage = [EpochEntry(1, 0)]
    whole, cut = remote_segment({1: 100}, 199), remote_segment({1: 200}, 299)
    going = replace(whole, state=RemoteLogSegmentState.DELETE_SEGMENT_STARTED)
    assert remote_log_start_offset(lineage, 600, lambda _: [going, cut]) == 200
    assert remote_log_start_offset(lineage, 600, lambda _: [replace(cut, start_offset=150)]) == 200
    assert remote_log_start_offset(lineage, 50, lambda _: [whole]) == 50, (
        "never above local records"
    )
