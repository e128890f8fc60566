"""DescribeShareGroupOffsets (key 90).

Versions  0-1. 1 lag
Behaviour The start offsets of share partitions, of all that the group has states of or of those
          that are named, with their lag: the records from the start offset on, without those whose
          delivery is over. A partition without a state has start offset -1 and lag -1. As in Kafka
          such an answer needs no group, and comes from any broker. A group that is named twice is
          answered once. Refused while share.version is 0.
Not done  -
KIPs      932 · 1226 lag
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.apis.share_version import share_api
from isotherm.broker.error_mapping import error_code, error_message
from isotherm.broker.loop_turns import AnswerTurns
from isotherm.broker.metadata.access.acls import Operation, ResourceType
from isotherm.broker.metadata.access.authorizer import Authorizer
from isotherm.broker.server.requests.access_checks import DENIAL_CODES, Check, Denial
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.guarding import handle_items
from isotherm.broker.server.requests.item_refusal import then
from isotherm.broker.server.requests.refusals import Items
from isotherm.broker.server.requests.served_api import Api
from isotherm.broker.share_partitions.share_group_states import DescribedOffset
from isotherm.errors import IsothermError
from isotherm.protocol.api_keys import ApiKey, VersionRange
from isotherm.protocol.entities import entity_of, item_class

GROUPS_AT_ONCE = 8
"""The most groups of a request that are described at a time."""


async def handle(context: RequestContext, request: Any) -> Any:
    requested = list(_requested(request.groups).items())
    turns = AnswerTurns()
    groups: list[dict[str, Any]] = []
    for start in range(0, len(requested), GROUPS_AT_ONCE):
        await turns.take()
        some = requested[start : start + GROUPS_AT_ONCE]
        groups += await asyncio.gather(
            *(_group(context, turns, group_id, topics) for group_id, topics in some)
        )
    return context.response({"groups": groups})


def _requested(groups: Sequence[Any]) -> dict[str, dict[str, list[int]] | None]:
    """The partitions of each group by topic, or None for all."""
    requested: dict[str, dict[str, list[int]] | None] = {}
    for group in groups:
        of_group = requested.setdefault(group.group_id, {})
        if of_group is None or group.topics is None:
            requested[group.group_id] = None
            continue
        for topic in group.topics:
            of_group.setdefault(topic.topic_name, []).extend(topic.partitions)
    return requested


async def _group(
    context: RequestContext,
    turns: AnswerTurns,
    group_id: str,
    requested: Mapping[str, Sequence[int]] | None,
) -> dict[str, Any]:
    """Others are served meanwhile, since a short request may be answered with the offsets of any
    number of partitions."""
    try:
        if requested is None:
            await context.services.group_coordinator.ensure_topic()
        offsets = await context.services.share_group_states.describe(group_id, requested)
    except IsothermError as error:
        return _group_fields(group_id, (), error_code(error), error_message(error))
    topic_type = item_class(item_class(context.response_type, "groups"), "topics")
    partition_type = item_class(topic_type, "partitions")
    topics = []
    for (name, topic_id), of_topic in itertools.groupby(
        offsets, key=lambda offset: (offset.topic, offset.topic_id)
    ):
        partitions: list[Any] = []
        for part in turns.parts(list(of_topic)):
            await turns.take(len(part))
            partitions += [entity_of(partition_type, _partition_fields(offset)) for offset in part]
        topics.append({"topic_name": name, "topic_id": topic_id, "partitions": partitions})
    return _group_fields(group_id, topics)


def _group_fields(
    group_id: str, topics: Any, code: ErrorCode = ErrorCode.none, message: str | None = None
) -> dict[str, Any]:
    return {"group_id": group_id, "topics": topics, "error_code": code, "error_message": message}


def _partition_fields(offset: DescribedOffset) -> dict[str, Any]:
    error = offset.error
    return {
        "partition_index": offset.partition,
        "start_offset": offset.start_offset,
        "leader_epoch": offset.leader_epoch,
        "lag": offset.lag,
        "error_code": ErrorCode.none if error is None else error_code(error),
        "error_message": None if error is None else error_message(error),
    }


_GROUPS = Check(Operation.DESCRIBE, ResourceType.GROUP, ["groups/group_id"], Denial.REFUSES_ITEM)
_TOPICS = Check(
    Operation.DESCRIBE,
    ResourceType.TOPIC,
    ["groups/topics/topic_name"],
    Denial.REFUSES_ITEM,
    shows=["groups/topics/topic_name", "groups/topics/topic_id"],
)


def _guard(authorizer: Authorizer, api: Api, context: RequestContext, request: Any) -> Any:
    """Topics that are named and denied have an error for each partition; those that are not named
    are left out."""

    def allowed(names: set[str]) -> set[str]:
        return authorizer.allowed(context, _TOPICS.operation, ResourceType.TOPIC, names)

    named = {topic.topic_name for group in request.groups for topic in group.topics or ()}
    denied = named - allowed(named)
    requested = _requested(request.groups)
    groups = tuple(
        group
        if group.topics is None
        else dataclasses.replace(
            group, topics=tuple(topic for topic in group.topics if topic.topic_name not in denied)
        )
        for group in request.groups
    )

    def visible(response: Any) -> Any:
        not_named = {
            topic.topic_name
            for group in response.groups
            if requested[group.group_id] is None
            for topic in group.topics
        }
        shown = allowed(not_named)
        return dataclasses.replace(
            response,
            groups=tuple(
                _visible(context, group, requested[group.group_id], denied, shown)
                for group in response.groups
            ),
        )

    request = dataclasses.replace(request, groups=groups)
    return then(handle_items(authorizer, api, context, request, _GROUPS), visible)


def _visible(
    context: RequestContext,
    group: Any,
    requested: Mapping[str, Sequence[int]] | None,
    denied: set[str],
    shown: set[str],
) -> Any:
    if group.error_code is not ErrorCode.none:
        return group
    if requested is None:
        topics = tuple(topic for topic in group.topics if topic.topic_name in shown)
        return dataclasses.replace(group, topics=topics)
    refused = [
        {
            "topic_name": name,
            "topic_id": None,
            "partitions": [
                {
                    "partition_index": partition,
                    "start_offset": -1,
                    "leader_epoch": 0,
                    "lag": -1,
                    "error_code": DENIAL_CODES[ResourceType.TOPIC],
                    "error_message": "Topic authorization failed.",
                }
                for partition in partitions
            ],
        }
        for name, partitions in requested.items()
        if name in denied
    ]
    (of_group,) = context.response({"groups": [_group_fields(group.group_id, refused)]}).groups
    return dataclasses.replace(group, topics=(*group.topics, *of_group.topics))


API = share_api(
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS,
    VersionRange(0, 1),
    handle,
    [_GROUPS, _TOPICS],
    guard=_guard,
    # It takes turns itself, by the partitions of its answer.
    items=(Items(("groups",), ("groups",), split_depth=0),),
)
