"""Leader epochs by columns: leader_epochs.py of isotherm.segment for many offsets or segments at
once. `tests/property/remote/test_epoch_columns.py` compares the two. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from isotherm.types import NO_LEADER_EPOCH, LeaderEpoch, Offset

if TYPE_CHECKING:
    from isotherm.record.batch_table import BoolArray, Int64Array

_OFFSET_MIN = np.iinfo(np.int64).min


class ExpectedEpochs:
    """The leader epoch that each batch must have, by its offset. `epochs` has the start offset of
    each epoch of a segment or checkpoint, ascending; at least one.

    Below the first start offset nothing is known: the log start lay in the segment when it was
    copied, and the epochs of records below it were dropped.
    """

    def __init__(self, epochs: Mapping[LeaderEpoch, Offset]) -> None:
        self._epochs = np.fromiter(epochs.keys(), np.int64, len(epochs))
        self._starts = np.fromiter(epochs.values(), np.int64, len(epochs))

    def at(self, offsets: Int64Array) -> Int64Array:
        """The epochs at `offsets`; the first epoch below the first start offset."""
        places = self._starts.searchsorted(offsets, side="right") - 1
        expected: Int64Array = self._epochs[np.maximum(places, 0)]
        return expected

    def wrong(self, epochs: Int64Array, base_offsets: Int64Array) -> BoolArray:
        """Whether each batch has a wrong epoch. A batch without an epoch (-1) has none."""
        if len(self._epochs) == 1 and (epochs == self._epochs[0]).all():
            return np.zeros(len(epochs), np.bool_)
        is_known = (epochs != NO_LEADER_EPOCH) & (base_offsets >= self._starts[0])
        wrong: BoolArray = is_known & (epochs != self.at(base_offsets))
        return wrong


def span_ends(starts: Int64Array, counts: Int64Array, ends: Int64Array) -> Int64Array:
    """The inclusive ends of the spans that begin at `starts`. Segment i has `counts[i]` spans, at
    least one, up to `ends[i]`; the spans of all segments are concatenated. Same as
    `cut_at_epochs`."""
    following = np.concatenate((starts[1:], [0]))[: len(starts)]
    # Damaged metadata may have the lowest offset: the one before it would wrap to the highest.
    ends_inclusive: Int64Array = np.maximum(following, _OFFSET_MIN + 1) - 1
    ends_inclusive[np.cumsum(counts) - 1] = ends
    return ends_inclusive
