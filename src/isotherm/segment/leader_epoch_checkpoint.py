"""The `leader-epoch-checkpoint` of a partition: `<epoch> <start offset>` per line.

The LEADER_EPOCH object of a remote segment is the same text. Both fields rise from line to line.
Source: Kafka LeaderEpochCheckpointFile.java.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from isotherm.segment.checkpoint_text import (
    checkpoint_integers,
    encode_checkpoint_entries,
    read_checkpoint_entries,
)
from isotherm.types import LeaderEpoch, Offset


class EpochEntry(NamedTuple):
    """The epoch's records start at start_offset and end where the next entry starts."""

    epoch: LeaderEpoch
    start_offset: Offset


def read_leader_epoch_checkpoint(data: bytes | str) -> list[EpochEntry]:
    """The entries in file order. Raises CorruptCheckpointError with the line."""
    return [
        EpochEntry(*checkpoint_integers(fields))
        for fields in read_checkpoint_entries(data, field_count=2)
    ]


def encode_leader_epoch_checkpoint(entries: Iterable[EpochEntry]) -> bytes:
    return encode_checkpoint_entries(entries)
