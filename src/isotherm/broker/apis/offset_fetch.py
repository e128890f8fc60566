"""OffsetFetch (key 9).

Versions  1-10. 2 a null list means all partitions, error of the whole response · 3 throttle time ·
          5 leader epoch · 6 flexible · 7 require stable · 8 several groups · 9 member epoch ·
          10 topic ids
Behaviour A partition without a committed offset gets offset -1 and no error, also if the group or
          `__consumer_offsets` does not exist. By id, the offset of an earlier topic of the same
          name is none.
Not done  -
KIPs      98 · 320 leader epoch · 447 require stable · 709 several groups · 848 · 1251 topic ids
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.groups.offset_coordinator import FetchedOffset
from isotherm.broker.error_mapping import error_code as code_of
from isotherm.broker.loop_turns import AnswerTurns
from isotherm.broker.metadata.access.acls import Operation, ResourceType
from isotherm.broker.metadata.access.authorizer import Authorizer
from isotherm.broker.server.requests.access_checks import Check, Denial, on_topics
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.guarding import handle_items, refusals_of_items
from isotherm.broker.server.requests.refusals import Items
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.broker.server.requests.split_requests import is_refusal
from isotherm.errors import IsothermError
from isotherm.protocol.api_keys import ApiKey, VersionRange
from isotherm.protocol.entities import entity_of, item_class
from isotherm.types import NO_LEADER_EPOCH, UNKNOWN_OFFSET, TopicPartition

FIRST_TOP_LEVEL_ERROR_VERSION = 2
FIRST_REQUIRE_STABLE_VERSION = 7
FIRST_BATCHED_VERSION = 8
FIRST_TOPIC_ID_VERSION = 10


class GroupRequest(NamedTuple):
    """One group of a request. `topics` are by name or by id; None means all."""

    group_id: str
    topics: Sequence[Any] | None
    member_id: str | None = None
    member_epoch: int = -1


async def handle(context: RequestContext, request: Any) -> Any:
    await context.services.group_coordinator.ensure_topic()
    groups = []
    # A short request may name one group with many offsets again and again.
    of_all_topics: dict[GroupRequest, dict[str, Any]] = {}
    for group in _group_requests(request):
        if group.topics is not None:
            groups.append(await _group_fields(context, request, group))
            continue
        if group not in of_all_topics:
            of_all_topics[group] = await _group_fields(context, request, group)
        groups.append(of_all_topics[group])
    return _response(context, groups)


def _group_requests(request: Any) -> list[GroupRequest]:
    if not hasattr(request, "groups"):
        return [GroupRequest(request.group_id, request.topics)]
    return [
        GroupRequest(
            group.group_id,
            group.topics,
            getattr(group, "member_id", None),
            getattr(group, "member_epoch", -1),
        )
        for group in request.groups
    ]


async def _group_fields(
    context: RequestContext, request: Any, group: GroupRequest
) -> dict[str, Any]:
    version = context.header.api_version
    require_stable = version >= FIRST_REQUIRE_STABLE_VERSION and request.require_stable
    coordinator = context.services.group_coordinator
    offsets = coordinator.offsets
    try:
        error = offsets.fetch_error(group.group_id, group.member_id, group.member_epoch)
        if group.topics is None:
            topics = await _all_topics(context, group.group_id, require_stable=require_stable)
        else:
            partitions = _partitions(context, group.topics)
            fetched = offsets.fetch(group.group_id, partitions, require_stable=require_stable)
            topics = [_topic_fields(context, topic, fetched) for topic in group.topics]
        if (waiting := coordinator.uncommitted(group.group_id)) is not None:
            await waiting
    except IsothermError as failure:
        return _error_fields(context, group, code_of(failure))
    if error is not ErrorCode.none:
        return _error_fields(context, group, error)
    return {"group_id": group.group_id, "topics": topics, "error_code": ErrorCode.none}


def _partitions(context: RequestContext, topics: Sequence[Any]) -> list[TopicPartition]:
    return [
        TopicPartition(name, index)
        for topic in topics
        if (name := _name(context, topic)) is not None
        for index in topic.partition_indexes
    ]


def _name(context: RequestContext, topic: Any) -> str | None:
    if context.header.api_version < FIRST_TOPIC_ID_VERSION:
        return str(topic.name)
    image = _topic_of_id(context, topic.topic_id)
    return None if image is None else str(image.name)


def _topic_of_id(context: RequestContext, topic_id: uuid.UUID | None) -> Any:
    return None if topic_id is None else context.services.metadata.image.topic(topic_id)


def _topic_fields(
    context: RequestContext, topic: Any, fetched: Mapping[TopicPartition, FetchedOffset]
) -> dict[str, Any]:
    name = _name(context, topic)
    unknown = FetchedOffset(None, ErrorCode.unknown_topic_id)
    topic_id = topic.topic_id if context.header.api_version >= FIRST_TOPIC_ID_VERSION else None
    return {
        **_identity(context, topic),
        "partitions": [
            _partition_fields(
                index,
                unknown
                if name is None
                else _of_topic(topic_id, fetched[TopicPartition(name, index)]),
            )
            for index in topic.partition_indexes
        ],
    }


def _of_topic(topic_id: uuid.UUID | None, fetched: FetchedOffset) -> FetchedOffset:
    """Without the offset if it was committed to an earlier topic of the same name."""
    committed = fetched.committed
    if committed is None or None in (topic_id, committed.topic_id):
        return fetched
    return fetched if committed.topic_id == topic_id else FetchedOffset(None)


def _identity(context: RequestContext, topic: Any) -> dict[str, Any]:
    has_id = context.header.api_version >= FIRST_TOPIC_ID_VERSION
    return {"topic_id": topic.topic_id} if has_id else {"name": topic.name}


async def _all_topics(
    context: RequestContext, group_id: str, *, require_stable: bool
) -> list[dict[str, Any]]:
    """The fields of all topics with offsets. Others are served meanwhile, since a short request may
    be answered with the offsets of any number of partitions.

    From version 10 on a deleted topic is left out, since it has no id.
    """
    offsets = context.services.group_coordinator.offsets
    turns = AnswerTurns()
    partition_type = _partition_type(context)
    of_topics: dict[str, list[Any]] = {}
    for part in turns.parts(offsets.committed_partitions(group_id)):
        await turns.take(len(part))
        fetched = offsets.fetch(group_id, part, require_stable=require_stable)
        for partition, offset in fetched.items():
            # The offset may have been deleted in an earlier turn.
            if offset.committed is not None or offset.error is not ErrorCode.none:
                fields = _partition_fields(partition.partition, offset)
                of_topics.setdefault(partition.topic, []).append(entity_of(partition_type, fields))
    topics = []
    for name in sorted(of_topics):
        await turns.take()
        image = context.services.metadata.image.topic(name)
        topic_id = None if image is None else image.topic_id
        if topic_id is None and context.header.api_version >= FIRST_TOPIC_ID_VERSION:
            continue
        partitions = sorted(of_topics[name], key=lambda partition: partition.partition_index)
        topics.append({"name": name, "topic_id": topic_id, "partitions": partitions})
    return topics


def _partition_type(context: RequestContext) -> type[Any]:
    topic_type = context.response_type
    if context.header.api_version >= FIRST_BATCHED_VERSION:
        topic_type = item_class(topic_type, "groups")
    return item_class(item_class(topic_type, "topics"), "partitions")


def _partition_fields(index: int, fetched: FetchedOffset) -> dict[str, Any]:
    committed = fetched.committed
    return {
        "partition_index": index,
        "committed_offset": UNKNOWN_OFFSET if committed is None else committed.offset,
        "committed_leader_epoch": NO_LEADER_EPOCH if committed is None else committed.leader_epoch,
        "metadata": "" if committed is None else committed.metadata,
        "error_code": fetched.error,
    }


def _error_fields(context: RequestContext, group: GroupRequest, error: ErrorCode) -> dict[str, Any]:
    """The fields of a failed group.

    Version 1 has no error of the whole response, so each partition gets it.
    """
    topics: list[dict[str, Any]] = []
    if context.header.api_version < FIRST_TOP_LEVEL_ERROR_VERSION:
        topics = [
            {
                "name": topic.name,
                "partitions": [
                    _partition_fields(index, FetchedOffset(None, error))
                    for index in topic.partition_indexes
                ],
            }
            for topic in group.topics or ()
        ]
    return {"group_id": group.group_id, "topics": topics, "error_code": error}


def _response(context: RequestContext, groups: list[dict[str, Any]]) -> Any:
    version = context.header.api_version
    fields = {"groups": groups} if version >= FIRST_BATCHED_VERSION else groups[0]
    return context.response(fields)


def _refuse(context: RequestContext, request: Any, error_code: ErrorCode) -> Any:
    """Answer every group with `error_code`."""
    return _response(
        context, [_error_fields(context, group, error_code) for group in _group_requests(request)]
    )


_GROUPS = Check(
    Operation.DESCRIBE,
    ResourceType.GROUP,
    ["groups/group_id", "group_id"],
    Denial.REFUSES_ITEM,
)
_TOPICS = on_topics(
    Operation.DESCRIBE,
    ["topics/name", "groups/topics/name", "groups/topics/topic_id"],
    shows=["topics/name", "groups/topics/name", "groups/topics/topic_id"],
)


def _guard(authorizer: Authorizer, api: Api, context: RequestContext, request: Any) -> Any:
    """If all topics of a group are requested, only the visible ones are returned."""
    guard = _guard_groups if hasattr(request, "groups") else _guard_group
    guarded = dataclasses.replace(
        api, handle=lambda context, allowed: guard(authorizer, api, context, allowed)
    )
    return handle_items(authorizer, guarded, context, request, _GROUPS)


async def _guard_groups(
    authorizer: Authorizer, api: Api, context: RequestContext, request: Any
) -> Any:
    """Check the topics of each group, from version 8 on."""
    checked = [_checked(authorizer, context, group.topics or ()) for group in request.groups]
    groups = tuple(
        group if group.topics is None else dataclasses.replace(group, topics=topics.allowed)
        for group, topics in zip(request.groups, checked, strict=True)
    )
    asked_of_denied = dataclasses.replace(
        request,
        groups=tuple(
            dataclasses.replace(group, topics=topics.denied)
            for group, topics in zip(request.groups, checked, strict=True)
        ),
    )
    refusals = api.refuse_items(context, asked_of_denied, _TOPIC_DENIED).groups
    response = await api.handle(context, dataclasses.replace(request, groups=groups))
    answered = []
    for answer, group, refusal in zip(response.groups, request.groups, refusals, strict=True):
        if is_refusal(answer):
            answered.append(answer)
            continue
        topics = answer.topics
        if group.topics is None:
            topics = await _visible(authorizer, context, topics)
        answered.append(dataclasses.replace(answer, topics=(*topics, *refusal.topics)))
    return dataclasses.replace(response, groups=tuple(answered))


async def _guard_group(
    authorizer: Authorizer, api: Api, context: RequestContext, request: Any
) -> Any:
    """Check the topics of the one group before version 8."""
    checked = _checked(authorizer, context, request.topics or ())
    refusals = api.refuse_items(
        context, dataclasses.replace(request, topics=checked.denied), _TOPIC_DENIED
    ).topics
    allowed_request = request
    if request.topics is not None:
        allowed_request = dataclasses.replace(request, topics=checked.allowed)
    response = await api.handle(context, allowed_request)
    if is_refusal(response):
        return response
    topics = response.topics
    if request.topics is None:
        topics = await _visible(authorizer, context, topics)
    return dataclasses.replace(response, topics=(*topics, *refusals))


_TOPIC_DENIED = ErrorCode.topic_authorization_failed


class _Checked(NamedTuple):
    allowed: tuple[Any, ...]
    denied: tuple[Any, ...]


def _checked(authorizer: Authorizer, context: RequestContext, topics: Sequence[Any]) -> _Checked:
    refusal_of = refusals_of_items(authorizer, context, None, _TOPICS, topics)
    if refusal_of is None:
        return _Checked(tuple(topics), ())
    allowed: list[Any] = []
    denied: list[Any] = []
    for topic in topics:
        (allowed if refusal_of(topic) is None else denied).append(topic)
    return _Checked(tuple(allowed), tuple(denied))


async def _visible(
    authorizer: Authorizer, context: RequestContext, topics: Sequence[Any]
) -> tuple[Any, ...]:
    """The topics of a response for all topics that the client may see.

    The request was not split, because it names no topic, and a group may have offsets of any number
    of topics. So a part of them is checked in each turn of the loop (docs/decisions/0021).
    """
    turns = AnswerTurns()
    shown: list[Any] = []
    for part in turns.parts(topics):
        await turns.take(len(part))
        shown += _checked(authorizer, context, part).allowed
    return tuple(shown)


API = Api(
    ApiKey.OFFSET_FETCH,
    VersionRange(1, 10),
    handle,
    access=Access([_GROUPS, _TOPICS], guard=_guard),
    items=(
        Items(
            ("groups", "topics", "partition_indexes"),
            ("groups", "topics", "partitions"),
            answered_once=True,
        ),
        Items(("topics", "partition_indexes"), ("topics", "partitions")),
    ),
    fixed={"committed_offset": UNKNOWN_OFFSET, "metadata": ""},
    refuse_by=_refuse,
)
