"""Describes a segment by the batches of its log, for a segment whose manifest cannot be read.

It shows which offsets of which leaders the segment has, so that no other segment is taken for their
history, and none is left out with them. Only a log that is stored as it is can be described.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from isotherm.errors import CorruptDataError, UnreadableDataError
from isotherm.record.batch_table import leader_epochs, read_sound_batches
from isotherm.remote.storage.object_client import ObjectClient
from isotherm.remote.storage.segment_blocks import BatchJoiner, block_ranges
from isotherm.types import LeaderEpoch, Offset

_FETCH_BYTES = 8 * 1024 * 1024


class LogDescription(NamedTuple):
    """`epochs` has the first offset of each leader epoch, ascending."""

    end_offset_inclusive: Offset
    epochs: Mapping[LeaderEpoch, Offset]


def describe_log(
    client: ObjectClient, key: str, size: int, start_offset: Offset
) -> LogDescription | None:
    """Read a `.log` object of `size` bytes. None unless all of it are sound batches, whose offsets
    and leader epochs rise, from `start_offset` on. Raises RemoteStorageError if the store fails."""
    try:
        return _described(client, key, size, start_offset)
    except UnreadableDataError:
        return None


def _described(
    client: ObjectClient, key: str, size: int, start_offset: Offset
) -> LogDescription | None:
    joiner = BatchJoiner(size)
    epochs: dict[LeaderEpoch, Offset] = {}
    last_epoch, next_offset = 0, start_offset
    for start, end in block_ranges(0, size, _FETCH_BYTES):
        for part in joiner.parts(client.get_range(key, start, end).data):
            table, taken, damage = read_sound_batches(part)
            if damage is not None:
                raise damage
            joiner.took(part, taken)
            if not len(table):
                continue
            base = table["base_offset"]
            nexts = base + table["last_offset_delta"] + 1
            batch_epochs = np.append(last_epoch, leader_epochs(part, table))
            if (
                base[0] < next_offset
                or (not epochs and base[0] != start_offset)
                or (base[1:] < nexts[:-1]).any()
                or (batch_epochs[1:] < batch_epochs[:-1]).any()
            ):
                raise CorruptDataError("offsets or leader epochs of a log do not rise")
            for row in np.flatnonzero(batch_epochs[1:] != batch_epochs[:-1]).tolist():
                epochs[int(batch_epochs[row + 1])] = int(base[row])
            epochs.setdefault(int(batch_epochs[1]), int(base[0]))
            last_epoch, next_offset = int(batch_epochs[-1]), int(nexts[-1])
    joiner.end()
    if joiner.position != size:
        raise CorruptDataError(f"log is shorter than its listing says size={size}")
    return LogDescription(next_offset - 1, epochs) if epochs else None
