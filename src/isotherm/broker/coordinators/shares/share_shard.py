"""One shard of the share coordinator: the share partitions of a partition of
`__share_group_state`.

Source: Kafka ShareCoordinatorShard, ShareCoordinatorOffsetsManager.
"""

from __future__ import annotations

from isotherm.broker.coordinators.coordinator_shards import CoordinatorShard
from isotherm.broker.coordinators.shares.share_state import ShareState, replayed
from isotherm.broker.coordinators.shares.share_state_records import (
    SharePartitionKey,
    ShareSnapshot,
    ShareStateRecord,
)
from isotherm.types import Offset


class ShareShard(CoordinatorShard):
    """The fold of a partition's records."""

    def __init__(self, index: int, updates_per_snapshot: int) -> None:
        super().__init__(index)
        self.states: dict[SharePartitionKey, ShareState] = {}
        self._updates_per_snapshot = updates_per_snapshot
        # The offset of the last snapshot; of the first update, if the log begins behind the
        # snapshot.
        self._first_offsets: dict[SharePartitionKey, Offset] = {}
        self._tombstone_offset: Offset | None = None

    def replay(self, record: ShareStateRecord, offset: Offset) -> None:
        """Apply a record that is at `offset` of the log."""
        key, value = record
        if value is None:
            self.states.pop(key, None)
            self._first_offsets.pop(key, None)
            self._tombstone_offset = offset
            return
        if isinstance(value, ShareSnapshot) or key not in self.states:
            self._first_offsets[key] = offset
        self.states[key] = replayed(self.states.get(key), value, self._updates_per_snapshot)

    def redundant_offset(self) -> Offset | None:
        """No record below this offset is needed to load the shard. None without records."""
        return min(self._first_offsets.values(), default=self._tombstone_offset)
