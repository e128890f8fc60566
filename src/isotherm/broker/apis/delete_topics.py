"""DeleteTopics (key 20).

Versions  1-6. 3 TOPIC_DELETION_DISABLED (before: INVALID_REQUEST) · 4 flexible · 5 error messages ·
          6 by name or by topic id.
Behaviour Removes topics from the metadata in one durable batch before the answer. Their local files
          are deleted after file.delete.delay.ms, their remote segments in the background. Each
          topic has its own error. A topic that is named twice, or by name and id at once, gets
          INVALID_REQUEST. `__remote_log_metadata` gets POLICY_VIOLATION while the remote tier is in
          use.
Not done  The timeout has no effect: topics are deleted when the answer is sent.
KIPs      4 · 516 topic ids · 599 error messages
"""

from __future__ import annotations

import dataclasses
import uuid
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.error_mapping import error_code as code_of
from isotherm.broker.metadata.access.acls import Operation, ResourceType
from isotherm.broker.metadata.access.authorizer import Authorizer
from isotherm.broker.metadata.controller.topic_rules import DeletedTopic
from isotherm.broker.server.requests.access_checks import on_topics
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.guarding import topic_name
from isotherm.broker.server.requests.item_refusal import handle_allowed, then
from isotherm.broker.server.requests.refusals import Items
from isotherm.broker.server.requests.served_api import Access, Api, Charge, Renamed
from isotherm.errors import InvalidRequestError
from isotherm.protocol.api_keys import ApiKey, VersionRange

FIRST_DISABLED_ERROR_VERSION = 3
FIRST_TOPIC_ID_VERSION = 6


async def handle(context: RequestContext, request: Any) -> Any:
    topics = _requested_topics(context, request)
    # An empty name counts as a name. No topic has it, so the controller answers that it is unknown.
    names_and_ids = [
        topic
        for name, topic_id in topics
        if (name is None) != (topic_id is None)
        for topic in (name, topic_id)
        if topic is not None
    ]
    controller = context.services.controller
    results = iter(
        await context.services.run_control(
            lambda: controller.delete_topics(names_and_ids, charge=context.charge)
        )
    )
    ambiguous = InvalidRequestError("a topic must have either a name or an id")
    return _response(
        context,
        [
            next(results)
            if (name is None) != (topic_id is None)
            else DeletedTopic(name, topic_id, ambiguous)
            for name, topic_id in topics
        ],
    )


def _requested_topics(
    context: RequestContext, request: Any
) -> list[tuple[str | None, uuid.UUID | None]]:
    if context.header.api_version >= FIRST_TOPIC_ID_VERSION:
        return [(topic.name, topic.topic_id) for topic in request.topics]
    return [(name, None) for name in request.topic_names]


def _response(context: RequestContext, results: list[DeletedTopic]) -> Any:
    return context.response(
        {
            "responses": [
                {
                    "name": result.name,
                    "topic_id": result.topic_id,
                    "error_code": code_of(result.error) if result.error else ErrorCode.none,
                    "error_message": str(result.error) if result.error else None,
                }
                for result in results
            ],
        }
    )


_NAMES = ["topic_names", "topics/name", "topics/topic_id"]
_DESCRIBABLE = on_topics(Operation.DESCRIBE, _NAMES, unless_cluster=Operation.DELETE)
_DELETABLE = dataclasses.replace(_DESCRIBABLE, operation=Operation.DELETE)


def _guard(authorizer: Authorizer, api: Api, context: RequestContext, request: Any) -> Any:
    """A topic that may be described but not deleted keeps its name in the answer. A topic that may
    not be described is refused whether it exists or not.
    """
    services = context.services
    if not services.config.delete_topic_enable or authorizer.allows_cluster(
        context, Operation.DELETE, is_logged=False
    ):
        return api.handle(context, request)
    by_name = hasattr(request, "topic_names")
    names = set(
        request.topic_names
        if by_name
        else (name for topic in request.topics if (name := topic_name(context, topic)) is not None)
    )
    describable = authorizer.allowed(context, Operation.DESCRIBE, ResourceType.TOPIC, names)
    deletable = authorizer.allowed(context, Operation.DELETE, ResourceType.TOPIC, names)
    existing = services.metadata.image.topics_by_name

    def refusal_of(topic: Any) -> ErrorCode | None:
        if not by_name and (topic.name is None) == (topic.topic_id is None):
            return None  # Neither name nor id, or both: the handler refuses it.
        name = topic if by_name else topic_name(context, topic)
        if name is None or name in deletable or (name in describable and name not in existing):
            return None
        return ErrorCode.topic_authorization_failed

    def with_names(response: Any) -> Any:
        return dataclasses.replace(
            response,
            responses=tuple(
                _named(context, topic_response, describable)
                for topic_response in response.responses
            ),
        )

    handled = handle_allowed(api, context, request, refusal_of)
    return handled if by_name else then(handled, with_names)


def _named(context: RequestContext, result: Any, describable: set[str]) -> Any:
    if result.error_code is not ErrorCode.topic_authorization_failed or result.topic_id is None:
        return result
    name = topic_name(context, result)
    return dataclasses.replace(result, name=name if name in describable else None)


API = Api(
    ApiKey.DELETE_TOPICS,
    VersionRange(1, 6),
    handle,
    access=Access([_DESCRIBABLE, _DELETABLE], guard=_guard),
    items=(
        Items(("topics",), ("responses",)),
        Items(("topic_names",), ("responses",), named="name"),
    ),
    charge=Charge.MUTATIONS,
    first_strict_version=5,
    renamed={
        ErrorCode.topic_deletion_disabled: Renamed(
            FIRST_DISABLED_ERROR_VERSION, ErrorCode.invalid_request
        )
    },
    is_forwardable=True,
)
