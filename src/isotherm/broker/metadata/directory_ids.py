"""The ids of log directories in partition records that stand for no directory of a broker.

On the wire a zero id is read as None, like every zero id; images have MIGRATING for it.
Source: KIP-858; Kafka DirectoryId.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence

MIGRATING = uuid.UUID(int=0)
"""The broker registered without directories: it has one, and the log is in it."""
UNASSIGNED = uuid.UUID(int=1)
"""The broker chooses the directory, and says which it is (AssignReplicasToDirs)."""
LOST = uuid.UUID(int=2)
"""The log was in a directory that is offline."""

_RESERVED_IDS = 100


def is_directory(directory_id: uuid.UUID) -> bool:
    """Whether it can be the id of a directory, and is none of the reserved ones."""
    return directory_id.int >= _RESERVED_IDS


def directories_of(
    recorded: Sequence[uuid.UUID | None], replica_count: int
) -> tuple[uuid.UUID, ...]:
    """The directory of each replica, as a partition record has them.

    Only MIGRATING ones, or none at all, say so of every replica, however many are recorded.
    """
    if all(each is None or each == MIGRATING for each in recorded):
        return (MIGRATING,) * replica_count
    return tuple(MIGRATING if each is None else each for each in recorded)
