"""Guards of groups. Membership needs READ, descriptions need DESCRIBE, deletion needs DELETE."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.apis import find_coordinator
from isotherm.broker.metadata.access.acls import Operation, ResourceType
from isotherm.broker.metadata.access.authorizer import Authorizer
from isotherm.broker.server.access.guard import Guard
from isotherm.broker.server.access.item_refusal import handle_allowed, then
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.served_api import Api
from isotherm.protocol.api_keys import ApiKey

_REFUSED = ErrorCode.group_authorization_failed

_TOPICS_NOT_SHOWN = (
    "The group has described topic(s) that the client is not authorized to describe."
)


def _needs_group(operation: Operation) -> Guard:
    def guard(authorizer: Authorizer, api: Api, context: RequestContext, request: Any) -> Any:
        if authorizer.allows(context, operation, ResourceType.GROUP, request.group_id):
            return api.handle(context, request)
        return api.refuse(context, request, _REFUSED)

    return guard


def _needs_each_group(operation: Operation) -> Guard:
    def guard(authorizer: Authorizer, api: Api, context: RequestContext, request: Any) -> Any:
        def refusal_of(group_id: str) -> ErrorCode | None:
            allows = authorizer.allows(context, operation, ResourceType.GROUP, group_id)
            return None if allows else _REFUSED

        return handle_allowed(api, context, request, refusal_of)

    return guard


_NEEDS_READ = _needs_group(Operation.READ)
_NEEDS_DESCRIBE = _needs_each_group(Operation.DESCRIBE)


def _sync(authorizer: Authorizer, api: Api, context: RequestContext, request: Any) -> Any:
    # From version 5 on a request without a protocol is invalid for any client, so the handler
    # answers it.
    if hasattr(request, "protocol_type") and None in (
        request.protocol_type,
        request.protocol_name,
    ):
        return api.handle(context, request)
    return _NEEDS_READ(authorizer, api, context, request)


def _heartbeat(authorizer: Authorizer, api: Api, context: RequestContext, request: Any) -> Any:
    """ConsumerGroupHeartbeat needs READ on the group, and DESCRIBE on the topics that it
    subscribes to by name.
    """
    if not authorizer.allows(context, Operation.READ, ResourceType.GROUP, request.group_id):
        return api.refuse(context, request, _REFUSED)
    names = set(request.subscribed_topic_names or ())
    if names - authorizer.allowed(context, Operation.DESCRIBE, ResourceType.TOPIC, names):
        return api.refuse(context, request, ErrorCode.topic_authorization_failed)
    return api.handle(context, request)


def _list(authorizer: Authorizer, api: Api, context: RequestContext, request: Any) -> Any:
    """List all groups with DESCRIBE on the cluster, else the groups that may be described."""
    if authorizer.allows_cluster(context, Operation.DESCRIBE, is_logged=False):
        return api.handle(context, request)

    def visible(response: Any) -> Any:
        names = authorizer.allowed(
            context,
            Operation.DESCRIBE,
            ResourceType.GROUP,
            (each.group_id for each in response.groups),
            is_logged=False,
        )
        groups = tuple(each for each in response.groups if each.group_id in names)
        return dataclasses.replace(response, groups=groups)

    return then(api.handle(context, request), visible)


def _describe_consumers(
    authorizer: Authorizer, api: Api, context: RequestContext, request: Any
) -> Any:
    """Hide a group completely if a member has a topic that the client may not describe."""

    def hidden(group: Any) -> Any:
        of_group = dataclasses.replace(request, group_ids=(group.group_id,))
        code = ErrorCode.topic_authorization_failed
        (refused,) = api.refuse_items(context, of_group, code, _TOPICS_NOT_SHOWN).groups
        return refused

    def visible(response: Any) -> Any:
        topics = {each: _assigned_topics(each) for each in response.groups}
        allowed = authorizer.allowed(
            context, Operation.DESCRIBE, ResourceType.TOPIC, set[str]().union(*topics.values())
        )
        groups = tuple(
            each if topics[each] <= allowed else hidden(each) for each in response.groups
        )
        return dataclasses.replace(response, groups=groups)

    return then(_NEEDS_DESCRIBE(authorizer, api, context, request), visible)


def _assigned_topics(group: Any) -> set[str]:
    return {
        each.topic_name
        for member in group.members
        for assignment in (member.assignment, member.target_assignment)
        for each in assignment.topic_partitions
    }


_COORDINATED = {
    find_coordinator.GROUP: (ResourceType.GROUP, _REFUSED),
    find_coordinator.TRANSACTION: (
        ResourceType.TRANSACTIONAL_ID,
        ErrorCode.transactional_id_authorization_failed,
    ),
}


def _find_coordinator(
    authorizer: Authorizer, api: Api, context: RequestContext, request: Any
) -> Any:
    found = _COORDINATED.get(getattr(request, "key_type", find_coordinator.GROUP))
    if found is None:
        return api.handle(context, request)
    kind, code = found

    def refusal_of(key: str) -> ErrorCode | None:
        return None if authorizer.allows(context, Operation.DESCRIBE, kind, key) else code

    if hasattr(request, "coordinator_keys"):
        return handle_allowed(api, context, request, refusal_of)
    if refusal_of(request.key) is None:
        return api.handle(context, request)
    return api.refuse(context, request, code)


GUARDS: Mapping[int, Guard] = {
    ApiKey.CONSUMER_GROUP_DESCRIBE: _describe_consumers,
    ApiKey.CONSUMER_GROUP_HEARTBEAT: _heartbeat,
    ApiKey.DELETE_GROUPS: _needs_each_group(Operation.DELETE),
    ApiKey.DESCRIBE_GROUPS: _NEEDS_DESCRIBE,
    ApiKey.FIND_COORDINATOR: _find_coordinator,
    ApiKey.HEARTBEAT: _NEEDS_READ,
    ApiKey.JOIN_GROUP: _NEEDS_READ,
    ApiKey.LEAVE_GROUP: _NEEDS_READ,
    ApiKey.LIST_GROUPS: _list,
    ApiKey.SYNC_GROUP: _sync,
}
