"""Guards of committed offsets. They check the group first, then the topics."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from isotherm.broker.loop_turns import PART_SIZE, next_turn
from isotherm.broker.metadata.access.acls import Operation, ResourceType
from isotherm.broker.metadata.access.authorizer import Authorizer
from isotherm.broker.server.access.guard import Guard
from isotherm.broker.server.access.item_refusal import handle_allowed
from isotherm.broker.server.access.topic_guards import REFUSED, handle_topics, refusal_by_name
from isotherm.broker.server.access.transaction_guards import allows_write
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.served_api import Api
from isotherm.broker.server.requests.split_requests import is_refusal
from isotherm.protocol.api_keys import ApiKey


def _of_group(operation: Operation) -> Guard:
    """A guard that requires `operation` on the group, then READ on the topics."""

    def guard(authorizer: Authorizer, api: Api, context: RequestContext, request: Any) -> Any:
        if not authorizer.allows(context, operation, ResourceType.GROUP, request.group_id):
            return api.refuse(context, request, ErrorCode.group_authorization_failed)
        return handle_topics(authorizer, api, context, request, Operation.READ)

    return guard


def _txn_offset_commit(
    authorizer: Authorizer, api: Api, context: RequestContext, request: Any
) -> Any:
    if not allows_write(authorizer, context, request.transactional_id):
        code = ErrorCode.transactional_id_authorization_failed
        return api.refuse(context, request, code)
    if not authorizer.allows(context, Operation.READ, ResourceType.GROUP, request.group_id):
        return api.refuse(context, request, ErrorCode.group_authorization_failed)
    return handle_topics(authorizer, api, context, request, Operation.READ)


def _offset_fetch(authorizer: Authorizer, api: Api, context: RequestContext, request: Any) -> Any:
    """OffsetFetch needs DESCRIBE on groups and topics. If all topics are requested, only the
    visible ones are returned."""
    if not hasattr(request, "groups"):
        return _offset_fetch_of_group(authorizer, api, context, request)

    def refusal_of(group: Any) -> ErrorCode | None:
        if authorizer.allows(context, Operation.DESCRIBE, ResourceType.GROUP, group.group_id):
            return None
        return ErrorCode.group_authorization_failed

    guarded = dataclasses.replace(
        api,
        handle=lambda context, allowed: _offset_fetch_of_groups(authorizer, api, context, allowed),
    )
    return handle_allowed(guarded, context, request, refusal_of)


async def _offset_fetch_of_groups(
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
    refusals = api.refuse_items(context, asked_of_denied, REFUSED).groups
    response = await api.handle(context, dataclasses.replace(request, groups=groups))
    answered = []
    for each, group, refusal in zip(response.groups, request.groups, refusals, strict=True):
        if is_refusal(each):
            answered.append(each)
            continue
        topics = each.topics
        if group.topics is None:
            topics = await _visible(authorizer, context, topics)
        answered.append(dataclasses.replace(each, topics=(*topics, *refusal.topics)))
    return dataclasses.replace(response, groups=tuple(answered))


async def _offset_fetch_of_group(
    authorizer: Authorizer, api: Api, context: RequestContext, request: Any
) -> Any:
    """Check the one group before version 8."""
    if not authorizer.allows(context, Operation.DESCRIBE, ResourceType.GROUP, request.group_id):
        return api.refuse(context, request, ErrorCode.group_authorization_failed)
    checked = _checked(authorizer, context, request.topics or ())
    refusals = api.refuse_items(
        context, dataclasses.replace(request, topics=checked.denied), REFUSED
    ).topics
    asked = request
    if request.topics is not None:
        asked = dataclasses.replace(request, topics=checked.allowed)
    response = await api.handle(context, asked)
    if is_refusal(response):
        return response
    topics = response.topics
    if request.topics is None:
        topics = await _visible(authorizer, context, topics)
    return dataclasses.replace(response, topics=(*topics, *refusals))


class _Checked(NamedTuple):
    allowed: tuple[Any, ...]
    denied: tuple[Any, ...]


def _checked(authorizer: Authorizer, context: RequestContext, topics: Sequence[Any]) -> _Checked:
    refusal_of = refusal_by_name(authorizer, context, Operation.DESCRIBE, topics)
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
    shown: list[Any] = []
    for start in range(0, len(topics), PART_SIZE):
        if start:
            await next_turn()
        shown += _checked(authorizer, context, topics[start : start + PART_SIZE]).allowed
    return tuple(shown)


GUARDS: Mapping[int, Guard] = {
    ApiKey.OFFSET_COMMIT: _of_group(Operation.READ),
    ApiKey.OFFSET_DELETE: _of_group(Operation.DELETE),
    ApiKey.OFFSET_FETCH: _offset_fetch,
    ApiKey.TXN_OFFSET_COMMIT: _txn_offset_commit,
}
