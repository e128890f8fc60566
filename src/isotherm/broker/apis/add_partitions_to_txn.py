"""AddPartitionsToTxn (key 24).

Versions  0-5. 2 PRODUCER_FENCED, which is INVALID_PRODUCER_EPOCH before · 3 flexible · 4 several
          transactions in one request, and verify_only, with which brokers check whether partitions
          were added · 5 TRANSACTION_ABORTABLE
Behaviour Adds all partitions of a transaction or none. If one does not exist, it gets
          UNKNOWN_TOPIC_OR_PARTITION, and the others get OPERATION_NOT_ATTEMPTED. A client's
          partition of an internal topic gets TOPIC_AUTHORIZATION_FAILED, also without an
          authorizer; AddOffsetsToTxn adds those of `__consumer_offsets`.
Not done  -
KIPs      98 · 588 · 890
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.transactions.transaction_state import (
    TRANSACTION_V0,
    TRANSACTION_V2,
    ProducerIdAndEpoch,
)
from isotherm.broker.error_mapping import error_code as code_of
from isotherm.broker.loop_turns import AnswerTurns
from isotherm.broker.metadata.access.acls import Operation, ResourceType
from isotherm.broker.metadata.access.authorizer import Authorizer
from isotherm.broker.metadata.internal_topics import is_internal
from isotherm.broker.server.requests.access_checks import Check, on_cluster
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.guarding import refusal_of_request
from isotherm.broker.server.requests.refusals import Items
from isotherm.broker.server.requests.served_api import Access, Api, Renamed
from isotherm.errors import InvalidRequestError, IsothermError
from isotherm.protocol.api_keys import ApiKey, VersionRange
from isotherm.protocol.entities import entity_of, item_class
from isotherm.types import TopicPartition

FIRST_FENCED_VERSION = 2
FIRST_BATCHED_VERSION = 4


class _Transaction(NamedTuple):
    transactional_id: str
    producer: ProducerIdAndEpoch
    verify_only: bool
    topics: tuple[Any, ...]

    @property
    def partitions(self) -> list[TopicPartition]:
        return [
            TopicPartition(topic.name, partition)
            for topic in self.topics
            for partition in topic.partitions
        ]


async def handle(context: RequestContext, request: Any) -> Any:
    transactions = _transactions(context, request)
    answers = [(transaction, _codes(context, transaction)) for transaction in transactions]
    committed = [await _committed(context, *answer) for answer in answers]
    made = _Results(context)
    results = [await made.of_transaction(*addition) for addition in committed]
    return _response(context, results)


async def _committed(
    context: RequestContext, transaction: _Transaction, codes: dict[TopicPartition, ErrorCode]
) -> tuple[_Transaction, dict[TopicPartition, ErrorCode]]:
    """The answer for a transaction, once its state is committed on the in-sync replicas."""
    coordinator = context.services.transaction_coordinator
    try:
        if (waiting := coordinator.uncommitted(transaction.transactional_id)) is not None:
            await waiting
    except IsothermError as error:
        return transaction, dict.fromkeys(codes, code_of(error))
    return transaction, codes


def _transactions(context: RequestContext, request: Any) -> list[_Transaction]:
    if context.header.api_version < FIRST_BATCHED_VERSION:
        producer = ProducerIdAndEpoch(
            request.v3_and_below_producer_id, request.v3_and_below_producer_epoch
        )
        transactional_id = request.v3_and_below_transactional_id
        topics = request.v3_and_below_topics
        return [_Transaction(transactional_id, producer, verify_only=False, topics=topics)]
    return [
        _Transaction(
            transaction.transactional_id,
            ProducerIdAndEpoch(transaction.producer_id, transaction.producer_epoch),
            transaction.verify_only,
            transaction.topics,
        )
        for transaction in request.transactions
    ]


def _codes(context: RequestContext, transaction: _Transaction) -> dict[TopicPartition, ErrorCode]:
    partitions = transaction.partitions
    if transaction.verify_only:
        return {partition: _verify(context, transaction, partition) for partition in partitions}
    refused = {
        partition: code
        for partition in partitions
        if (code := _refusal(context, partition)) is not None
    }
    if refused:
        not_attempted = ErrorCode.operation_not_attempted
        return {partition: refused.get(partition, not_attempted) for partition in partitions}
    return dict.fromkeys(partitions, _add(context, transaction, partitions))


def _refusal(context: RequestContext, partition: TopicPartition) -> ErrorCode | None:
    """The error of a partition that cannot be added, whatever the transaction's state."""
    is_of_client = context.header.api_version < FIRST_BATCHED_VERSION
    if is_of_client and is_internal(partition.topic):
        return ErrorCode.topic_authorization_failed
    topic = context.services.metadata.image.topics_by_name.get(partition.topic)
    if topic is None or not 0 <= partition.partition < len(topic.partitions):
        return ErrorCode.unknown_topic_or_partition
    return None


def _add(
    context: RequestContext, transaction: _Transaction, partitions: Sequence[TopicPartition]
) -> ErrorCode:
    try:
        _check_id(transaction)
        context.services.transaction_coordinator.add_partitions(
            transaction.transactional_id,
            transaction.producer,
            partitions,
            client_version=_client_version(context),
        )
    except IsothermError as error:
        return code_of(error)
    return ErrorCode.none


def _client_version(context: RequestContext) -> int:
    """Brokers add partitions for the records of clients of version 2, which do not ask."""
    is_of_client = context.header.api_version < FIRST_BATCHED_VERSION
    return TRANSACTION_V0 if is_of_client else TRANSACTION_V2


