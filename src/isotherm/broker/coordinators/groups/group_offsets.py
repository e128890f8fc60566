"""The committed offsets of a group, and the pending offsets of open transactions. Pure.

Invariants
- A pending offset is committed only when its producer's transaction commits, and only if no plain
  commit to that partition has a later record in the log.
- Replay never moves an offset back, because records are replayed in the order of the log.

Source: Kafka OffsetMetadataManager.java.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping

from isotherm.broker.coordinators.groups.offsets import OffsetAndMetadata
from isotherm.broker.coordinators.groups.stored_offset import (
    StoredOffset,
    is_older,
    read_stored_offset,
    times_of,
)
from isotherm.types import ProducerId, TimestampMs, TopicPartition


class GroupOffsets:
    """The offsets of one group. Event loop thread only."""

    __slots__ = ("_committed", "_pending")

    def __init__(self) -> None:
        self._committed: dict[TopicPartition, StoredOffset] = {}
        self._pending: dict[ProducerId, dict[TopicPartition, StoredOffset]] = {}

    def committed(self, partition: TopicPartition) -> OffsetAndMetadata | None:
        stored = self._committed.get(partition)
        return None if stored is None else read_stored_offset(stored)

    def committed_partitions(self) -> list[TopicPartition]:
        return list(self._committed)

    @property
    def is_empty(self) -> bool:
        return not self._committed and not self._pending

    def partitions(self) -> list[TopicPartition]:
        """Every partition with an offset, committed or pending."""
        pending = {partition for partitions in self._pending.values() for partition in partitions}
        return [*self._committed, *(pending - self._committed.keys())]

    def of_deleted(self, ids_by_name: Mapping[str, Collection[uuid.UUID]]) -> list[TopicPartition]:
        """The partitions with an offset, committed or pending, of a deleted topic.

        A topic with the same name may exist again, so the ids must match. An offset without an id
        counts by name.
        """
        partitions: dict[TopicPartition, None] = {}
        for offsets in (self._committed, *self._pending.values()):
            for partition, stored in offsets.items():
                topic_ids = ids_by_name.get(partition.topic)
                if topic_ids is not None and (
                    (topic_id := read_stored_offset(stored).topic_id) is None
                    or topic_id in topic_ids
                ):
                    partitions[partition] = None
        return list(partitions)

    def commit(self, partition: TopicPartition, offset: StoredOffset) -> None:
        self._committed[partition] = offset

    def forget(self, partition: TopicPartition) -> None:
        """Apply a tombstone: drop the partition's committed and pending offsets."""
        self._committed.pop(partition, None)
        for producer_id in list(self._pending):
            pending = self._pending[producer_id]
            pending.pop(partition, None)
            if not pending:
                del self._pending[producer_id]

    def add_pending(
        self, producer_id: ProducerId, partition: TopicPartition, offset: StoredOffset
    ) -> None:
        self._pending.setdefault(producer_id, {})[partition] = offset

    def complete(self, producer_id: ProducerId, *, committed: bool) -> None:
        """End the producer's transaction. No effect if it has no offsets here."""
        for partition, offset in self._pending.pop(producer_id, {}).items():
            if not committed:
                continue
            current = self._committed.get(partition)
            # A plain commit may have been written after the pending offset.
            if current is None or is_older(current, offset):
                self._committed[partition] = offset

    def is_unstable(self, partition: TopicPartition) -> bool:
        """Whether an open transaction may still change the partition's offset."""
        return any(partition in pending for pending in self._pending.values())

    def expired(
        self,
        now_ms: TimestampMs,
        retention_ms: int,
        *,
        empty_since_ms: TimestampMs | None,
        is_in_use: Callable[[str], bool],
    ) -> Iterator[TopicPartition]:
        """The partitions whose offsets have expired.

        The retention of an offset starts with its commit, or at `empty_since_ms` if that is given.
        Offsets of topics that the group still reads do not expire. An offset with its own expiry
        time (OffsetCommit before version 5) uses only that.
        """
        for partition, stored in self._committed.items():
            # A pending commit may still renew the offset.
            if is_in_use(partition.topic) or (self._pending and self.is_unstable(partition)):
                continue
            committed_ms, expires_ms = times_of(stored)
            if expires_ms is None:
                since_ms = committed_ms if empty_since_ms is None else empty_since_ms
                expires_ms = since_ms + retention_ms
            if now_ms >= expires_ms:
                yield partition
