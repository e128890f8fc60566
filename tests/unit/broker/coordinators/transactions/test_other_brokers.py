"""A broker that sends requests to others and answers theirs: markers and admissions, over a real
connection to a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.apis.transaction_admission import ClientAbility, PendingAdmission
from isotherm.broker.coordinators.transactions.marker_sender import (
    MarkerSender,
    outcome_of_code,
    send_markers,
    write_txn_markers_request,
)
from isotherm.broker.coordinators.transactions.remote_admission import (
    Question,
    RemoteAdmission,
    add_partitions_request,
    ask_coordinator,
)
from isotherm.broker.coordinators.transactions.transaction_endings import (
    SETTLED,
    EndMarker,
    MarkerOutcome,
    MarkerResult,
)
from isotherm.broker.coordinators.transactions.transaction_state import ProducerIdAndEpoch
from isotherm.broker.coordinators.transactions.verifications import Verifications
from isotherm.broker.error_mapping import error_code
from isotherm.broker.metadata.controller.topic_rules import NewTopic
from isotherm.broker.metadata.endpoint import Endpoint
from isotherm.broker.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from isotherm.broker.node import BrokerNode
from isotherm.broker.peers.peer_batches import PeerBatches
from isotherm.client.node_address import NodeAddress
from isotherm.client.node_connection import NodeConnection
from isotherm.clock import SystemClock
from isotherm.config.layers import embedded_defaults
from isotherm.config.server_properties import parse_broker_config
from isotherm.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    IsothermError,
    NotCoordinatorError,
    TransactionAbortableError,
    UnknownTopicOrPartitionError,
)
from isotherm.types import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
TIMEOUT_MS = 60_000


def connect(address: NodeAddress) -> NodeConnection:
    return NodeConnection(
        address,
        client_id="broker-2",
        connect_timeout_s=300,
        request_timeout_s=300,
        response_bytes_max=1 << 20,
    )


class Brokers:
    """Broker 1 is real. The test plays broker 2, which sees broker 1 as the leader of
    everything."""

    def __init__(self, node: BrokerNode) -> None:
        self.node = node
        (endpoint,) = node.endpoints
        self.address = NodeAddress("127.0.0.1", endpoint.port)
        self.leader = 1
        metadata: Any = SimpleNamespace(broker_config=SimpleNamespace(node_id=2))
        self.metadata = metadata
        self.update()
        markers = PeerBatches[Any, MarkerOutcome](
            "markers", connect, send_markers, SystemClock(), queued_max=100, batch_max=100
        )
        self.local: list[Any] = []
        self.sender = MarkerSender(metadata, self, markers, "PLAINTEXT")
        questions = PeerBatches[Question, ErrorCode](
            "questions", connect, ask_coordinator, SystemClock(), queued_max=100, batch_max=100
        )
        self._batches = (markers, questions)
        self.admission = RemoteAdmission(metadata, questions, "PLAINTEXT")

    async def stop(self) -> None:
        for batch in self._batches:
            await batch.stop()

    def update(self) -> None:
        """Publish an image with the present leader."""

        def topic(name: str) -> TopicImage:
            count = len(self.node.services.metadata.image.topics_by_name[name].partitions)
            partition = PartitionImage(0, (1, 2), (1, 2), self.leader, 1, 1)
            return TopicImage(name, None, (partition,) * count)  # type: ignore[arg-type]

        endpoint = Endpoint("PLAINTEXT", self.address.host, self.address.port)
        broker = BrokerImage(1, 1, None, None, False, endpoints=(endpoint,))
        names = self.node.services.metadata.image.topics_by_name
        self.metadata.image = MetadataImage(
            topics_by_name={name: topic(name) for name in names}, brokers={1: broker}
        )

    def write(self, marker: EndMarker, topic_partition: TopicPartition) -> MarkerOutcome:
        """The `MarkerWriter` of broker 2's own partitions."""
        self.local.append((marker, topic_partition))
        return SETTLED

    async def begin(self, *partitions: TopicPartition) -> ProducerIdAndEpoch:
        coordinator = self.node.services.transaction_coordinator
        producer = await coordinator.init_producer_id("tx", TIMEOUT_MS, None)
        if partitions:
            coordinator.add_partitions("tx", producer, partitions, client_version=0)
        self.update()
        return producer

    async def sent(self, marker: EndMarker, partition: TopicPartition) -> MarkerOutcome:
        outcome = self.sender.write(marker, partition)
        return outcome if isinstance(outcome, MarkerOutcome) else await outcome

    async def asked(
        self,
        producer: ProducerIdAndEpoch,
        partition: TopicPartition,
        ability: ClientAbility = ClientAbility.KNOWS_ABORTABLE_ERROR,
        verifications: Verifications | None = None,
    ) -> None:
        adds = ability is ClientAbility.ADDS_BY_WRITING
        waiting = self.admission.ask("tx", producer, partition, adds=adds)
        pending = PendingAdmission(
            waiting, producer, partition, ability, verifications or Verifications()
        )
        pending.settle(await pending.wait())


