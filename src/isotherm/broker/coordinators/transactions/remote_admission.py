"""Admission by a coordinator in another broker, with batched AddPartitionsToTxn requests (KIP-890).

Versions  5: several transactions in one request, verify-only or adding, TRANSACTION_ABORTABLE.
Behaviour At most one request per coordinator is in flight. A network failure becomes
          CoordinatorLoadInProgressError, after which the client retries without a look-up of the
          coordinator.
Source: Kafka AddPartitionsToTxnManager.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.coordinator_partition import coordinator_partition
from isotherm.broker.coordinators.transactions.transaction_log import TRANSACTION_STATE_TOPIC
from isotherm.broker.coordinators.transactions.transaction_state import ProducerIdAndEpoch
from isotherm.broker.metadata.cluster_metadata import ClusterMetadata
from isotherm.broker.metadata.image import NO_LEADER
from isotherm.broker.peers.peer_batches import PeerBatches
from isotherm.client.node_address import NodeAddress
from isotherm.client.node_connection import NodeConnection
from isotherm.errors import (
    ConcurrentTransactionsError,
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    IsothermError,
    NotCoordinatorError,
    NotEnoughMemoryError,
    PeerDisconnectedError,
    PeerTimeoutError,
    ProducerFencedError,
    TransactionAbortableError,
    UnknownTopicOrPartitionError,
)
from isotherm.protocol.api_keys import ApiKey, request_class
from isotherm.protocol.code_names import code_name
from isotherm.protocol.entities import entity_of
from isotherm.types import BrokerId, TopicPartition

QUEUED_QUESTIONS_MAX = 10_000  # per coordinator; the client of a question above the limit retries
QUESTIONS_PER_REQUEST_MAX = 1000
ADD_PARTITIONS_VERSION = 5

_ERRORS: dict[ErrorCode, type[IsothermError]] = {
    ErrorCode.producer_fenced: ProducerFencedError,
    ErrorCode.invalid_producer_epoch: InvalidProducerEpochError,
    ErrorCode.invalid_producer_id_mapping: InvalidProducerIdMappingError,
    ErrorCode.invalid_txn_state: InvalidTxnStateError,
    ErrorCode.transaction_abortable: TransactionAbortableError,
    ErrorCode.concurrent_transactions: ConcurrentTransactionsError,
    ErrorCode.coordinator_load_in_progress: CoordinatorLoadInProgressError,
    ErrorCode.coordinator_not_available: CoordinatorNotAvailableError,
    ErrorCode.not_coordinator: NotCoordinatorError,
    # The coordinator's metadata may be older than this broker's. The client retries.
    ErrorCode.unknown_topic_or_partition: UnknownTopicOrPartitionError,
    # Another partition of the request is unknown there.
    ErrorCode.operation_not_attempted: CoordinatorLoadInProgressError,
    # This broker lacks a permission, which the client must not see.
    ErrorCode.cluster_authorization_failed: InvalidTxnStateError,
}


class Question(NamedTuple):
    transactional_id: str
    producer: ProducerIdAndEpoch
    partition: TopicPartition
    adds: bool


class RemoteAdmission:
    """Event loop thread only."""

    def __init__(
        self,
        metadata: ClusterMetadata,
        batches: PeerBatches[Question, ErrorCode],
        listener_name: str,
    ) -> None:
        """`listener_name` is the inter-broker listener."""
        self._metadata = metadata
        self._batches = batches
        self._listener_name = listener_name

    def is_elsewhere(self, transactional_id: str) -> bool:
        """Whether another broker, or none, leads the partition of the transactional id."""
        return self._coordinator_of(transactional_id) != self._metadata.broker_config.node_id

    def _coordinator_of(self, transactional_id: str) -> BrokerId:
        topic = self._metadata.image.topics_by_name.get(TRANSACTION_STATE_TOPIC)
        if topic is None:
            return NO_LEADER
        index = coordinator_partition(transactional_id, len(topic.partitions))
        return topic.partitions[index].leader

    def ask(
        self,
        transactional_id: str,
        producer: ProducerIdAndEpoch,
        partition: TopicPartition,
        *,
        adds: bool,
    ) -> Coroutine[Any, Any, None]:
        """Ask whether the partition is part of the transaction, or add it with `adds`. Returns the
        wait for the answer.

        Raises CoordinatorNotAvailableError if there is no coordinator to ask. The wait raises the
        coordinator's error.
        """
        coordinator = self._coordinator_of(transactional_id)
        broker = self._metadata.image.brokers.get(coordinator)
        endpoint = broker.endpoint(self._listener_name) if broker is not None else None
        if endpoint is None:
            raise CoordinatorNotAvailableError(
                f"no transaction coordinator is available transactional_id={transactional_id}"
                f" coordinator={coordinator}"
            )
        question = Question(transactional_id, producer, partition, adds)
        address = NodeAddress(endpoint.host, endpoint.port)
        return self._answer(question, self._batches.submit(coordinator, address, question))

    async def _answer(self, question: Question, answer: Awaitable[ErrorCode]) -> None:
        try:
            code = await answer
        except (NotEnoughMemoryError, PeerDisconnectedError, PeerTimeoutError) as error:
            raise CoordinatorLoadInProgressError(
                f"the coordinator does not answer transactional_id={question.transactional_id}"
            ) from error
        if code is not ErrorCode.none:
            # The client gets UNKNOWN_SERVER_ERROR for any other code.
            raise _ERRORS.get(code, IsothermError)(
                f"the coordinator refuses the records error={code_name(code)}"
                f" transactional_id={question.transactional_id} partition={question.partition}"
            )


def ask_coordinator(connection: NodeConnection, questions: Sequence[Question]) -> list[ErrorCode]:
    """Send one AddPartitionsToTxn request; returns an answer for each question, in order. Blocks.

    A request has at most one entry per transactional id. So only the questions of the newest
    producer are sent, and an older producer is fenced here. Raises PeerDisconnectedError or
    PeerTimeoutError.
    """
    merged = _asked_for(questions)
    response = connection.send(add_partitions_request(merged, questions))
    codes = {
        (result.transactional_id, TopicPartition(topic.name, partition.partition_index)): (
            partition.partition_error_code
        )
        for result in response.results_by_transaction
        for topic in result.topic_results
        for partition in topic.results_by_partition
    }
    answers = []
    for question in questions:
        newest = merged[question.transactional_id]
        if response.error_code is not ErrorCode.none:
            code = response.error_code
        elif question.producer.epoch < newest.producer.epoch:
            code = ErrorCode.invalid_producer_epoch
        elif (question.producer, question.adds) != (newest.producer, newest.adds):
            code = ErrorCode.coordinator_load_in_progress
        else:
            code = codes.get(
                (question.transactional_id, question.partition),
                ErrorCode.coordinator_load_in_progress,
            )
        answers.append(code)
    return answers


def _asked_for(questions: Sequence[Question]) -> dict[str, Question]:
    """The question of the newest producer of each transactional id. Of questions with equal epochs
    the last counts."""
    merged: dict[str, Question] = {}
    for question in questions:
        earlier = merged.get(question.transactional_id)
        if earlier is None or question.producer.epoch >= earlier.producer.epoch:
            merged[question.transactional_id] = question
    return merged


def add_partitions_request(merged: dict[str, Question], questions: Sequence[Question]) -> Any:
    topics: dict[str, dict[str, list[int]]] = {transactional_id: {} for transactional_id in merged}
    for question in dict.fromkeys(questions):
        newest = merged[question.transactional_id]
        # An entry has one `verify_only` for all of its partitions.
        if (question.producer, question.adds) == (newest.producer, newest.adds):
            of_id = topics[question.transactional_id]
            of_id.setdefault(question.partition.topic, []).append(question.partition.partition)
    return entity_of(
        request_class(ApiKey.ADD_PARTITIONS_TO_TXN, ADD_PARTITIONS_VERSION),
        {
            "transactions": [
                {
                    "transactional_id": newest.transactional_id,
                    "producer_id": newest.producer.producer_id,
                    "producer_epoch": newest.producer.epoch,
                    "verify_only": not newest.adds,
                    "topics": [
                        {"name": name, "partitions": tuple(indexes)}
                        for name, indexes in topics[newest.transactional_id].items()
                    ],
                }
                for newest in merged.values()
            ]
        },
    )
