"""The requests of the state of share partitions to its coordinator: by a call if it is in this
broker, else as an entry of a request of Kafka's protocol.

Versions  InitializeShareGroupState 0, ReadShareGroupState 0, WriteShareGroupState 1,
          DeleteShareGroupState 0, ReadShareGroupStateSummary 1: those of Kafka 4.2 and later.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeAlias

from isotherm.broker.coordinators.shares.share_coordinator import ShareCoordinator
from isotherm.broker.coordinators.shares.share_shard import ShareShard
from isotherm.broker.coordinators.shares.share_state import BATCHES_MAX, StateWrite
from isotherm.broker.coordinators.shares.share_state_records import (
    UNKNOWN_COUNT,
    SharePartitionKey,
)
from isotherm.broker.coordinators.shares.state_batches import NO_START_OFFSET, StateBatch
from isotherm.protocol.api_keys import ApiKey, request_class
from isotherm.protocol.entities import entity_of
from isotherm.types import LeaderEpoch, Offset


class ReadState(NamedTuple):
    """The state of a share partition for its leader. `start_offset` is NO_START_OFFSET before the
    leader has chosen one by `share.auto.offset.reset`."""

    state_epoch: int
    start_offset: Offset
    batches: tuple[StateBatch, ...]


class StateSummary(NamedTuple):
    """`start_offset` is NO_START_OFFSET without a state, and before the leader has chosen one.
    `delivery_complete_count` counts records from the start offset on; it may be UNKNOWN_COUNT."""

    state_epoch: int
    leader_epoch: int
    start_offset: Offset
    delivery_complete_count: int


NO_STATE = StateSummary(0, 0, NO_START_OFFSET, UNKNOWN_COUNT)
StateResult: TypeAlias = "ReadState | StateSummary | None"


@dataclass(frozen=True, slots=True)
class InitializeState:
    api_key: ClassVar[ApiKey] = ApiKey.INITIALIZE_SHARE_GROUP_STATE
    version: ClassVar[int] = 0
    batch_count: ClassVar[int] = 0
    key: SharePartitionKey
    state_epoch: int
    start_offset: Offset

    def call(self, coordinator: ShareCoordinator) -> tuple[ShareShard, StateResult]:
        """The result, which counts once the shard has committed what it appended.

        Raises what the coordinator's method raises.
        """
        return coordinator.initialize(self.key, self.state_epoch, self.start_offset), None

    def entry(self) -> Mapping[str, Any]:
        """The fields of the partition's entry in a request."""
        return {"state_epoch": self.state_epoch, "start_offset": self.start_offset}

    def result(self, answer: Any) -> StateResult:
        """The result in the partition's entry of a response."""
        return None


@dataclass(frozen=True, slots=True)
class WriteState:
    api_key: ClassVar[ApiKey] = ApiKey.WRITE_SHARE_GROUP_STATE
    version: ClassVar[int] = 1
    key: SharePartitionKey
    write: StateWrite

    @property
    def batch_count(self) -> int:
        """State batches in the request and its answer, at most."""
        return len(self.write.batches)

    def call(self, coordinator: ShareCoordinator) -> tuple[ShareShard, StateResult]:
        """As `InitializeState.call`."""
        return coordinator.write(self.key, self.write), None

    def entry(self) -> Mapping[str, Any]:
        """The fields of the partition's entry in a request."""
        write = self.write
        return {
            "state_epoch": write.state_epoch,
            "leader_epoch": write.leader_epoch,
            "start_offset": write.start_offset,
            "delivery_complete_count": write.delivery_complete_count,
            "state_batches": [batch.fields() for batch in write.batches],
        }

    def result(self, answer: Any) -> StateResult:
        """The result in the partition's entry of a response."""
        return None


@dataclass(frozen=True, slots=True)
class ReadByLeader:
    api_key: ClassVar[ApiKey] = ApiKey.READ_SHARE_GROUP_STATE
    version: ClassVar[int] = 0
    batch_count: ClassVar[int] = BATCHES_MAX
    key: SharePartitionKey
    leader_epoch: LeaderEpoch

    def call(self, coordinator: ShareCoordinator) -> tuple[ShareShard, StateResult]:
        """As `InitializeState.call`."""
        shard, state = coordinator.read(self.key, self.leader_epoch)
        return shard, ReadState(state.state_epoch, state.start_offset, state.batches)

    def entry(self) -> Mapping[str, Any]:
        """The fields of the partition's entry in a request."""
        return {"leader_epoch": self.leader_epoch}

    def result(self, answer: Any) -> StateResult:
        """The result in the partition's entry of a response."""
        batches = tuple(map(StateBatch.of, answer.state_batches))
        return ReadState(answer.state_epoch, answer.start_offset, batches)


@dataclass(frozen=True, slots=True)
class ReadSummary:
    api_key: ClassVar[ApiKey] = ApiKey.READ_SHARE_GROUP_STATE_SUMMARY
    version: ClassVar[int] = 1
    batch_count: ClassVar[int] = 0
    key: SharePartitionKey

    def call(self, coordinator: ShareCoordinator) -> tuple[ShareShard, StateResult]:
        """As `InitializeState.call`."""
        shard, state = coordinator.read_summary(self.key)
        if state is None:
            return shard, NO_STATE
        return shard, StateSummary(
            state.state_epoch, state.leader_epoch, state.start_offset, state.delivery_complete_count
        )

    def entry(self) -> Mapping[str, Any]:
        """The fields of the partition's entry in a request. Nobody's epoch is checked."""
        return {"leader_epoch": -1}

    def result(self, answer: Any) -> StateResult:
        """The result in the partition's entry of a response."""
        return StateSummary(
            answer.state_epoch,
            answer.leader_epoch,
            answer.start_offset,
            answer.delivery_complete_count,
        )


@dataclass(frozen=True, slots=True)
class DeleteState:
    api_key: ClassVar[ApiKey] = ApiKey.DELETE_SHARE_GROUP_STATE
    version: ClassVar[int] = 0
    batch_count: ClassVar[int] = 0
    key: SharePartitionKey

    def call(self, coordinator: ShareCoordinator) -> tuple[ShareShard, StateResult]:
        """As `InitializeState.call`."""
        return coordinator.delete(self.key), None

    def entry(self) -> Mapping[str, Any]:
        """The fields of the partition's entry in a request."""
        return {}

    def result(self, answer: Any) -> StateResult:
        """The result in the partition's entry of a response."""
        return None


StateRequest: TypeAlias = "InitializeState | WriteState | ReadByLeader | ReadSummary | DeleteState"


def protocol_request(requests: Sequence[StateRequest]) -> Any:
    """The request of Kafka's protocol with an entry for each of `requests`. They are of one kind
    and one group, and no two of one partition."""
    first = requests[0]
    topics: dict[uuid.UUID, list[Mapping[str, Any]]] = {}
    for each in requests:
        entry = {"partition": each.key.partition, **each.entry()}
        topics.setdefault(each.key.topic_id, []).append(entry)
    return entity_of(
        request_class(first.api_key, first.version),
        {
            "group_id": first.key.group_id,
            "topics": [
                {"topic_id": topic_id, "partitions": entries}
                for topic_id, entries in topics.items()
            ],
        },
    )


def answers_of(response: Any) -> Iterable[tuple[tuple[uuid.UUID, int], Any]]:
    """The entries of a response, by topic and partition."""
    for topic in response.results:
        for entry in topic.partitions:
            yield (topic.topic_id, entry.partition), entry