def _verify(
    context: RequestContext, transaction: _Transaction, partition: TopicPartition
) -> ErrorCode:
    try:
        _check_id(transaction)
        context.services.transaction_coordinator.check_partition_added(
            transaction.transactional_id, transaction.producer, partition
        )
    except IsothermError as error:
        return code_of(error)
    return ErrorCode.none


def _check_id(transaction: _Transaction) -> None:
    if not transaction.transactional_id:
        raise InvalidRequestError("the transactional id is empty")


class _Results:
    """The results of one request.

    Others are served meanwhile, and partitions with equal results share one object: a transaction
    stays whole, so the request is not split, and names up to thousands of partitions.
    """

    def __init__(self, context: RequestContext) -> None:
        self._version = context.header.api_version
        self._turns = AnswerTurns()
        result_type = context.response_type
        topics = "results_by_topic_v3_and_below"
        if self._version >= FIRST_BATCHED_VERSION:
            result_type = item_class(result_type, "results_by_transaction")
            topics = "topic_results"
        self._topic_type = item_class(result_type, topics)
        self._partition_type = item_class(self._topic_type, "results_by_partition")
        self._partitions: dict[tuple[int, ErrorCode], Any] = {}

    async def of_transaction(
        self, transaction: _Transaction, codes: Mapping[TopicPartition, ErrorCode]
    ) -> dict[str, Any]:
        topics = []
        for topic in transaction.topics:
            partitions: list[Any] = []
            for part in self._turns.parts(topic.partitions):
                await self._turns.take(len(part))
                partitions += [
                    self._of_partition(index, codes[TopicPartition(topic.name, index)])
                    for index in part
                ]
            await self._turns.take()
            fields = {"name": topic.name, "results_by_partition": partitions}
            topics.append(entity_of(self._topic_type, fields))
        return {"transactional_id": transaction.transactional_id, "topic_results": topics}

    def _of_partition(self, index: int, code: ErrorCode) -> Any:
        result = self._partitions.get((index, code))
        if result is None:
            fields = {
                "partition_index": index,
                "partition_error_code": API.shown_code(self._version, code),
            }
            result = self._partitions[index, code] = entity_of(self._partition_type, fields)
        return result


def _response(
    context: RequestContext,
    results: Sequence[Mapping[str, Any]],
    error_code: ErrorCode = ErrorCode.none,
) -> Any:
    if context.header.api_version < FIRST_BATCHED_VERSION:
        return context.response({"results_by_topic_v3_and_below": results[0]["topic_results"]})
    return context.response({"error_code": error_code, "results_by_transaction": results})


def _refuse(context: RequestContext, request: Any, error_code: ErrorCode) -> Any:
    """Answer every partition with `error_code`."""
    code = API.shown_code(context.header.api_version, error_code)
    results = [
        {
            "transactional_id": transaction.transactional_id,
            "topic_results": [
                {
                    "name": topic.name,
                    "results_by_partition": [
                        {"partition_index": partition, "partition_error_code": code}
                        for partition in topic.partitions
                    ],
                }
                for topic in transaction.topics
            ],
        }
        for transaction in _transactions(context, request)
    ]
    return _response(context, results, error_code)


_BY_BROKER = on_cluster(
    Operation.CLUSTER_ACTION,
    covers=["transactions/transactional_id", "transactions/topics/name"],
    shows=[
        "results_by_transaction/transactional_id",
        "results_by_transaction/topic_results/name",
    ],
)
_TRANSACTION = Check(
    Operation.WRITE, ResourceType.TRANSACTIONAL_ID, ["v3_and_below_transactional_id"]
)
_TOPICS = Check(
    Operation.WRITE,
    ResourceType.TOPIC,
    ["v3_and_below_topics/name"],
    shows=["results_by_topic_v3_and_below/name"],
)


def _guard(authorizer: Authorizer, api: Api, context: RequestContext, request: Any) -> Any:
    """If one partition may not be added, none is. Internal topics can never be added. Versions from
    4 on are sent only by brokers.
    """
    if context.header.api_version >= FIRST_BATCHED_VERSION:
        code = refusal_of_request(authorizer, context, request, _BY_BROKER)
        if code is None:
            return api.handle(context, request)
        return context.response({"error_code": code, "results_by_transaction": ()})
    code = refusal_of_request(authorizer, context, request, _TRANSACTION)
    if code is not None:
        return api.refuse(context, request, code)
    topics = request.v3_and_below_topics
    names = {topic.name for topic in topics}
    allowed = authorizer.allowed(
        context,
        _TOPICS.operation,
        ResourceType.TOPIC,
        (name for name in names if not is_internal(name)),
    )
    if names <= allowed:
        return api.handle(context, request)
    existing = context.services.metadata.image.topics_by_name
    return context.response(
        {
            "results_by_topic_v3_and_below": [
                {
                    "name": topic.name,
                    "results_by_partition": [
                        {
                            "partition_index": index,
                            "partition_error_code": ErrorCode.topic_authorization_failed
                            if topic.name not in allowed
                            else ErrorCode.operation_not_attempted
                            if topic.name in existing
                            and 0 <= index < len(existing[topic.name].partitions)
                            else ErrorCode.unknown_topic_or_partition,
                        }
                        for index in topic.partitions
                    ],
                }
                for topic in topics
            ]
        }
    )


API = Api(
    ApiKey.ADD_PARTITIONS_TO_TXN,
    VersionRange(0, 5),
    handle,
    access=Access([_BY_BROKER, _TRANSACTION, _TOPICS], guard=_guard),
    items=(Items(("transactions",), ("results_by_transaction",)),),
    renamed={
        ErrorCode.producer_fenced: Renamed(FIRST_FENCED_VERSION, ErrorCode.invalid_producer_epoch)
    },
    refuse_by=_refuse,
)
