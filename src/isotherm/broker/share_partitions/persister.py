"""The state of share partitions, read and written by those who need it (Kafka: DefaultPersister).

The leaders of partitions read and write it, the group coordinator begins and deletes it. Each share
partition has its coordinator, which is looked up in the metadata for every attempt. What this
broker coordinates is asked by a call, and the rest over connections: requests to one broker wait
for each other, and those that wait are sent together.

An attempt that meets no coordinator is made again after BACKOFFS_S, for as long as Kafka does it.

    answers = await persister.read([ReadByLeader(key, leader_epoch), ...])
    answer = answers[key]          # a ReadState, or the IsothermError of this partition

Source: Kafka PersisterStateManager.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias, cast

from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.shares.share_coordinator import ShareCoordinator
from isotherm.broker.coordinators.shares.share_state_records import (
    SHARE_STATE_TOPIC,
    SharePartitionKey,
    state_partition,
)
from isotherm.broker.loop_turns import AnswerTurns
from isotherm.broker.metadata.cluster_metadata import ClusterMetadata
from isotherm.broker.metadata.image import NO_LEADER
from isotherm.broker.peers.peer_batches import PeerBatches
from isotherm.broker.share_partitions.backoff import is_stopped_within
from isotherm.broker.share_partitions.state_requests import (
    NO_STATE,
    DeleteState,
    InitializeState,
    ReadByLeader,
    ReadState,
    ReadSummary,
    StateRequest,
    StateResult,
    StateSummary,
    WriteState,
    answers_of,
    protocol_request,
)
from isotherm.broker.shared_futures import results_of
from isotherm.client.node_address import NodeAddress
from isotherm.client.node_connection import NodeConnection
from isotherm.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    FencedLeaderEpochError,
    FencedStateEpochError,
    InvalidRequestError,
    IsothermError,
    NotCoordinatorError,
    PolicyViolationError,
    RetriableError,
    UnknownTopicOrPartitionError,
)
from isotherm.protocol.api_keys import ApiKey
from isotherm.protocol.code_names import code_name
from isotherm.types import BrokerId

StateAnswer: TypeAlias = "StateResult | IsothermError"
StateBatches: TypeAlias = PeerBatches[StateRequest, StateAnswer]

# About half a minute, as Kafka's five attempts take. The first is soon: a coordinator that has
# moved is mostly found at once.
BACKOFFS_S = (0.1, 0.3, 1.0, 2.0, 4.0, 8.0, 15.0)
QUEUED_REQUESTS_MAX = 10_000  # per broker; a request above the limit is retried after a back-off
REQUESTS_TOGETHER_MAX = 1000
# State batches of one request and its answer take at most 16 MiB.
BATCHES_TOGETHER_MAX = 800_000

_ERRORS: dict[ErrorCode, type[IsothermError]] = {
    ErrorCode.coordinator_load_in_progress: CoordinatorLoadInProgressError,
    ErrorCode.coordinator_not_available: CoordinatorNotAvailableError,
    ErrorCode.not_coordinator: NotCoordinatorError,
    ErrorCode.fenced_leader_epoch: FencedLeaderEpochError,
    ErrorCode.fenced_state_epoch: FencedStateEpochError,
    ErrorCode.invalid_request: InvalidRequestError,
    ErrorCode.policy_violation: PolicyViolationError,
    ErrorCode.unknown_topic_or_partition: UnknownTopicOrPartitionError,
}


class Persister:
    """Event loop thread only. No method raises for a partition: its error is its answer.

    An answer is an error of the coordinator (FencedStateEpochError, FencedLeaderEpochError,
    InvalidRequestError without a state, ...), UnknownTopicOrPartitionError for a topic that is
    gone, or, after all attempts, CoordinatorNotAvailableError, CoordinatorLoadInProgressError,
    NotCoordinatorError, PeerDisconnectedError, PeerTimeoutError or NotEnoughMemoryError. After the
    latter ones a change may have been made all the same. Two requests of one list must not be of
    one partition.
    """

    def __init__(
        self,
        metadata: ClusterMetadata,
        local: ShareCoordinator,
        batches: StateBatches | None = None,
        listener_name: str = "",
        backoffs_s: Sequence[float] = BACKOFFS_S,
    ) -> None:
        """Without `batches` this broker coordinates everything."""
        self._metadata = metadata
        self._local = local
        self._batches = batches
        self._listener_name = listener_name
        self._backoffs_s = backoffs_s
        self._stopped = asyncio.Event()

    async def stop(self) -> None:
        """Fail what waits, with the error of its last attempt, and close the connections."""
        self._stopped.set()
        if self._batches is not None:
            await self._batches.stop()

    async def initialize(
        self, requests: Sequence[InitializeState]
    ) -> dict[SharePartitionKey, IsothermError | None]:
        """Begin states, or begin them anew under a higher state epoch. None is success. The topic
        of the states is created if it is missing."""
        return cast("dict[SharePartitionKey, IsothermError | None]", await self._ask(requests))

    async def write(
        self, requests: Sequence[WriteState]
    ) -> dict[SharePartitionKey, IsothermError | None]:
        """Change states. None is success. Writes of one partition reach its coordinator in any
        order, so its leader has one at a time under way."""
        return cast("dict[SharePartitionKey, IsothermError | None]", await self._ask(requests))

    def write_at_once(self, request: WriteState) -> bool:
        """Change a state that this broker coordinates and no other has a replica of: then its
        append is its commit. False if it is not written; `write` does it, or has the error."""
        topic = self._metadata.image.topics_by_name.get(SHARE_STATE_TOPIC)
        if topic is None:
            return False
        partition = topic.partitions[state_partition(request.key, len(topic.partitions))]
        if partition.leader != self._metadata.broker_config.node_id or len(partition.replicas) != 1:
            return False
        try:
            shard = self._local.write(request.key, request.write)
        except IsothermError:
            return False  # nothing has changed
        return shard.is_committed

    async def read(
        self, requests: Sequence[ReadByLeader]
    ) -> dict[SharePartitionKey, ReadState | IsothermError]:
        """The states for the partitions' leader. A newer leader epoch fences older ones."""
        return cast("dict[SharePartitionKey, ReadState | IsothermError]", await self._ask(requests))

    async def read_summaries(
        self, keys: Iterable[SharePartitionKey]
    ) -> dict[SharePartitionKey, StateSummary | IsothermError]:
        """The start offsets and epochs of states, for those who do not lead the partitions."""
        return cast(
            "dict[SharePartitionKey, StateSummary | IsothermError]",
            await self._ask([ReadSummary(key) for key in keys]),
        )

    async def delete(
        self, keys: Iterable[SharePartitionKey]
    ) -> dict[SharePartitionKey, IsothermError | None]:
        """Forget states. None is success, also without a state."""
        return cast(
            "dict[SharePartitionKey, IsothermError | None]",
            await self._ask([DeleteState(key) for key in keys]),
        )

    async def _ask(self, requests: Sequence[StateRequest]) -> dict[SharePartitionKey, StateAnswer]:
        answers = await self._attempt(requests)
        for backoff_s in self._backoffs_s:
            requests = [
                request for request in requests if self._is_retried(request, answers[request.key])
            ]
            if not requests or await is_stopped_within(self._stopped, backoff_s):
                break
            answers.update(await self._attempt(requests))
        return answers

    def _is_retried(self, request: StateRequest, answer: StateAnswer) -> bool:
        if isinstance(answer, UnknownTopicOrPartitionError):
            # The coordinator's metadata may be older than this broker's.
            topic = self._metadata.image.topics_by_id.get(request.key.topic_id)
            return topic is not None and request.key.partition < len(topic.partitions)
        return isinstance(answer, RetriableError)

    async def _attempt(
        self, requests: Sequence[StateRequest]
    ) -> dict[SharePartitionKey, StateAnswer]:
        is_missing = SHARE_STATE_TOPIC not in self._metadata.image.topics_by_name
        if is_missing and not any(isinstance(request, InitializeState) for request in requests):
            # Nothing has a state, and who only asks creates no topic.
            return {request.key: _answer_without_state(request) for request in requests}
        try:
            await self._local.ensure_topic()
        except IsothermError as error:
            return {request.key: error for request in requests}
        answers: dict[SharePartitionKey, StateAnswer] = {}
        own: list[StateRequest] = []
        sent: dict[SharePartitionKey, asyncio.Future[StateAnswer]] = {}
        turns = AnswerTurns()
        for request in requests:
            await turns.take()
            coordinator = self._coordinator_of(request.key)
            if self._batches is None or coordinator == self._metadata.broker_config.node_id:
                own.append(request)
                continue
            address = self._address_of(coordinator)
            if address is None:
                answers[request.key] = CoordinatorNotAvailableError(
                    "no coordinator of the share partition's state can be reached"
                    f" key={request.key.coordinator_key} coordinator={coordinator}"
                )
                continue
            sent[request.key] = self._batches.submit(coordinator, address, request)
        answers.update(await self._called(own))
        return answers | await results_of(sent)

    def _coordinator_of(self, key: SharePartitionKey) -> BrokerId:
        topic = self._metadata.image.topics_by_name.get(SHARE_STATE_TOPIC)
        if topic is None:
            return NO_LEADER
        return topic.partitions[state_partition(key, len(topic.partitions))].leader

    def _address_of(self, coordinator: BrokerId) -> NodeAddress | None:
        broker = self._metadata.image.brokers.get(coordinator)
        endpoint = None if broker is None else broker.endpoint(self._listener_name)
        return None if endpoint is None else NodeAddress(endpoint.host, endpoint.port)

    async def _called(
        self, requests: Sequence[StateRequest]
    ) -> dict[SharePartitionKey, StateAnswer]:
        """The answers of this broker's coordinator."""
        answers: dict[SharePartitionKey, StateAnswer] = {}
        turns = AnswerTurns()
        called = []
        for request in requests:
            await turns.take()
            try:
                called.append((request.key, *request.call(self._local)))
            except IsothermError as error:
                answers[request.key] = error
        for key, shard, result in called:
            try:
                await shard.wait_committed(self._local.commit_timeout_s)
                answers[key] = result
            except IsothermError as error:
                answers[key] = error
        return answers


