"""Batches of delivery states against a model: a dictionary of offsets."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from hypothesis import example, given
from hypothesis import strategies as st

from isotherm.broker.coordinators.shares.state_batches import (
    NO_START_OFFSET,
    StateBatch,
    combined_batches,
)


def by_offset(batches: Iterable[StateBatch], start_offset: int) -> dict[int, tuple[int, int]]:
    """The delivery of each offset: of all batches that have it, the highest."""
    model: dict[int, tuple[int, int]] = {}
    for batch in batches:
        for offset in range(batch.first_offset, batch.last_offset_inclusive + 1):
            if offset >= start_offset:
                model[offset] = max(batch.delivery, model.get(offset, batch.delivery))
    return model


@st.composite
def batches(draw: st.DrawFn) -> StateBatch:
    first = draw(st.integers(0, 20))
    return StateBatch(
        first,
        first + draw(st.integers(0, 8)),
        draw(st.integers(0, 3)),
        draw(st.sampled_from([0, 2, 4])),
    )


@given(
    current=st.lists(batches(), max_size=6),
    later=st.lists(batches(), max_size=6),
    start_offset=st.one_of(st.just(NO_START_OFFSET), st.integers(0, 25)),
)
@example(
    # The batch that begins where another one ended takes a third one's place.
    current=[StateBatch(0, 4, 2, 0), StateBatch(5, 9, 1, 0)],
    later=[StateBatch(5, 9, 2, 0)],
    start_offset=NO_START_OFFSET,
)
def test_each_offset_has_its_highest_delivery(
    current: list[StateBatch], later: list[StateBatch], start_offset: int
) -> None:
    combined = combined_batches(current, later, start_offset)
    assert by_offset(combined, 0) == by_offset([*current, *later], start_offset)
    for before, batch in itertools.pairwise(combined):
        assert before.last_offset_inclusive < batch.first_offset


def test_neighbours_of_one_state_are_one_batch() -> None:
    combined = combined_batches([StateBatch(0, 4, 1, 2)], [StateBatch(5, 9, 1, 2)], 3)
    assert combined == (StateBatch(3, 9, 1, 2),)
