"""The ids of log directories, and the reserved ones in partition records, which stand for none.

The decoder returns None for a zero id, as for every zero uuid; images have MIGRATING instead.
Source: KIP-858; Kafka DirectoryId.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

MIGRATING = uuid.UUID(int=0)
"""The broker registered without directory ids.

It has a single directory, which contains the log.
"""
UNASSIGNED = uuid.UUID(int=1)
"""The broker chooses the directory and reports it (AssignReplicasToDirs)."""
LOST = uuid.UUID(int=2)
"""The log was in a directory that is offline."""

_RESERVED_IDS = 100


class NodeIdentity(NamedTuple):
    """The identity of a cluster member. `directory_ids` has the online log directories."""

    cluster_id: str
    directory_ids: Mapping[Path, uuid.UUID]


def is_directory(directory_id: uuid.UUID) -> bool:
    """Whether an id is outside the reserved range, so that a directory may have it."""
    return directory_id.int >= _RESERVED_IDS


def directories_of(
    recorded: Sequence[uuid.UUID | None], replica_count: int
) -> tuple[uuid.UUID, ...]:
    """The directory of each replica, from the ids in a partition record.

    If all recorded ids are MIGRATING, or there are none, every replica is MIGRATING, whatever the
    number of ids.
    """
    if all(directory_id is None or directory_id == MIGRATING for directory_id in recorded):
        return (MIGRATING,) * replica_count
    return tuple(MIGRATING if directory_id is None else directory_id for directory_id in recorded)
