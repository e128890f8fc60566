"""Share groups and the states of their partitions: what the group coordinator decides, the
persister carries out (Kafka: the parts of GroupCoordinatorService that use its Persister).

The coordinator notes what is begun before the share coordinators are asked, and what came of it
afterwards. So a broker that dies in between leaves notes, by which the work is done again.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.groups.group_coordinator import GroupCoordinator
from isotherm.broker.coordinators.groups.member_heartbeat import MemberRejectedError
from isotherm.broker.coordinators.groups.share_member import ShareHeartbeatResult
from isotherm.broker.coordinators.shares.share_state_records import (
    UNKNOWN_COUNT,
    SharePartitionKey,
)
from isotherm.broker.coordinators.shares.state_batches import NO_START_OFFSET
from isotherm.broker.error_mapping import error_code
from isotherm.broker.metadata.cluster_metadata import ClusterMetadata
from isotherm.broker.share_partitions.share_peers import SharePeers
from isotherm.broker.share_partitions.state_requests import InitializeState, StateSummary
from isotherm.errors import IsothermError
from isotherm.remote.outages import log_failure
from isotherm.types import Offset, TopicPartition

logger = logging.getLogger(__name__)

UNKNOWN_LAG = -1


class DescribedOffset(NamedTuple):
    """What DescribeShareGroupOffsets shows of a partition. `topic_id` is None for a topic that does
    not exist. Without a state the start offset is NO_START_OFFSET, and the lag UNKNOWN_LAG. `error`
    tells why the partition's end is unknown."""

    topic: str
    topic_id: uuid.UUID | None
    partition: int
    start_offset: Offset = NO_START_OFFSET
    leader_epoch: int = 0
    lag: int = UNKNOWN_LAG
    error: IsothermError | None = None