@pytest.fixture
def run(tmp_path: Path) -> Callable[[Callable[[Brokers], Awaitable[None]]], None]:
    """Runs a scenario with broker 1 started over an empty folder."""

    async def main(scenario: Callable[[Brokers], Awaitable[None]]) -> None:
        texts = {
            **embedded_defaults(tmp_path, {}),
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "remote.log.storage.system.enable": "false",
            "transaction.state.log.num.partitions": "2",
            "offsets.topic.num.partitions": "2",
        }
        node = BrokerNode(parse_broker_config(texts))
        await node.start()
        controller = node.services.controller
        topic = NewTopic(name="t", num_partitions=2)
        await node.services.run_control(lambda: controller.create_topics([topic]))
        brokers = Brokers(node)
        try:
            await scenario(brokers)
        finally:
            await brokers.stop()
            await node.stop()

    return lambda scenario: asyncio.run(main(scenario))


# ---- markers


def marker_of(producer: ProducerIdAndEpoch, epoch: int = 0, version: int = 0) -> EndMarker:
    return EndMarker(producer, True, epoch, version)


def test_marker_goes_to_the_leader_and_is_answered(run: Any) -> None:
    async def scenario(brokers: Brokers) -> None:
        producer = ProducerIdAndEpoch(7, 3)
        outcomes = await asyncio.gather(
            brokers.sent(marker_of(producer), T0), brokers.sent(marker_of(producer), T1)
        )
        assert outcomes == [SETTLED, SETTLED]
        for index in (0, 1):
            partition = brokers.node.services.replica_manager.find_partition("t", None, index)
            known = partition.log.producers.producer(7)
            assert known is not None
            assert (known.epoch, partition.log.log_end_offset) == (3, 1)

    run(scenario)


def test_marker_of_an_older_epoch_is_not_tried_again(run: Any) -> None:
    async def scenario(brokers: Brokers) -> None:
        await brokers.sent(marker_of(ProducerIdAndEpoch(7, 3), epoch=5), T0)
        older = await brokers.sent(marker_of(ProducerIdAndEpoch(7, 2), epoch=5), T0)
        assert older.result is MarkerResult.SETTLED
        assert older.reason == "INVALID_PRODUCER_EPOCH"
        fenced = await brokers.sent(marker_of(ProducerIdAndEpoch(7, 3), epoch=4), T0)
        assert fenced.result is MarkerResult.FENCED

    run(scenario)


def test_marker_whose_leader_cannot_be_reached_is_tried_again(run: Any) -> None:
    async def scenario(brokers: Brokers) -> None:
        marker = marker_of(ProducerIdAndEpoch(7, 3))
        brokers.leader = -1
        brokers.update()
        assert (await brokers.sent(marker, T0)).result is MarkerResult.RETRY
        brokers.leader = 3  # a broker that is not registered, with a higher id than this one
        brokers.update()
        assert (await brokers.sent(marker, T0)).result is MarkerResult.RETRY
        assert brokers.local == []
        brokers.leader = 1
        real, brokers.address = brokers.address, NodeAddress("127.0.0.1", 1)
        brokers.update()
        assert (await brokers.sent(marker, T0)).result is MarkerResult.RETRY
        brokers.address = real
        brokers.update()
        assert await brokers.sent(marker, T0) == SETTLED

    run(scenario)


def test_marker_of_a_deleted_partition_and_an_own_one_go_nowhere(run: Any) -> None:
    async def scenario(brokers: Brokers) -> None:
        marker = marker_of(ProducerIdAndEpoch(7, 3))
        assert await brokers.sent(marker, TopicPartition("gone", 0)) == SETTLED
        for index in (2, 3):
            assert await brokers.sent(marker, TopicPartition("t", index)) == SETTLED
        assert brokers.local == []
        brokers.leader = 2
        brokers.update()
        assert await brokers.sent(marker, T0) == SETTLED
        assert brokers.local == [(marker, T0)]

    run(scenario)


