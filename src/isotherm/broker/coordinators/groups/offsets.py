"""A committed offset, and its conversion to and from its record. Pure.

Source: Kafka OffsetAndMetadata.java.
"""

from __future__ import annotations

import uuid
from typing import NamedTuple

from isotherm.broker.coordinators.groups.group_records import (
    AnyOffsetCommitValue,
    OffsetCommitKey,
    OffsetCommitValue,
    OffsetCommitValueV1,
)
from isotherm.types import (
    NO_LEADER_EPOCH,
    LeaderEpoch,
    Offset,
    TimestampMs,
    TopicPartition,
)


class OffsetAndMetadata(NamedTuple):
    offset: Offset
    leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    metadata: str = ""
    commit_timestamp_ms: TimestampMs = -1
    topic_id: uuid.UUID | None = None
    expire_timestamp_ms: TimestampMs | None = None


def offset_value(committed: OffsetAndMetadata) -> AnyOffsetCommitValue:
    """The record's value, in the version that Kafka writes."""
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


def offset_of_value(value: AnyOffsetCommitValue) -> OffsetAndMetadata:
    expire_timestamp = getattr(value, "expire_timestamp", -1)
    return OffsetAndMetadata(
        value.offset,
        getattr(value, "leader_epoch", NO_LEADER_EPOCH),
        value.metadata,
        value.commit_timestamp,
        getattr(value, "topic_id", None),
        None if expire_timestamp == -1 else expire_timestamp,
    )


def offset_key(group_id: str, partition: TopicPartition) -> OffsetCommitKey:
    return OffsetCommitKey(group=group_id, topic=partition.topic, partition=partition.partition)
