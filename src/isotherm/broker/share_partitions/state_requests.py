"""The requests of the state of share partitions to its coordinator: by a call if it is in this
broker, else as an entry of a request of Kafka's protocol.

Versions  InitializeShareGroupState 0, ReadShareGroupState 0, WriteShareGroupState 1,
          DeleteShareGroupState 0, ReadShareGroupStateSummary 1: those of Kafka 4.2 and later.
"""

from __future__ import annotations

import abc
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

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
class StateRequest(abc.ABC):
    """A request for one share partition, as the entry of a request of Kafka's protocol in
    `version`, and its result, as the entry of a response. These are the defaults of a request
    whose result is None.
    """

    api_key: ClassVar[ApiKey]
    version: ClassVar[int]
    failed: ClassVar[Mapping[str, Any]] = {}
    """The fields of an answer that is an error."""
    key: SharePartitionKey

    @classmethod
    @abc.abstractmethod
    def of(cls, key: SharePartitionKey, entry: Any) -> Self:
        """The request that a broker has sent, in any version."""

    @abc.abstractmethod
    def entry(self) -> Mapping[str, Any]:
        """The fields of the entry."""

    @abc.abstractmethod
    def call(self, coordinator: ShareCoordinator) -> tuple[ShareShard, StateResult]:
        """The result, which counts once the shard has committed what it appended.

        Raises what the coordinator's method raises.
        """

    @property
    def batch_count(self) -> int:
        """State batches in the request and its answer, at most."""
        return 0

    @staticmethod
    def answer(result: Any) -> Mapping[str, Any]:
        """The fields of the answer with this result."""
        return {}

    @staticmethod
    def result(answer: Any) -> StateResult:
        """The inverse of `answer`."""
        return None


@dataclass(frozen=True, slots=True)
class InitializeState(StateRequest):
    api_key = ApiKey.INITIALIZE_SHARE_GROUP_STATE
    version = 0
    state_epoch: int
    start_offset: Offset

    @classmethod
    def of(cls, key: SharePartitionKey, entry: Any) -> Self:
        return cls(key, entry.state_epoch, entry.start_offset)

    def entry(self) -> Mapping[str, Any]:
        return {"state_epoch": self.state_epoch, "start_offset": self.start_offset}

    def call(self, coordinator: ShareCoordinator) -> tuple[ShareShard, StateResult]:
        return coordinator.initialize(self.key, self.state_epoch, self.start_offset), None


@dataclass(frozen=True, slots=True)
class WriteState(StateRequest):
    api_key = ApiKey.WRITE_SHARE_GROUP_STATE
    version = 1  # 0 has no count
    write: StateWrite

    @classmethod
    def of(cls, key: SharePartitionKey, entry: Any) -> Self:
        write = StateWrite(
            entry.state_epoch,
            entry.leader_epoch,
            entry.start_offset,
            getattr(entry, "delivery_complete_count", UNKNOWN_COUNT),
            tuple(map(StateBatch.of, entry.state_batches)),
        )
        return cls(key, write)

    def entry(self) -> Mapping[str, Any]:
        batches = [batch.fields() for batch in self.write.batches]
        fields = self.write._asdict()
        del fields["batches"]
        return {**fields, "state_batches": batches}

    def call(self, coordinator: ShareCoordinator) -> tuple[ShareShard, StateResult]:
        return coordinator.write(self.key, self.write), None

    @property
    def batch_count(self) -> int:
        return len(self.write.batches)


@dataclass(frozen=True, slots=True)
class ReadByLeader(StateRequest):
    api_key = ApiKey.READ_SHARE_GROUP_STATE
    version = 0
    failed: ClassVar[Mapping[str, Any]] = {
        "state_epoch": 0,
        "start_offset": 0,
        "state_batches": (),
    }
    leader_epoch: LeaderEpoch

    @classmethod
    def of(cls, key: SharePartitionKey, entry: Any) -> Self:
        return cls(key, entry.leader_epoch)

    def entry(self) -> Mapping[str, Any]:
        return {"leader_epoch": self.leader_epoch}

    def call(self, coordinator: ShareCoordinator) -> tuple[ShareShard, StateResult]:
        shard, state = coordinator.read(self.key, self.leader_epoch)
        return shard, ReadState(state.state_epoch, state.start_offset, state.batches)

    @property
    def batch_count(self) -> int:
        return BATCHES_MAX

    @staticmethod
    def answer(result: Any) -> Mapping[str, Any]:
        return {
            "state_epoch": result.state_epoch,
            "start_offset": result.start_offset,
            "state_batches": [batch.fields() for batch in result.batches],
        }

    @staticmethod
    def result(answer: Any) -> StateResult:
        batches = tuple(map(StateBatch.of, answer.state_batches))
        return ReadState(answer.state_epoch, answer.start_offset, batches)


@dataclass(frozen=True, slots=True)
class ReadSummary(StateRequest):
    """No epoch is checked, and nobody is fenced."""

    api_key = ApiKey.READ_SHARE_GROUP_STATE_SUMMARY
    version = 1  # 0 has no count
    failed = StateSummary(0, 0, 0, UNKNOWN_COUNT)._asdict()

    @classmethod
    def of(cls, key: SharePartitionKey, entry: Any) -> Self:
        return cls(key)

    def entry(self) -> Mapping[str, Any]:
        return {"leader_epoch": -1}

    def call(self, coordinator: ShareCoordinator) -> tuple[ShareShard, StateResult]:
        shard, state = coordinator.read_summary(self.key)
        if state is None:
            return shard, NO_STATE
        return shard, self.result(state)

    @staticmethod
    def answer(result: Any) -> Mapping[str, Any]:
        return dict(result._asdict())

    @staticmethod
    def result(answer: Any) -> StateResult:
        return StateSummary(*(getattr(answer, name) for name in StateSummary._fields))


@dataclass(frozen=True, slots=True)
class DeleteState(StateRequest):
    api_key = ApiKey.DELETE_SHARE_GROUP_STATE
    version = 0

    @classmethod
    def of(cls, key: SharePartitionKey, entry: Any) -> Self:
        return cls(key)

    def entry(self) -> Mapping[str, Any]:
        return {}

    def call(self, coordinator: ShareCoordinator) -> tuple[ShareShard, StateResult]:
        return coordinator.delete(self.key), None


def protocol_request(requests: Sequence[StateRequest]) -> Any:
    """The request of Kafka's protocol with an entry for each of `requests`. They are of one kind
    and one group, and no two of one partition."""
    first = requests[0]
    topics: dict[uuid.UUID, list[Mapping[str, Any]]] = {}
    for request in requests:
        entry = {"partition": request.key.partition, **request.entry()}
        topics.setdefault(request.key.topic_id, []).append(entry)
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