def test_marker_in_offsets_waits_for_the_group_coordinator(run: Any) -> None:
    async def scenario(brokers: Brokers) -> None:
        groups = brokers.node.services.group_coordinator
        await groups.ensure_topic()
        brokers.update()
        marker, offsets = (
            marker_of(ProducerIdAndEpoch(7, 3)),
            TopicPartition("__consumer_offsets", 1),
        )
        groups.on_resignation(1, None)
        refused = await brokers.sent(marker, offsets)
        assert refused == MarkerOutcome(MarkerResult.RETRY, "NOT_LEADER_OR_FOLLOWER")
        partition = brokers.node.services.replica_manager.find_partition(
            *("__consumer_offsets", None, 1)
        )
        assert partition.log.log_end_offset == 0
        groups.on_election(1, partition.leader_epoch)
        assert await brokers.sent(marker, offsets) == SETTLED

    run(scenario)


@pytest.mark.parametrize(
    ("code", "result"),
    [
        # Kafka: TransactionMarkerRequestCompletionHandler
        (ErrorCode.none, MarkerResult.SETTLED),
        (ErrorCode.unknown_topic_or_partition, MarkerResult.RETRY),
        (ErrorCode.not_leader_or_follower, MarkerResult.RETRY),
        (ErrorCode.not_enough_replicas, MarkerResult.RETRY),
        (ErrorCode.not_enough_replicas_after_append, MarkerResult.RETRY),
        (ErrorCode.request_timed_out, MarkerResult.RETRY),
        (ErrorCode.kafka_storage_error, MarkerResult.RETRY),
        (ErrorCode.invalid_producer_epoch, MarkerResult.SETTLED),
        (ErrorCode.unsupported_for_message_format, MarkerResult.SETTLED),
        (ErrorCode.transaction_coordinator_fenced, MarkerResult.FENCED),
        (None, MarkerResult.RETRY),
    ],
)
def test_answers_of_leaders(code: Any, result: MarkerResult) -> None:
    assert outcome_of_code(code).result is result


def test_partitions_of_one_marker_are_one_entry_of_the_request() -> None:
    first, second = marker_of(ProducerIdAndEpoch(7, 3), 1, 2), marker_of(ProducerIdAndEpoch(8, 0))
    sent: Any = [(first, T0), (second, T0), (first, T1), (first, TopicPartition("u", 4))]
    request = write_txn_markers_request(sent)
    assert [
        (
            marker.producer_id,
            marker.producer_epoch,
            marker.coordinator_epoch,
            marker.transaction_version,
        )
        for marker in request.markers
    ] == [(7, 3, 1, 2), (8, 0, 0, 0)]
    assert [
        [(topic.name, topic.partition_indexes) for topic in marker.topics]
        for marker in request.markers
    ] == [[("t", (0, 1)), ("u", (4,))], [("t", (0,))]]


# ---- admission


def test_coordinator_elsewhere_tells_what_is_part_of_the_transaction(run: Any) -> None:
    async def scenario(brokers: Brokers) -> None:
        producer = await brokers.begin(T0)
        assert brokers.admission.is_elsewhere("tx")
        await brokers.asked(producer, T0)
        with pytest.raises(TransactionAbortableError):
            await brokers.asked(producer, T1)
        with pytest.raises(InvalidTxnStateError):
            await brokers.asked(producer, T1, ClientAbility.NEITHER)
        await brokers.asked(producer, T1, ClientAbility.ADDS_BY_WRITING)
        await brokers.asked(producer, T1)
        older = ProducerIdAndEpoch(producer.producer_id, producer.epoch - 1)
        with pytest.raises(InvalidProducerEpochError):
            await brokers.asked(older, T0)

    run(scenario)


def test_coordinator_that_has_moved_or_is_away(run: Any) -> None:
    async def scenario(brokers: Brokers) -> None:
        producer = await brokers.begin(T0)
        for index in range(2):
            brokers.node.services.transaction_coordinator.on_resignation(index, None)
        with pytest.raises(NotCoordinatorError):
            await brokers.asked(producer, T0)
        brokers.address = NodeAddress("127.0.0.1", 1)
        brokers.update()
        with pytest.raises(CoordinatorLoadInProgressError):
            await brokers.asked(producer, T0)
        brokers.leader = -1
        brokers.update()
        with pytest.raises(CoordinatorNotAvailableError):
            await brokers.asked(producer, T0)

    run(scenario)


