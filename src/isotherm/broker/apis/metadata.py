"""Metadata (key 3).

Versions  0-13. 0 an empty list means all topics, from 1 on null does · 1 internal flag,
          controller · 2 cluster id · 4 auto-creation can be declined · 7 leader epochs · 8
          authorized operations · 9 flexible · 10 topic ids in responses · 12 in requests · 13
          error code for the whole response.
Behaviour Addresses are those of the request's listener. A broker without an endpoint on it is left
          out, and not named as leader. Missing topics are created first if
          auto.create.topics.enable and the client allow it, and the same response has them (Kafka
          answers a retriable error first). A topic that is named twice is answered once. Without an
          authorizer every operation is authorized. A partition on a failed log directory has
          LEADER_NOT_AVAILABLE, no leader, and this broker as offline replica. In a cluster the
          response has the unfenced brokers; a leader is named even if it is fenced. Replicas are
          offline if they are fenced, have no endpoint on the listener or lie in an offline
          directory. This broker is named as controller, since it forwards requests to the active
          one.
Not done  -
KIPs      4 · 78 · 430 authorized operations · 516 topic ids · 1102 re-bootstrap
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from isotherm.broker.error_mapping import error_code as code_of
from isotherm.broker.loop_turns import AnswerTurns
from isotherm.broker.metadata.access.acls import Operation, ResourceType
from isotherm.broker.metadata.access.authorizer import Authorizer
from isotherm.broker.metadata.controller.topic_rules import NewTopic, check_topic_name
from isotherm.broker.metadata.image import NO_LEADER, MetadataImage, PartitionImage, TopicImage
from isotherm.broker.metadata.internal_topics import is_internal
from isotherm.broker.server.requests.access_checks import on_topics
from isotherm.broker.server.requests.authorized_operations import (
    NOT_ASKED_FOR,
    cluster_operations,
    topic_operations,
)
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.guarding import topic_name
from isotherm.broker.server.requests.item_refusal import handle_allowed, then
from isotherm.broker.server.requests.listed_brokers import (
    controller_id,
    listed_brokers,
    partition_places,
)
from isotherm.broker.server.requests.refusals import Items
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.errors import InvalidRequestError, InvalidTopicError
from isotherm.protocol.api_keys import ApiKey, VersionRange
from isotherm.protocol.entities import entity_of, item_class
from isotherm.types import BrokerId

FIRST_NULL_FOR_ALL_VERSION = 1
FIRST_DECLINABLE_VERSION = 4
FIRST_LISTENER_ERROR_VERSION = 6
FIRST_TOPIC_ID_VERSION = 12


class TopicAnswer(NamedTuple):
    """The answer for one topic: the topic, or an error with the requested name or id."""

    topic: TopicImage | None
    error: ErrorCode = ErrorCode.none
    name: str | None = None
    topic_id: uuid.UUID | None = None


async def handle(context: RequestContext, request: Any) -> Any:
    version = context.header.api_version
    services = context.services
    asks_for_all = (
        request.topics is None if version >= FIRST_NULL_FOR_ALL_VERSION else not request.topics
    )
    if asks_for_all:
        answers = [TopicAnswer(topic) for topic in services.metadata.image.topics_by_name.values()]
        return _response(context, request, await _topics(context, answers, request))
    _check_ids_allowed(request, version)
    topics = _asked_for(request)
    refused: dict[str, ErrorCode] = {}
    if services.config.auto_create_topics_enable and _allows_creation(request, version):
        refused = await _create_missing(context, topics)
    image = services.metadata.image
    answers = [_answer(image, topic, refused) for topic in topics]
    return _response(context, request, await _topics(context, answers, request))


def _check_ids_allowed(request: Any, version: int) -> None:
    """Refuse ids before version 12. Versions 10 and 11 have a field for ids in requests, which
    Kafka does not read."""
    if version >= FIRST_TOPIC_ID_VERSION:
        return
    for topic in request.topics:
        if topic.name is None or getattr(topic, "topic_id", None) is not None:
            raise InvalidRequestError(
                f"this version cannot request topics by id api_version={version}"
            )


def _allows_creation(request: Any, version: int) -> bool:
    return version < FIRST_DECLINABLE_VERSION or bool(request.allow_auto_topic_creation)


def _asked_for(request: Any) -> list[Any]:
    """Each requested topic once.

    If the request has ids, only these count, and names are ignored.
    """
    by_id = {topic.topic_id: topic for topic in request.topics if getattr(topic, "topic_id", None)}
    return list(by_id.values()) or list(_distinct(request.topics))


def _distinct(topics: Iterable[Any]) -> Iterable[Any]:
    return {(topic.name, getattr(topic, "topic_id", None)): topic for topic in topics}.values()


async def _create_missing(context: RequestContext, topics: Iterable[Any]) -> dict[str, ErrorCode]:
    """Create the missing topics that are requested by name; returns the error codes of refused
    topics.
    """
    services = context.services
    names = {
        topic.name
        for topic in topics
        if not getattr(topic, "topic_id", None) and topic.name is not None
    }
    missing = sorted(names - set(services.metadata.image.topics_by_name))
    if not missing:
        return {}
    if services.auto_creation is not None:
        # The topic is answered as unknown until the controller's record of it arrives.
        services.auto_creation.ask(context, missing)
        return {}
    controller, new = services.controller, [NewTopic(name=name) for name in missing]
    results = await services.run_control(lambda: controller.create_topics(new))
    return {result.name: code_of(result.error) for result in results if result.error is not None}


def _answer(image: MetadataImage, entry: Any, refused: dict[str, ErrorCode]) -> TopicAnswer:
    topic_id = getattr(entry, "topic_id", None)
    if topic_id is not None or entry.name is None:
        topic = image.topics_by_id.get(topic_id) if topic_id is not None else None
        if topic is None:
            return TopicAnswer(None, ErrorCode.unknown_topic_id, topic_id=topic_id)
        return TopicAnswer(topic)
    topic = image.topics_by_name.get(entry.name)
    if topic is not None:
        return TopicAnswer(topic)
    return TopicAnswer(None, refused.get(entry.name) or _missing_code(entry.name), name=entry.name)


def _missing_code(name: str) -> ErrorCode:
    try:
        check_topic_name(name)
    except InvalidTopicError as error:
        return code_of(error)
    return ErrorCode.unknown_topic_or_partition


def _response(context: RequestContext, request: Any, topics: Sequence[Any]) -> Any:
    return context.response(
        {
            "brokers": [
                {
                    "node_id": broker.broker_id,
                    "host": broker.host,
                    "port": broker.port,
                    "rack": broker.rack,
                }
                for broker in listed_brokers(context)
            ],
            "cluster_id": context.services.cluster_id,
            "controller_id": controller_id(context),
            "topics": topics,
            "cluster_authorized_operations": cluster_operations(context)
            if getattr(request, "include_cluster_authorized_operations", False)
            else NOT_ASKED_FOR,
            "error_code": ErrorCode.none,
        }
    )


async def _topics(
    context: RequestContext, answers: Iterable[TopicAnswer], request: Any
) -> list[Any]:
    """The topics of the response. A short request may ask for all, and a topic has up to thousands
    of partitions, so others are served meanwhile."""
    turns = AnswerTurns()
    topic_type = item_class(context.response_type, "topics")
    partition_type = item_class(topic_type, "partitions")
    topics = []
    for answer in answers:
        partitions: list[Any] = []
        if (topic := answer.topic) is not None:
            for part in turns.parts(topic.partitions):
                await turns.take(len(part))
                partitions += [
                    entity_of(partition_type, _partition_fields(context, topic.name, partition))
                    for partition in part
                ]
        await turns.take()
        topics.append(entity_of(topic_type, _topic_fields(context, answer, request, partitions)))
    return topics


def _topic_fields(
    context: RequestContext, answer: TopicAnswer, request: Any, partitions: Sequence[Any]
) -> dict[str, Any]:
    topic = answer.topic
    name = topic.name if topic else answer.name
    shows_operations = getattr(request, "include_topic_authorized_operations", False)
    return {
        "error_code": answer.error,
        "name": name,
        "topic_id": topic.topic_id if topic else answer.topic_id,
        "is_internal": is_internal(name or ""),
        "partitions": partitions,
        "topic_authorized_operations": topic_operations(context, name or "")
        if shows_operations
        else NOT_ASKED_FOR,
    }


def _partition_fields(
    context: RequestContext, topic: str, partition: PartitionImage
) -> dict[str, Any]:
    places = partition_places(context, topic, partition)
    error_code = places.error
    if (
        error_code is ErrorCode.listener_not_found
        and context.header.api_version < FIRST_LISTENER_ERROR_VERSION
    ):
        error_code = ErrorCode.leader_not_available
    return {
        "error_code": error_code,
        "partition_index": partition.partition,
        "leader_id": places.leader,
        "leader_epoch": partition.leader_epoch,
        "replica_nodes": partition.replicas,
        "isr_nodes": partition.isr,
        "offline_replicas": places.offline_replicas,
    }


def _refuse(context: RequestContext, request: Any, error_code: ErrorCode) -> Any:
    """Answer every named topic with `error_code`, and nothing else, as in Kafka."""
    response = _refuse_topics(context, request, error_code)
    nothing = {"brokers": (), "controller_id": BrokerId(NO_LEADER), "cluster_id": None}
    fields = {name: value for name, value in nothing.items() if hasattr(response, name)}
    return dataclasses.replace(response, **fields)


def _refuse_topics(context: RequestContext, request: Any, error_code: ErrorCode) -> Any:
    """Answer every named topic with `error_code`, without its authorized operations."""
    if hasattr(request, "include_topic_authorized_operations"):
        request = dataclasses.replace(request, include_topic_authorized_operations=False)
    # Before version 12 the name in a response cannot be null.
    no_name = None if context.header.api_version >= FIRST_TOPIC_ID_VERSION else ""
    answers = (
        TopicAnswer(
            None,
            error_code,
            name=no_name if topic.name is None else topic.name,
            topic_id=getattr(topic, "topic_id", None),
        )
        for topic in _distinct(request.topics or ())
    )
    return _response(
        context, request, [_topic_fields(context, answer, request, ()) for answer in answers]
    )


_TOPICS = on_topics(
    Operation.DESCRIBE, ["topics/name", "topics/topic_id"], shows=["topics/name", "topics/topic_id"]
)
_CREATED = on_topics(Operation.CREATE, ["topics/name"], unless_cluster=Operation.CREATE)


def _guard(authorizer: Authorizer, api: Api, context: RequestContext, request: Any) -> Any:
    """A request for all topics gets the visible ones. Of named topics, one that is not visible, or
    that may not be created although it would have to be, gets an error.
    """
    if request.topics is None or (context.header.api_version == 0 and not request.topics):
        return then(
            api.handle(context, request),
            lambda response: dataclasses.replace(
                response, topics=_shown(authorizer, context, response.topics)
            ),
        )
    if context.header.api_version < FIRST_TOPIC_ID_VERSION and any(
        topic.name is None or getattr(topic, "topic_id", None) for topic in request.topics
    ):
        return api.handle(context, request)  # The request is invalid for any client.
    named = {name for topic in request.topics if (name := topic_name(context, topic)) is not None}
    allowed = authorizer.allowed(context, Operation.DESCRIBE, ResourceType.TOPIC, named)
    denied = (named - allowed) | _not_creatable(authorizer, context, request, allowed)

    def refusal_of(topic: Any) -> ErrorCode | None:
        if topic_name(context, topic) in denied:
            return ErrorCode.topic_authorization_failed
        return None

    return handle_allowed(
        dataclasses.replace(api, refuse_by=_refuse_topics), context, request, refusal_of
    )


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


API = Api(
    ApiKey.METADATA,
    VersionRange(0, 13),
    handle,
    access=Access([_TOPICS, _CREATED], guard=_guard),
    items=(Items(("topics",), ("topics",)),),
    refuse_by=_refuse,
)
