"""The assignment in an answer to a heartbeat of a consumer group or a share group."""

from __future__ import annotations

from typing import Any

from isotherm.broker.coordinators.groups.assignors.assignor import Assignment, by_topic
from isotherm.broker.loop_turns import AnswerTurns
from isotherm.broker.server.requests.context import RequestContext
from isotherm.protocol.entities import entity_of, item_class


async def heartbeat_assignment(context: RequestContext, assigned: Assignment) -> dict[str, Any]:
    """The field `assignment` of the response. Other work of the event loop has its turn between
    topics."""
    topics_type = item_class(item_class(context.response_type, "assignment"), "topic_partitions")
    turns = AnswerTurns()
    topics = []
    for topic_id, partitions in by_topic(assigned):
        await turns.take()
        fields = {"topic_id": topic_id, "partitions": tuple(partitions)}
        topics.append(entity_of(topics_type, fields))
    return {"topic_partitions": topics}