def _answer_without_state(request: StateRequest) -> StateAnswer:
    if isinstance(request, ReadSummary):
        return NO_STATE
    if isinstance(request, DeleteState):
        return None
    return InvalidRequestError(
        f"the share partition's state has not been initialized key={request.key.coordinator_key}"
    )


def send_state_requests(
    connection: NodeConnection, requests: Sequence[StateRequest]
) -> list[StateAnswer]:
    """Send requests to one broker, and return the answer to each, in order. Blocks.

    An error of the connection is the answer to the requests that it kept from being answered.
    """
    answers: dict[int, StateAnswer] = {}
    try:
        for positions in _requests_together(requests):
            together = [requests[position] for position in positions]
            entries = dict(answers_of(connection.send(protocol_request(together))))
            for position, request in zip(positions, together, strict=True):
                entry = entries.get((request.key.topic_id, request.key.partition))
                answers[position] = _answer(request, entry)
    except IsothermError as error:
        return [answers.get(position, error) for position in range(len(requests))]
    return [answers[position] for position in range(len(requests))]


def _requests_together(requests: Sequence[StateRequest]) -> Iterator[list[int]]:
    """The positions of the requests that go into one request of the protocol. Requests of one
    partition go into several, in their order."""
    begun: dict[tuple[ApiKey, str], _Together] = {}
    for position, request in enumerate(requests):
        kind = request.api_key, request.key.group_id
        together = begun.get(kind)
        if together is not None and not together.has_room_for(request):
            yield together.positions
            together = None
        if together is None:
            together = begun[kind] = _Together()
        together.add(position, request)
    for together in begun.values():
        yield together.positions


class _Together:
    __slots__ = ("batch_count", "keys", "positions")

    def __init__(self) -> None:
        self.positions: list[int] = []
        self.keys: set[SharePartitionKey] = set()
        self.batch_count = 0

    def has_room_for(self, request: StateRequest) -> bool:
        has_room = self.batch_count + request.batch_count <= BATCHES_TOGETHER_MAX
        return has_room and request.key not in self.keys

    def add(self, position: int, request: StateRequest) -> None:
        self.positions.append(position)
        self.keys.add(request.key)
        self.batch_count += request.batch_count


def _answer(request: StateRequest, entry: Any) -> StateAnswer:
    if entry is None:
        return CoordinatorNotAvailableError(
            f"the coordinator does not answer for the partition key={request.key.coordinator_key}"
        )
    code: ErrorCode = entry.error_code
    if code is ErrorCode.none:
        return request.result(entry)
    return _ERRORS.get(code, IsothermError)(
        f"the coordinator of the share partition's state refuses error={code_name(code)}"
        f" message={entry.error_message} key={request.key.coordinator_key}"
    )