class ShareGroupStates:
    """Event loop thread only. Call `stop` at the end."""

    def __init__(
        self, groups: GroupCoordinator, peers: SharePeers, metadata: ClusterMetadata
    ) -> None:
        self._groups = groups
        self._peers = peers
        self._metadata = metadata
        # At most one for each group and retry interval of its initialization.
        self._tasks: set[asyncio.Task[None]] = set()

    async def stop(self) -> None:
        """End the initializations under way. Heartbeats to the next coordinator begin them
        again."""
        for task in tuple(self._tasks):
            task.cancel()

    # ---- initialization

    def begin_initialization(self, group_id: str, result: ShareHeartbeatResult) -> None:
        """Begin the states that the heartbeat found missing, after its records are committed. Does
        not wait for them, as in Kafka: a later heartbeat assigns their partitions."""
        if not result.uninitialized:
            return
        partitions = {
            topic_id: topic.partitions for topic_id, topic in result.uninitialized.items()
        }
        task = asyncio.get_running_loop().create_task(
            self._initialize(group_id, result.group_epoch, partitions)
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _initialize(
        self, group_id: str, epoch: int, partitions: Mapping[uuid.UUID, Collection[int]]
    ) -> None:
        answers = await self._peers.persister.initialize(
            [InitializeState(key, epoch, NO_START_OFFSET) for key in _keys(group_id, partitions)]
        )
        error = _first_error(answers.values())
        try:
            if error is None:
                self._groups.share.note_initialized(group_id, partitions)
            else:
                log_failure(logger, error, f"states are not initialized yet group_id={group_id}")
                self._groups.share.note_failed(group_id, partitions)
        except MemberRejectedError:
            # The group was deleted meanwhile, and its states with it.
            logger.info("the group has gone during an initialization group_id=%s", group_id)
        except IsothermError as failure:
            log_failure(logger, failure, f"an initialization is not noted group_id={group_id}")

    # ---- offsets

    async def alter(
        self, group_id: str, offsets: Mapping[str, Mapping[int, Offset]]
    ) -> dict[TopicPartition, IsothermError | None]:
        """Move the start offsets of partitions, by topic, of a group without members.

        Returns the error of each partition that exists, or None. Raises MemberRejectedError,
        PolicyViolationError, and the errors of a group coordinator.
        """
        epoch, altered = self._groups.share.begin_alteration(group_id, offsets)
        if not altered:
            return {}
        await self._committed(group_id)
        names = {topic_id: topic.name for topic_id, topic in altered.items()}
        partitions = {topic_id: topic.partitions for topic_id, topic in altered.items()}
        answers = await self._peers.persister.initialize(
            [
                InitializeState(key, epoch, offsets[names[key.topic_id]][key.partition])
                for key in _keys(group_id, partitions)
            ]
        )
        if _first_error(answers.values()) is None:
            self._groups.share.note_initialized(group_id, partitions)
            await self._committed(group_id)
        return {
            TopicPartition(names[key.topic_id], key.partition): answer
            for key, answer in answers.items()
        }

    async def delete_offsets(
        self, group_id: str, names: Collection[str]
    ) -> dict[uuid.UUID, IsothermError | None]:
        """Forget the states of topics of a group without members.

        Returns the error of each topic that has states, or None. Raises as `alter`.
        """
        partitions = self._groups.share.begin_offset_deletion(group_id, names)
        if not partitions:
            return {}
        await self._committed(group_id)
        errors = await self._delete_states(group_id, partitions)
        deleted = [topic_id for topic_id, error in errors.items() if error is None]
        if deleted:
            self._groups.share.end_offset_deletion(group_id, deleted)
            await self._committed(group_id)
        return errors

    async def describe(
        self, group_id: str, partitions_of_topics: Mapping[str, Sequence[int]] | None
    ) -> list[DescribedOffset]:
        """The start offsets of partitions, by topic; None for all partitions that the group has
        states of. Raises the errors of a group coordinator if it is None.

        As in Kafka, what cannot be read of a state is shown as no state.
        """
        if partitions_of_topics is None:
            partitions_of_topics = self._initialized(group_id)
        image = self._metadata.image
        keys: dict[SharePartitionKey, str] = {}
        described: list[DescribedOffset] = []
        for name, partitions in partitions_of_topics.items():
            topic = image.topics_by_name.get(name)
            if topic is None:
                described += [DescribedOffset(name, None, partition) for partition in partitions]
                continue
            for partition in partitions:
                keys[SharePartitionKey(group_id, topic.topic_id, partition)] = name
        summaries = await self._peers.persister.read_summaries(keys)
        ends = await self._peers.end_offsets.find(
            [
                TopicPartition(keys[key], key.partition)
                for key, summary in summaries.items()
                if _has_lag(summary)
            ]
        )
        for key, name in keys.items():
            shown = DescribedOffset(name, key.topic_id, key.partition)
            summary = summaries[key]
            if isinstance(summary, StateSummary):
                end_offset = ends.get(TopicPartition(name, key.partition))
                shown = _shown(shown, summary, end_offset)
            described.append(shown)
        return described

    def _initialized(self, group_id: str) -> dict[str, Sequence[int]]:
        group = self._groups.shards.of_group(group_id).share_groups.get(group_id)
        if group is None or group.states is None:
            return {}
        by_id = self._metadata.image.topics_by_id
        return {
            by_id[topic_id].name: sorted(topic.partitions)
            for topic_id, topic in group.states.initialized.items()
            if topic_id in by_id
        }

    # ---- deletion

    async def delete_group(self, group_id: str) -> ErrorCode:
        """Delete a group without members, and its states. Raises as `alter`."""
        partitions = self._groups.share.begin_deletion(group_id)
        if partitions:
            await self._committed(group_id)
            errors = await self._delete_states(group_id, partitions)
            error = _first_error(errors.values())
            if error is not None:
                # What is left is deleted with the next attempt.
                log_failure(logger, error, f"the group's states are not deleted {group_id=!s}")
                return error_code(error)
        self._groups.share.delete(group_id)
        await self._committed(group_id)
        return ErrorCode.none

    async def _delete_states(
        self, group_id: str, partitions: Mapping[uuid.UUID, Collection[int]]
    ) -> dict[uuid.UUID, IsothermError | None]:
        """The first error of each topic, or None."""
        answers = await self._peers.persister.delete(_keys(group_id, partitions))
        errors: dict[uuid.UUID, IsothermError | None] = dict.fromkeys(partitions)
        # A topic's partitions have several coordinators, so its answers are among those of others.
        for key, answer in answers.items():
            errors[key.topic_id] = errors[key.topic_id] or answer
        return errors

    async def _committed(self, group_id: str) -> None:
        """Return when the group's records are committed. Raises what `uncommitted` raises."""
        if (waiting := self._groups.uncommitted(group_id)) is not None:
            await waiting


def _keys(
    group_id: str, partitions: Mapping[uuid.UUID, Collection[int]]
) -> list[SharePartitionKey]:
    return [
        SharePartitionKey(group_id, topic_id, partition)
        for topic_id, of_topic in partitions.items()
        for partition in sorted(of_topic)
    ]


def _first_error(answers: Iterable[IsothermError | None]) -> IsothermError | None:
    return next((answer for answer in answers if answer is not None), None)


def _has_lag(summary: StateSummary | IsothermError) -> bool:
    return (
        isinstance(summary, StateSummary)
        and summary.start_offset != NO_START_OFFSET
        and summary.delivery_complete_count != UNKNOWN_COUNT
    )


def _shown(
    offset: DescribedOffset, summary: StateSummary, end_offset: Offset | IsothermError | None
) -> DescribedOffset:
    if isinstance(end_offset, IsothermError):
        return offset._replace(start_offset=0, error=end_offset)
    lag = UNKNOWN_LAG
    if end_offset is not None:
        lag = end_offset - summary.start_offset - summary.delivery_complete_count
    return offset._replace(
        start_offset=summary.start_offset, leader_epoch=summary.leader_epoch, lag=lag
    )
