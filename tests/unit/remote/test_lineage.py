"""The vectors of Kafka's RemoteLogManagerTest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from isotherm.remote.history.lineage import (
    NO_OFFSET,
    OffsetAndEpoch,
    epoch_end_offset,
    epoch_for_offset,
    highest_remote_offset,
    is_segment_within_lineage,
    remote_log_start_offset,
    without_empty_epochs,
)
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata, RemoteLogSegmentState
from isotherm.segment.leader_epoch_checkpoint import EpochEntry

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
    """The log start has moved into the segment, and its first epochs are forgotten."""
    lineage = [EpochEntry(2, 25), EpochEntry(3, 30)]
    assert is_segment_within_lineage(remote_segment({1: 15, 2: 20, 3: 30}, 35), 90, lineage)
    assert not is_segment_within_lineage(remote_segment({0: 5, 1: 10}, 19), 90, lineage)


def test_segment_with_an_empty_epoch_is_judged_without_it(remote_segment: MakeSegment) -> None:
    segment = remote_segment({1: 15, 2: 20, 3: 20}, 25)
    lineage = [EpochEntry(1, 10), EpochEntry(3, 20)]
    assert is_segment_within_lineage(segment, 90, lineage)


def test_no_segment_is_within_an_empty_lineage(remote_segment: MakeSegment) -> None:
    assert not is_segment_within_lineage(remote_segment({0: 0}, 5), 90, [])


def test_epochs_that_share_a_start_with_the_next_are_empty() -> None:
    entries = [EpochEntry(*each) for each in ((0, 0), (1, 0), (2, 0), (3, 5), (4, 5), (5, 10))]
    assert without_empty_epochs(entries) == [EpochEntry(2, 0), EpochEntry(4, 5), EpochEntry(5, 10)]
    assert without_empty_epochs([]) == []


def test_epoch_for_offset_is_the_last_that_starts_at_or_below_it() -> None:
    assert epoch_for_offset(LINEAGE, 9) == EpochEntry(0, 0)
    assert epoch_for_offset(LINEAGE, 10) == EpochEntry(1, 10)
    assert epoch_for_offset(LINEAGE, 1000) == EpochEntry(7, 70)
    assert epoch_for_offset(LINEAGE[1:], 9) is None


def test_epoch_end_offset_is_where_the_next_one_starts() -> None:
    assert epoch_end_offset(LINEAGE, 5, LOG_END) == 70
    assert epoch_end_offset(LINEAGE, 7, LOG_END) == LOG_END


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
