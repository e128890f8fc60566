"""Commits, fetches, deletes and expires the offsets of groups. Event loop thread only.

Source: Kafka OffsetMetadataManager, OffsetExpirationConditionImpl.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.groups.classic_checks import GroupState, offset_commit_error
from isotherm.broker.coordinators.groups.classic_group import ClassicGroup
from isotherm.broker.coordinators.groups.classic_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    NO_MEMBER_ID,
    UNKNOWN_GENERATION,
)
from isotherm.broker.coordinators.groups.consumer_checks import (
    FIRST_EPOCH_VERSION,
    PartitionCheck,
    offset_commit_check,
    offset_fetch_error,
)
from isotherm.broker.coordinators.groups.consumer_group import ConsumerGroup
from isotherm.broker.coordinators.groups.group_offsets import GroupOffsets
from isotherm.broker.coordinators.groups.group_records import GroupRecord
from isotherm.broker.coordinators.groups.group_shard import AnyGroup, GroupShard
from isotherm.broker.coordinators.groups.offsets import (
    OffsetAndMetadata,
    offset_key,
    offset_value,
)
from isotherm.broker.coordinators.groups.offsets_topic import NO_PRODUCER, Producer
from isotherm.broker.coordinators.groups.shards import GroupShards
from isotherm.config.groups import GroupConfig
from isotherm.types import TopicPartition

MS_PER_MINUTE = 60_000


class Committer(NamedTuple):
    """The sender of a commit: a member, or a consumer with a manual assignment.

    `api_version` is the version of OffsetCommit. It is not used in a transaction.
    """

    generation_id: int = UNKNOWN_GENERATION
    member_id: str = NO_MEMBER_ID
    group_instance_id: str | None = None
    api_version: int = FIRST_EPOCH_VERSION


class FetchedOffset(NamedTuple):
    """`committed` is None if there is no committed offset."""

    committed: OffsetAndMetadata | None
    error: ErrorCode = ErrorCode.none


class OffsetCoordinator:
    def __init__(
        self,
        config: GroupConfig,
        shards: GroupShards,
        forget_group: Callable[[GroupShard, AnyGroup], None],
    ) -> None:
        """`forget_group` removes a group that has neither members nor offsets."""
        self._config = config
        self._shards = shards
        self._forget_group = forget_group

    def commit(
        self,
        group_id: str,
        committer: Committer,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        producer: Producer = NO_PRODUCER,
    ) -> Mapping[TopicPartition, ErrorCode]:
        """Commit offsets; returns an error code for each partition.

        If the committer may not commit one of them, all get its error, and none is committed.
        With a producer the offsets become visible when its transaction commits. Raises what
        `GroupShards.of_group` and `OffsetsTopic.append` raise; nothing is committed then.
        """
        shard = self._shards.of_group(group_id)
        if shard.is_taken(group_id):
            return dict.fromkeys(offsets, ErrorCode.group_id_not_found)
        group = shard.find(group_id)
        if group is None:
            # A commit without a generation, of a consumer with a manual assignment, creates the
            # group.
            if committer.generation_id >= 0:
                return dict.fromkeys(offsets, ErrorCode.group_id_not_found)
            self._shards.check_room(group_id)
            # It enters the shard below, once an offset is in the log: a refused
            # commit must leave no group.
            group = ClassicGroup(group_id, self._shards.settings, now_ms=self._shards.now_ms())
        check = _commit_check(group, committer, is_transactional=producer is not NO_PRODUCER)
        for partition, offset in offsets.items():
            error = check(offset.topic_id, partition.partition)
            if error is not ErrorCode.none:
                # As in Kafka: the commit counts for all partitions or for none.
                return dict.fromkeys(offsets, error)
        if not offsets:
            return {}
        codes = self._write(shard, group_id, offsets, producer)
        if isinstance(group, ClassicGroup):
            if producer is NO_PRODUCER:
                group.offsets_committed(committer.member_id, self._shards.now_ms())
            # A group without members exists through its offsets.
            if group_id in shard.offsets:
                shard.groups.setdefault(group_id, group)
        return codes

    def _write(
        self,
        shard: GroupShard,
        group_id: str,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        producer: Producer,
    ) -> Mapping[TopicPartition, ErrorCode]:
        # Kafka counts UTF-16 units, although the setting's name says bytes.
        length_max = self._config.offset_metadata_max_bytes
        codes = {
            partition: ErrorCode.none
            if len(offset.metadata.encode("utf-16-le")) // 2 <= length_max
            else ErrorCode.offset_metadata_too_large
            for partition, offset in offsets.items()
        }
        records = [
            GroupRecord(offset_key(group_id, partition), offset_value(offset))
            for partition, offset in offsets.items()
            if codes[partition] is ErrorCode.none
        ]
        if records:
            self._shards.write_offsets(shard, records, producer)
        return codes

    def committed_partitions(self, group_id: str) -> Sequence[TopicPartition]:
        """The partitions with a committed offset."""
        offsets = self._shards.of_group(group_id).offsets.get(group_id, GroupOffsets())
        return offsets.committed_partitions()

    def fetch(
        self,
        group_id: str,
        partitions: Iterable[TopicPartition] | None,
        *,
        require_stable: bool = False,
    ) -> Mapping[TopicPartition, FetchedOffset]:
        """The committed offsets of `partitions`, or of all partitions with an offset.

        With `require_stable`, a partition that an open transaction may change gets
        UNSTABLE_OFFSET_COMMIT, and the client retries.
        """
        offsets = self._shards.of_group(group_id).offsets.get(group_id, GroupOffsets())
        fetched = offsets.committed_partitions() if partitions is None else partitions
        return {
            partition: FetchedOffset(None, ErrorCode.unstable_offset_commit)
            if require_stable and offsets.is_unstable(partition)
            else FetchedOffset(offsets.committed(partition))
            for partition in fetched
        }

    def fetch_error(self, group_id: str, member_id: str | None, epoch: int) -> ErrorCode:
        """The error for a member of a consumer group with a wrong id or epoch.

        Other fetches are always allowed.
        """
        group = self._shards.of_group(group_id).find(group_id)
        if not isinstance(group, ConsumerGroup):
            return ErrorCode.none
        return offset_fetch_error(group, member_id, epoch)

    def delete(
        self, group_id: str, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode] | ErrorCode:
        """Delete offsets that are not in use; returns an error code for each partition, or one
        for the group.
        """
        shard = self._shards.of_group(group_id)
        group = shard.find(group_id)
        if group is None:
            return ErrorCode.group_id_not_found
        has_members = not group.is_empty
        if has_members and group.protocol_type != CONSUMER_PROTOCOL_TYPE:
            return ErrorCode.non_empty_group
        codes = {
            partition: ErrorCode.group_subscribed_to_topic
            if has_members and group.may_read(partition.topic)
            else ErrorCode.none
            for partition in partitions
        }
        unused = [partition for partition, code in codes.items() if code is ErrorCode.none]
        self._write_tombstones(shard, group_id, unused)
        return codes

    def delete_all(self, shard: GroupShard, group_id: str) -> None:
        """Delete every offset of a group that is being deleted."""
        self._write_tombstones(shard, group_id, self._stored_partitions(shard, group_id))

    def delete_topics(
        self, shard: GroupShard, ids_by_name: Mapping[str, Collection[uuid.UUID]]
    ) -> None:
        """Delete the offsets of deleted topics, in all groups of a shard."""
        for group_id, offsets in list(shard.offsets.items()):
            self._write_tombstones(shard, group_id, offsets.of_deleted(ids_by_name))

    def expire(self, shard: GroupShard) -> None:
        """Delete offsets whose retention has passed, and groups without members and offsets."""
        now_ms = self._shards.now_ms() + self._shards.wall_offset_ms()
        for group in shard.all_groups():
            group_id = group.group_id
            offsets = shard.offsets.get(group_id)
            if offsets is not None:
                self._write_tombstones(shard, group_id, self._expired(group, offsets, now_ms))
            # As in Kafka, an empty group exists for as long as it has offsets.
            if group.is_empty and group_id not in shard.offsets:
                self._forget_group(shard, group)

    def _expired(self, group: AnyGroup, offsets: GroupOffsets, now_ms: int) -> list[TopicPartition]:
        retention_ms = self._config.offsets_retention_minutes * MS_PER_MINUTE
        is_empty = group.is_empty
        # As in Kafka: a member that is joining may be about to read any topic.
        if (
            isinstance(group, ClassicGroup)
            and not is_empty
            and group.state is not GroupState.STABLE
        ):
            return []
        # KIP-211: the retention of a classic group's offsets starts when its last member left.
        # A group without a protocol type has had no member: each of its offsets
        # counts from its own commit.
        empty_since_ms = (
            group.state_timestamp_ms + self._shards.wall_offset_ms()
            if is_empty and isinstance(group, ClassicGroup) and group.protocol_type is not None
            else None
        )
        expired = offsets.expired(
            now_ms,
            retention_ms,
            empty_since_ms=empty_since_ms,
            is_in_use=lambda topic: not is_empty and group.may_read(topic),
        )
        return list(expired)

    def _stored_partitions(self, shard: GroupShard, group_id: str) -> list[TopicPartition]:
        offsets = shard.offsets.get(group_id)
        return [] if offsets is None else offsets.partitions()

    def _write_tombstones(
        self, shard: GroupShard, group_id: str, partitions: Collection[TopicPartition]
    ) -> None:
        tombstones = [
            GroupRecord(offset_key(group_id, partition), None) for partition in partitions
        ]
        if tombstones:
            self._shards.write_offsets(shard, tombstones)


def _commit_check(
    group: AnyGroup, committer: Committer, *, is_transactional: bool
) -> PartitionCheck:
    generation_id, member_id, group_instance_id, api_version = committer
    if isinstance(group, ConsumerGroup):
        return offset_commit_check(
            group,
            member_id,
            group_instance_id,
            generation_id,
            is_transactional=is_transactional,
            api_version=api_version,
        )
    error = offset_commit_error(
        group, member_id, group_instance_id, generation_id, is_transactional=is_transactional
    )
    return lambda _topic_id, _partition: error
