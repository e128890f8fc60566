"""What descriptions of groups of the newer protocols have in common: assignments, which show
topics, and groups with an error."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.groups.assignors.assignor import Assignment
from isotherm.broker.metadata.access.acls import ResourceType
from isotherm.broker.metadata.access.authorizer import Authorizer
from isotherm.broker.server.requests.access_checks import Check
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.guarding import handle_items
from isotherm.broker.server.requests.item_refusal import then
from isotherm.broker.server.requests.served_api import Api

_TOPICS_NOT_SHOWN = (
    "The group has described topic(s) that the client is not authorized to describe."
)


def assignment_fields(context: RequestContext, assigned: Assignment) -> dict[str, Any]:
    """The assignment in a response, without deleted topics."""
    image = context.services.metadata.image
    return {
        "topic_partitions": [
            {
                "topic_id": topic_id,
                "topic_name": topic.name,
                "partitions": tuple(index for _, index in partitions),
            }
            for topic_id, partitions in itertools.groupby(
                sorted(assigned), key=lambda entry: entry[0]
            )
            if (topic := image.topic(topic_id)) is not None
        ]
    }


def error_fields(group_id: str, code: ErrorCode, message: str | None) -> dict[str, Any]:
    """A group that cannot be described."""
    return {
        "error_code": code,
        "error_message": message,
        "group_id": group_id,
        "group_state": "",
        "group_epoch": 0,
        "assignment_epoch": 0,
        "assignor_name": "",
        "members": (),
    }


def handle_visible(
    authorizer: Authorizer,
    api: Api,
    context: RequestContext,
    request: Any,
    groups: Check,
    topics: Check,
) -> Any:
    """Handle the groups that the client may describe, and hide a group completely if a member has
    a topic that the client may not describe."""

    def hidden(group: Any) -> Any:
        of_group = dataclasses.replace(request, group_ids=(group.group_id,))
        code = ErrorCode.topic_authorization_failed
        (refused,) = api.refuse_items(context, of_group, code, _TOPICS_NOT_SHOWN).groups
        return refused

    def visible(response: Any) -> Any:
        assigned = {group: _assigned_topics(group) for group in response.groups}
        allowed = authorizer.allowed(
            context, topics.operation, ResourceType.TOPIC, set[str]().union(*assigned.values())
        )
        shown = tuple(
            group if assigned[group] <= allowed else hidden(group) for group in response.groups
        )
        return dataclasses.replace(response, groups=shown)

    return then(handle_items(authorizer, api, context, request, groups), visible)


def _assigned_topics(group: Any) -> set[str]:
    return {
        partition.topic_name
        for member in group.members
        for field in ("assignment", "target_assignment")
        if hasattr(member, field)
        for partition in getattr(member, field).topic_partitions
    }
