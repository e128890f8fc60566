"""Leader epochs computed in columns, against the functions for one offset and one segment."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from isotherm.remote.history.epoch_columns import ExpectedEpochs, span_ends
from isotherm.segment.leader_epoch_checkpoint import EpochEntry
from isotherm.segment.leader_epochs import cut_at_epochs, epoch_for_offset

# A small range, so that offsets often equal borders; the extremes are those of damaged metadata.
OFFSETS = st.integers(0, 12) | st.sampled_from([-(2**63), -1, 2**63 - 1])


@st.composite
def epochs_of_segments(draw: st.DrawFn) -> list[tuple[list[EpochEntry], int]]:
    """Epochs and the end offset of several segments. Start offsets have any order, as in damaged
    metadata."""
    found = []
    for _ in range(draw(st.integers(1, 4))):
        epochs = sorted(draw(st.sets(st.integers(0, 6), min_size=1, max_size=4)))
        found.append(([EpochEntry(epoch, draw(OFFSETS)) for epoch in epochs], draw(OFFSETS)))
    return found


@given(epochs_of_segments())
def test_span_ends_are_those_of_each_segment(segments: list[tuple[list[EpochEntry], int]]) -> None:
    starts = np.array([entry.start_offset for epochs, _ in segments for entry in epochs])
    counts = np.array([len(epochs) for epochs, _ in segments])
    ends = np.array([end for _, end in segments])
    expected = [
        span.end_offset_inclusive for segment in segments for span in cut_at_epochs(*segment)
    ]
    assert span_ends(starts, counts, ends).tolist() == expected


@given(
    st.dictionaries(st.integers(0, 6), st.integers(0, 12), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(-1, 7), st.integers(0, 13)), min_size=1, max_size=6),
)
def test_batches_are_wrong_that_have_another_epoch_than_the_lineage(
    starts: dict[int, int], batches: list[tuple[int, int]]
) -> None:
    rising = zip(sorted(starts), sorted(starts.values()), strict=True)
    lineage = [EpochEntry(*each) for each in rising]
    expected = []
    for epoch, offset in batches:
        entry = epoch_for_offset(lineage, offset)
        expected.append(entry is not None and epoch != -1 and epoch != entry.epoch)
    epochs, offsets = np.array(batches).T
    assert ExpectedEpochs(dict(lineage)).wrong(epochs, offsets).tolist() == expected


@given(st.lists(st.integers(-1, 6), min_size=1, max_size=3))
def test_batches_of_a_segment_with_one_epoch_have_that_or_none(epochs: list[int]) -> None:
    expected = ExpectedEpochs({3: 10})
    for offset in (9, 10, 11):
        wrong = expected.wrong(np.array(epochs), np.full(len(epochs), offset))
        assert wrong.tolist() == [offset >= 10 and epoch not in (-1, 3) for epoch in epochs]