def test_marker_between_the_question_and_the_append_refuses_the_records(run: Any) -> None:
    async def scenario(brokers: Brokers) -> None:
        producer = await brokers.begin(T0)
        verifications = Verifications()
        asking = asyncio.ensure_future(brokers.asked(producer, T0, verifications=verifications))
        await asyncio.sleep(0)
        verifications.note_marker(T1, producer.producer_id)
        verifications.note_marker(T0, producer.producer_id + 1)
        verifications.note_marker(T0, producer.producer_id)
        with pytest.raises(TransactionAbortableError, match="ended meanwhile"):
            await asking
        await brokers.asked(producer, T0, verifications=verifications)
        assert vars(verifications) == {"_under_way": {}}

    run(scenario)


def test_questions_about_one_id_in_a_batch(run: Any) -> None:
    """A coordinator gives one answer per transactional id, so only the newest producer's questions
    are sent."""

    async def scenario(brokers: Brokers) -> None:
        producer = await brokers.begin(T0)
        older = ProducerIdAndEpoch(producer.producer_id, producer.epoch - 1)
        questions = [
            Question("tx", older, T0, False),
            Question("tx", producer, T1, True),
            Question("tx", producer, T0, False),
            Question("tx", producer, T1, False),
            Question("unknown", producer, T0, False),
        ]
        loop = asyncio.get_running_loop()
        connection = connect(brokers.address)
        codes = await loop.run_in_executor(None, partial(ask_coordinator, connection, questions))
        connection.close()
        assert codes == [
            ErrorCode.invalid_producer_epoch,
            ErrorCode.coordinator_load_in_progress,
            ErrorCode.none,
            ErrorCode.transaction_abortable,
            ErrorCode.invalid_producer_id_mapping,
        ]

    run(scenario)


@pytest.mark.parametrize("adds", [True, False])
def test_request_asks_either_to_add_or_to_verify(adds: bool) -> None:
    """The entry of a transactional id has one flag for all its partitions."""
    producer = ProducerIdAndEpoch(7, 3)
    older = ProducerIdAndEpoch(7, 2)
    questions = [
        Question("tx", older, TopicPartition("t", 2), adds),
        Question("tx", producer, T0, not adds),
        Question("tx", producer, T1, adds),
    ]
    (entry,) = add_partitions_request({"tx": questions[-1]}, questions).transactions
    assert (entry.producer_epoch, entry.verify_only) == (3, not adds)
    assert [(topic.name, topic.partitions) for topic in entry.topics] == [("t", (1,))]


def test_partition_that_the_coordinator_has_not_heard_of_is_retried(run: Any) -> None:
    """The coordinator's metadata may be late. INVALID_TXN_STATE would end the producer."""

    async def scenario(brokers: Brokers) -> None:
        producer = await brokers.begin()
        unknown = TopicPartition("new", 0)
        adds = ClientAbility.ADDS_BY_WRITING
        asked = [brokers.asked(producer, each, adds) for each in (unknown, T0)]
        errors = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(error) for error in errors] == [
            UnknownTopicOrPartitionError,
            CoordinatorLoadInProgressError,
        ]
        with pytest.raises(TransactionAbortableError):
            await brokers.asked(producer, unknown)

    run(scenario)


def test_coordinator_is_elsewhere_unless_its_broker_has_an_equal_id() -> None:
    partition = PartitionImage(0, (1000,), (1000,), 1000, 1, 1)
    topic = TopicImage("__transaction_state", None, (partition,) * 2)  # type: ignore[arg-type]
    image = MetadataImage(topics_by_name={topic.name: topic})
    unused: Any = None
    for node_id, is_elsewhere in ((int("1000"), False), (999, True), (1001, True)):
        config = SimpleNamespace(node_id=node_id)
        metadata: Any = SimpleNamespace(broker_config=config, image=image)
        admission = RemoteAdmission(metadata, unused, "PLAINTEXT")
        assert admission.is_elsewhere("tx") is is_elsewhere


def test_error_that_is_not_known_is_a_servers() -> None:
    async def refused() -> ErrorCode:
        return ErrorCode.unknown_server_error

    question = Question("tx", ProducerIdAndEpoch(7, 3), T0, True)
    unused: Any = None
    admission = RemoteAdmission(unused, unused, "PLAINTEXT")
    with pytest.raises(IsothermError) as raised:
        asyncio.run(admission._answer(question, refused()))
    assert error_code(raised.value) is ErrorCode.unknown_server_error
