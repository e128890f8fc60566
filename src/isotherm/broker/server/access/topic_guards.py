"""Guards of topics. Each topic of a request needs the permission; a topic without it is refused
alone.

A topic with an unknown id is left to the handler, which answers that it is unknown.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.access.acls import Operation, ResourceType
from isotherm.broker.metadata.access.authorizer import Authorizer
from isotherm.broker.metadata.controller.topic_rules import check_topic_name
from isotherm.broker.server.access.guard import Guard
from isotherm.broker.server.access.item_refusal import handle_allowed, then
from isotherm.broker.server.access.transaction_guards import allows_write
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.served_api import Api
from isotherm.errors import InvalidTopicError
from isotherm.protocol.api_keys import ApiKey
from isotherm.protocol.produce import ProduceRequest
from isotherm.record.batch_header import HEADER_SIZE, TRANSACTIONAL_FLAG, read_attributes

REFUSED = ErrorCode.topic_authorization_failed
FIRST_TOPIC_ID_VERSION_OF_METADATA = 12


def topic_name(context: RequestContext, topic: Any) -> str | None:
    """The name of a topic in a request, which has its name, its id or both.

    None for an unknown id.
    """
    name = getattr(topic, "topic", None) or getattr(topic, "name", None)
    topic_id: uuid.UUID | None = getattr(topic, "topic_id", None)
    if topic_id is None:
        return None if name is None else str(name)
    found = context.services.metadata.image.topics_by_id.get(topic_id)
    return None if found is None else found.name


def refusal_by_name(
    authorizer: Authorizer, context: RequestContext, operation: Operation, topics: Iterable[Any]
) -> Callable[[Any], ErrorCode | None]:
    """The function for `handle_allowed` that refuses topics without the permission."""
    return _refusal_of(context, _denied_names(authorizer, context, operation, topics))


def _denied_names(
    authorizer: Authorizer, context: RequestContext, operation: Operation, topics: Iterable[Any]
) -> set[str]:
    """The names without the permission. Each name is decided and logged once."""
    names = {name for topic in topics if (name := topic_name(context, topic)) is not None}
    return names - authorizer.allowed(context, operation, ResourceType.TOPIC, names)


def _refusal_of(context: RequestContext, denied: set[str]) -> Callable[[Any], ErrorCode | None]:
    return lambda topic: REFUSED if topic_name(context, topic) in denied else None


def handle_topics(
    authorizer: Authorizer, api: Api, context: RequestContext, request: Any, operation: Operation
) -> Any:
    denied = _denied_names(authorizer, context, operation, request.topics)
    if not denied:  # nearly always; the request is then handled as a whole
        return api.handle(context, request)
    return handle_allowed(api, context, request, _refusal_of(context, denied))


def _needs_topics(operation: Operation) -> Guard:
    def guard(authorizer: Authorizer, api: Api, context: RequestContext, request: Any) -> Any:
        return handle_topics(authorizer, api, context, request, operation)

    return guard


def _produce(
    authorizer: Authorizer, api: Api, context: RequestContext, request: ProduceRequest
) -> Any:
    if _is_transactional(request):
        transactional_id = request.transactional_id
        if transactional_id is None or not allows_write(authorizer, context, transactional_id):
            code = ErrorCode.transactional_id_authorization_failed
            return api.refuse(context, request, code)
    granted = authorizer.granted_topics(context, Operation.WRITE)
    for topic in request.topics:
        if (topic.topic_id or topic.name) not in granted:
            break
    else:
        return api.handle(context, request)
    denied = _denied_names(authorizer, context, Operation.WRITE, request.topics)
    if denied:
        return handle_allowed(api, context, request, _refusal_of(context, denied))
    known = [each for each in request.topics if topic_name(context, each) is not None]
    authorizer.grant(granted, [each.topic_id or each.name for each in known])
    return api.handle(context, request)


def _is_transactional(request: ProduceRequest) -> bool:
    # Loops instead of a generator, each step of which is a call: every produce request comes here.
    for topic in request.topics:
        for produced in topic.partitions:
            records = produced.records
            if (
                records is not None
                and len(records) >= HEADER_SIZE
                and read_attributes(records) & TRANSACTIONAL_FLAG
            ):
                return True
    return False


def _offset_for_leader_epoch(
    authorizer: Authorizer, api: Api, context: RequestContext, request: Any
) -> Any:
    if authorizer.allows_cluster(context, Operation.CLUSTER_ACTION, is_logged=False):
        return api.handle(context, request)
    return handle_topics(authorizer, api, context, request, Operation.DESCRIBE)


def _describe_producers(
    authorizer: Authorizer, api: Api, context: RequestContext, request: Any
) -> Any:
    legal = [topic for topic in request.topics if _is_legal(topic.name)]
    refusal_of = refusal_by_name(authorizer, context, Operation.READ, legal)
    return handle_allowed(
        api,
        context,
        request,
        lambda topic: refusal_of(topic) if _is_legal(topic.name) else None,
    )


def _is_legal(name: str) -> bool:
    try:
        check_topic_name(name)
    except InvalidTopicError:
        return False
    return True


def _metadata(authorizer: Authorizer, api: Api, context: RequestContext, request: Any) -> Any:
    """Metadata needs DESCRIBE.

    A request for all topics gets the visible ones. Of named topics, one that is not visible, or
    that may not be created although it would have to be, gets an error.
    """
    if request.topics is None or (context.header.api_version == 0 and not request.topics):
        return then(
            api.handle(context, request),
            lambda response: dataclasses.replace(
                response, topics=_shown(authorizer, context, response.topics)
            ),
        )
    if context.header.api_version < FIRST_TOPIC_ID_VERSION_OF_METADATA and any(
        topic.name is None or getattr(topic, "topic_id", None) for topic in request.topics
    ):
        return api.handle(context, request)  # The request is invalid for any client.
    named = {name for topic in request.topics if (name := topic_name(context, topic)) is not None}
    allowed = authorizer.allowed(context, Operation.DESCRIBE, ResourceType.TOPIC, named)
    denied = (named - allowed) | _not_creatable(authorizer, context, request, allowed)

    def refusal_of(topic: Any) -> ErrorCode | None:
        return REFUSED if topic_name(context, topic) in denied else None

    return handle_allowed(
        dataclasses.replace(api, refuse_by=_refuse_metadata(api)), context, request, refusal_of
    )


def _refuse_metadata(api: Api) -> Callable[[RequestContext, Any, ErrorCode], Any]:
    """Refuse topics without their authorized operations, and without the name if they were
    requested by id.
    """

    def refuse(context: RequestContext, request: Any, code: ErrorCode) -> Any:
        changed: dict[str, Any] = {}
        if hasattr(request, "include_topic_authorized_operations"):
            changed["include_topic_authorized_operations"] = False
        return api.refuse(context, dataclasses.replace(request, **changed), code)

    return refuse


def _shown(
    authorizer: Authorizer, context: RequestContext, topics: Iterable[Any]
) -> tuple[Any, ...]:
    names = {topic.name for topic in topics}
    shown = authorizer.allowed(
        context, Operation.DESCRIBE, ResourceType.TOPIC, names, is_logged=False
    )
    return tuple(topic for topic in topics if topic.name in shown)


def _not_creatable(
    authorizer: Authorizer, context: RequestContext, request: Any, names: Iterable[str]
) -> set[str]:
    services = context.services
    if not services.config.auto_create_topics_enable or not getattr(
        request, "allow_auto_topic_creation", True
    ):
        return set()
    missing = set(names) - services.metadata.image.topics_by_name.keys()
    if not missing or authorizer.allows_cluster(context, Operation.CREATE, is_logged=False):
        return set()
    return missing - authorizer.allowed(context, Operation.CREATE, ResourceType.TOPIC, missing)


GUARDS: Mapping[int, Guard] = {
    ApiKey.DELETE_RECORDS: _needs_topics(Operation.DELETE),
    ApiKey.DESCRIBE_PRODUCERS: _describe_producers,
    ApiKey.LIST_OFFSETS: _needs_topics(Operation.DESCRIBE),
    ApiKey.METADATA: _metadata,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _offset_for_leader_epoch,
    ApiKey.PRODUCE: _produce,
}
