"""Look-ups and spans in a list of leader epochs."""

from __future__ import annotations

import pytest

from isotherm.segment.leader_epoch_checkpoint import EpochEntry
from isotherm.segment.leader_epochs import (
    EpochSpan,
    cut_at_epochs,
    epoch_end_offset,
    epoch_for_offset,
    epochs_within,
    first_out_of_order,
    joined,
    without_empty_epochs,
)

LINEAGE = [EpochEntry(*entry) for entry in {0: 0, 1: 10, 2: 20, 3: 30, 4: 40, 5: 50, 7: 70}.items()]
LOG_END = 90


def entries(*each: tuple[int, int]) -> list[EpochEntry]:
    return [EpochEntry(*entry) for entry in each]


def test_epochs_that_share_a_start_with_the_next_are_empty() -> None:
    lineage = entries((0, 0), (1, 0), (2, 0), (3, 5), (4, 5), (5, 10))
    assert without_empty_epochs(lineage) == entries((2, 0), (4, 5), (5, 10))
    assert without_empty_epochs([]) == []


def test_epoch_for_offset_is_the_last_that_starts_at_or_below_it() -> None:
    assert epoch_for_offset(LINEAGE, 9) == EpochEntry(0, 0)
    assert epoch_for_offset(LINEAGE, 10) == EpochEntry(1, 10)
    assert epoch_for_offset(LINEAGE, 1000) == EpochEntry(7, 70)
    assert epoch_for_offset(LINEAGE[1:], 9) is None


def test_epoch_end_offset_is_where_the_next_one_starts() -> None:
    assert epoch_end_offset(LINEAGE, 5, LOG_END) == 70
    assert epoch_end_offset(LINEAGE, 7, LOG_END) == LOG_END


@pytest.mark.parametrize(
    ("lineage", "wrong"),
    [
        (LINEAGE, None),
        ([], None),
        (entries((0, 5), (1, 5)), None),
        (entries((0, 5), (1, 4)), EpochEntry(1, 4)),
        (entries((1, 0), (1, 9), (2, 8)), EpochEntry(1, 9)),
        (entries((2, 0), (1, 9)), EpochEntry(1, 9)),
    ],
)
def test_lineage_rises_in_epoch_and_does_not_fall_in_offset(
    lineage: list[EpochEntry], wrong: EpochEntry | None
) -> None:
    assert first_out_of_order(lineage) == wrong


def test_epoch_on_both_sides_of_a_border_is_joined_to_one() -> None:
    below = entries((0, 0), (2, 15))
    assert joined(below, entries((2, 20), (5, 30))) == (*below, EpochEntry(5, 30))
    assert joined(below, entries((3, 20))) == (*below, EpochEntry(3, 20))
    assert joined(below, []) == joined([], below) == tuple(below)
    assert joined(LINEAGE[:3], LINEAGE[2:]) == tuple(LINEAGE)
    assert joined(LINEAGE[:1], LINEAGE) == tuple(LINEAGE)


def test_epochs_of_a_segment_are_those_with_an_offset_in_it() -> None:
    lineage = entries((0, 0), (2, 10), (3, 20), (5, 40))
    assert epochs_within(lineage, 15, 40) == {2: 15, 3: 20}
    assert epochs_within(lineage, 20, 45) == {3: 20, 5: 40}
    assert epochs_within(lineage, 50, 60) == {5: 50}


def test_span_of_an_epoch_ends_where_the_next_one_starts() -> None:
    assert cut_at_epochs([(0, 100), (2, 150)], 199) == [
        EpochSpan(0, 100, 149),
        EpochSpan(2, 150, 199),
    ]
