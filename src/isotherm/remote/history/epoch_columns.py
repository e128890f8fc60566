"""Leader epochs by columns: what leader_epochs.py of isotherm.segment says of one offset or
segment, for many at once. `tests/property/remote/test_epoch_columns.py` compares both. Pure.
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
    """Which leader epoch batches carry, by their offsets. `epochs` are those of a segment, or the
    entries of a checkpoint: the start offset of each epoch, ascending; at least one.

    Below the first start offset nothing is known: the log start lay in the segment when it was
    copied, and records below it keep their batches, but no longer their epoch.
    """

    def __init__(self, epochs: Mapping[LeaderEpoch, Offset]) -> None:
        self._epochs = np.fromiter(epochs.keys(), np.int64, len(epochs))
        self._starts = np.fromiter(epochs.values(), np.int64, len(epochs))

    def at(self, offsets: Int64Array) -> Int64Array:
        """Below the first start offset the first epoch."""
        places = self._starts.searchsorted(offsets, side="right") - 1
        expected: Int64Array = self._epochs[np.maximum(places, 0)]
        return expected

    def wrong(self, epochs: Int64Array, base_offsets: Int64Array) -> BoolArray:
        """Which batches contradict it. A batch without an epoch (-1) contradicts nothing."""
        if len(self._epochs) == 1 and (epochs == self._epochs[0]).all():
            return np.zeros(len(epochs), np.bool_)
        is_known = (epochs != NO_LEADER_EPOCH) & (base_offsets >= self._starts[0])
        wrong: BoolArray = is_known & (epochs != self.at(base_offsets))
        return wrong


def span_ends(starts: Int64Array, counts: Int64Array, ends: Int64Array) -> Int64Array:
    """The inclusive ends of the spans that begin at `starts`: of `counts[i]` epochs, for each i one
    after the other, up to `ends[i]`. As `cut_at_epochs`; each count is at least 1."""
    following = np.concatenate((starts[1:], [0]))[: len(starts)]
    found: Int64Array = np.maximum(following, _OFFSET_MIN + 1) - 1
    found[np.cumsum(counts) - 1] = ends
    return found
