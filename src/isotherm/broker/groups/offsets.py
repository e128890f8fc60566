"""The committed offsets of a group, and the pending ones of open transactions. Pure.

Invariants
- A pending offset is committed only when its producer's transaction commits, and only if no plain
  commit to that partition lies at a later offset in the log.
- Replay never moves an offset back: records are replayed in the order of the log.

Source: Kafka OffsetMetadataManager.java.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from isotherm.broker.groups.group_records import (
    AnyOffsetCommitValue,
    OffsetCommitKey,
    OffsetCommitValue,
    OffsetCommitValueV1,
)
from isotherm.types import (
    NO_LEADER_EPOCH,
    LeaderEpoch,
    Offset,
    ProducerId,
    TimestampMs,
    TopicPartition,
)


class OffsetAndMetadata(NamedTuple):
    """`record_offset` is the commit's offset in `__consumer_offsets`; -1 before it is appended."""

    offset: Offset
    leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    metadata: str = ""
    commit_timestamp_ms: TimestampMs = -1
    topic_id: uuid.UUID | None = None
    expire_timestamp_ms: TimestampMs | None = None
    record_offset: Offset = -1


def offset_value(committed: OffsetAndMetadata) -> AnyOffsetCommitValue:
    """The record's value, in the version that Kafka would write."""
    if committed.expire_timestamp_ms is not None:
        return OffsetCommitValueV1(
            offset=committed.offset,
            metadata=committed.metadata,
            commit_timestamp=committed.commit_timestamp_ms,
            expire_timestamp=committed.expire_timestamp_ms,
        )
    return OffsetCommitValue(
        offset=committed.offset,
        leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        commit_timestamp=committed.commit_timestamp_ms,
        topic_id=committed.topic_id,
    )


def offset_of_value(value: AnyOffsetCommitValue, record_offset: Offset) -> OffsetAndMetadata:
    expire_timestamp = getattr(value, "expire_timestamp", -1)
    return OffsetAndMetadata(
        value.offset,
        getattr(value, "leader_epoch", NO_LEADER_EPOCH),
        value.metadata,
        value.commit_timestamp,
        getattr(value, "topic_id", None),
        None if expire_timestamp == -1 else expire_timestamp,
        record_offset,
    )


def offset_key(group_id: str, partition: TopicPartition) -> OffsetCommitKey:
    return OffsetCommitKey(group=group_id, topic=partition.topic, partition=partition.partition)


class GroupOffsets:
    """The offsets of one group. Event loop thread only."""

    def __init__(self) -> None:
        self._committed: dict[TopicPartition, OffsetAndMetadata] = {}
        self._pending: dict[ProducerId, dict[TopicPartition, OffsetAndMetadata]] = {}

    @property
    def committed(self) -> Mapping[TopicPartition, OffsetAndMetadata]:
        return self._committed

    @property
    def is_empty(self) -> bool:
        return not self._committed and not self._pending

    def partitions(self) -> list[TopicPartition]:
        """Every partition with an offset, committed or pending."""
        pending = {partition for each in self._pending.values() for partition in each}
        return [*self._committed, *(pending - self._committed.keys())]

    def commit(self, partition: TopicPartition, offset: OffsetAndMetadata) -> None:
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
        self, producer_id: ProducerId, partition: TopicPartition, offset: OffsetAndMetadata
    ) -> None:
        self._pending.setdefault(producer_id, {})[partition] = offset

    def complete(self, producer_id: ProducerId, *, committed: bool) -> None:
        """End the producer's transaction. No effect if it has no offsets here."""
        for partition, offset in self._pending.pop(producer_id, {}).items():
            if not committed:
                continue
            current = self._committed.get(partition)
            # The transaction may have begun before a plain commit that is newer.
            if current is None or current.record_offset < offset.record_offset:
                self._committed[partition] = offset

    def is_unstable(self, partition: TopicPartition) -> bool:
        """Whether an open transaction may still change the partition's offset."""
        return any(partition in pending for pending in self._pending.values())

    def expired(
        self,
        now_ms: TimestampMs,
        retention_ms: int,
        *,
        base_ms: Callable[[OffsetAndMetadata], TimestampMs],
        is_in_use: Callable[[str], bool],
    ) -> Iterator[TopicPartition]:
        """Partitions whose offsets have expired.

        `base_ms` is the start of an offset's retention. Topics that the group still reads do not
        expire. An offset with its own expiry (OffsetCommit before version 5) uses that alone.
        """
        for partition, offset in self._committed.items():
            # A pending commit may still renew the offset.
            if is_in_use(partition.topic) or self.is_unstable(partition):
                continue
            if offset.expire_timestamp_ms is not None:
                is_expired = now_ms >= offset.expire_timestamp_ms
            else:
                is_expired = now_ms - base_ms(offset) >= retention_ms
            if is_expired:
                yield partition
