"""What the APIs of share groups' state have in common: an answer for each share partition.

They are sent by brokers, and Kafka serves them at every level of `share.version`.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from operator import itemgetter
from typing import Any, TypeAlias

from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.shares.share_shard import ShareShard
from isotherm.broker.coordinators.shares.share_state_records import NO_TOPIC_ID, SharePartitionKey
from isotherm.broker.error_mapping import error_code, error_message
from isotherm.broker.loop_turns import AnswerTurns
from isotherm.broker.metadata.access.acls import Operation
from isotherm.broker.server.requests.access_checks import on_cluster
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.refusals import Items
from isotherm.broker.server.requests.served_api import Access
from isotherm.broker.share_partitions.state_requests import StateRequest, StateResult
from isotherm.errors import IsothermError

ACCESS = Access(
    [
        on_cluster(
            Operation.CLUSTER_ACTION,
            covers=["group_id", "topics/topic_id"],
            shows=["results/topic_id"],
        )
    ]
)
_Called: TypeAlias = tuple[ShareShard, StateResult]

ITEMS = (Items(("topics", "partitions"), ("results", "partitions")),)


async def answer_partitions(context: RequestContext, request: Any, kind: type[StateRequest]) -> Any:
    """The response to a request whose entries are of this kind.

    As in Kafka, a request without a group, or with a topic without partitions, gets no answers, and
    a partition that is named twice gets one.
    """
    if names_nothing(request):
        return context.response({"results": ()})
    turns = AnswerTurns()
    coordinator = context.services.share_coordinator
    results: dict[uuid.UUID, dict[int, _Called | IsothermError]] = {}
    for topic in request.topics:
        topic_id = topic.topic_id or NO_TOPIC_ID
        answers = results.setdefault(topic_id, {})
        for entry in topic.partitions:
            await turns.take()
            key = SharePartitionKey(request.group_id, topic_id, entry.partition)
            try:
                answers[entry.partition] = kind.of(key, entry).call(coordinator)
            except IsothermError as error:
                answers[entry.partition] = error
    return context.response(
        {
            "results": [
                {
                    "topic_id": topic_id,
                    "partitions": [
                        {"partition": partition, **await _fields(context, answer, kind)}
                        for partition, answer in sorted(answers.items(), key=itemgetter(0))
                    ],
                }
                for topic_id, answers in results.items()
            ]
        }
    )


def names_nothing(request: Any) -> bool:
    """Whether the request lacks a group, or one of its topics has no partitions."""
    return not request.group_id or not all(topic.partitions for topic in request.topics)


async def _fields(
    context: RequestContext, called: _Called | IsothermError, kind: type[StateRequest]
) -> Mapping[str, Any]:
    try:
        if isinstance(called, IsothermError):
            raise called
        shard, result = called
        await shard.wait_committed(context.services.share_coordinator.commit_timeout_s)
    except IsothermError as error:
        code, message = error_code(error), error_message(error)
        return {"error_code": code, "error_message": message, **kind.failed}
    return {"error_code": ErrorCode.none, "error_message": None, **kind.answer(result)}
