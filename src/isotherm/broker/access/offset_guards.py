"""Guards of committed offsets. They check the group first, then the topics."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.access.acls import Operation, ResourceType
from isotherm.broker.access.authorizer import Authorizer
from isotherm.broker.access.guard import Guard
from isotherm.broker.access.item_refusal import handle_allowed, then
from isotherm.broker.access.topic_guards import REFUSED, handle_topics, refusal_by_name
from isotherm.broker.access.transaction_guards import allows_write
from isotherm.broker.requests.context import RequestContext
from isotherm.broker.requests.served_api import Api
from isotherm.broker.requests.split_requests import is_refusal
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
    """OffsetFetch needs DESCRIBE on groups and topics. If all topics are requested, only the visible ones are
    returned."""
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


def _offset_fetch_of_groups(
    authorizer: Authorizer, api: Api, context: RequestContext, request: Any
) -> Any:
    """Check the topics of each group, from version 8 on."""
    denied = [_denied_topics(authorizer, context, group.topics) for group in request.groups]
    groups = tuple(
        group
        if group.topics is None
        else dataclasses.replace(group, topics=_without(group.topics, refused))
        for group, refused in zip(request.groups, denied, strict=True)
    )
    asked_of_denied = dataclasses.replace(
        request,
        groups=tuple(
            dataclasses.replace(group, topics=refused)
            for group, refused in zip(request.groups, denied, strict=True)
        ),
    )
    refusals = api.refuse_items(context, asked_of_denied, REFUSED).groups

    def with_refusals(response: Any) -> Any:
        answered = tuple(
            each
            if is_refusal(each)
            else dataclasses.replace(
                each,
                topics=(
                    *(
                        each.topics
                        if group.topics is not None
                        else _visible(authorizer, context, each.topics)
                    ),
                    *refusal.topics,
                ),
            )
            for each, group, refusal in zip(response.groups, request.groups, refusals, strict=True)
        )
        return dataclasses.replace(response, groups=answered)

    return then(api.handle(context, dataclasses.replace(request, groups=groups)), with_refusals)


def _offset_fetch_of_group(
    authorizer: Authorizer, api: Api, context: RequestContext, request: Any
) -> Any:
    """Check the one group before version 8."""
    if not authorizer.allows(context, Operation.DESCRIBE, ResourceType.GROUP, request.group_id):
        return api.refuse(context, request, ErrorCode.group_authorization_failed)
    refused = _denied_topics(authorizer, context, request.topics)
    refusals = api.refuse_items(
        context, dataclasses.replace(request, topics=refused), REFUSED
    ).topics
    asked = request
    if request.topics is not None:
        asked = dataclasses.replace(request, topics=_without(request.topics, refused))

    def with_refusals(response: Any) -> Any:
        if is_refusal(response):
            return response
        topics = response.topics
        if request.topics is None:
            topics = _visible(authorizer, context, topics)
        return dataclasses.replace(response, topics=(*topics, *refusals))

    return then(api.handle(context, asked), with_refusals)


def _denied_topics(
    authorizer: Authorizer, context: RequestContext, topics: Iterable[Any] | None
) -> tuple[Any, ...]:
    asked = tuple(topics or ())
    refusal_of = refusal_by_name(authorizer, context, Operation.DESCRIBE, asked)
    return tuple(topic for topic in asked if refusal_of(topic) is not None)


def _without(topics: Iterable[Any], left_out: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(topic for topic in topics if topic not in left_out)


def _visible(
    authorizer: Authorizer, context: RequestContext, topics: Iterable[Any]
) -> tuple[Any, ...]:
    return _without(topics, _denied_topics(authorizer, context, topics))


GUARDS: Mapping[int, Guard] = {
    ApiKey.OFFSET_COMMIT: _of_group(Operation.READ),
    ApiKey.OFFSET_DELETE: _of_group(Operation.DELETE),
    ApiKey.OFFSET_FETCH: _offset_fetch,
    ApiKey.TXN_OFFSET_COMMIT: _txn_offset_commit,
}
