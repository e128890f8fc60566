"""Guards of requests that create topics (CREATE), add partitions (ALTER) and delete topics
(DELETE).
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.access.acls import Operation, ResourceType
from isotherm.broker.metadata.access.authorizer import Authorizer
from isotherm.broker.server.access.guard import Guard
from isotherm.broker.server.access.item_refusal import handle_allowed, then
from isotherm.broker.server.access.topic_guards import REFUSED, topic_name
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.served_api import Api
from isotherm.protocol.api_keys import ApiKey
from isotherm.types import CLUSTER_METADATA_TOPIC

NOT_SHOWN = -1


def _create_topics(authorizer: Authorizer, api: Api, context: RequestContext, request: Any) -> Any:
    counts = Counter(topic.name for topic in request.topics)
    # Names that the handler refuses for another reason are not checked.
    names = {name for name, count in counts.items() if count == 1} - {CLUSTER_METADATA_TOPIC}
    denied = set[str]()
    # A denial on the cluster is not logged, because the topics' own
    # permissions may still allow them.
    if not authorizer.allows_cluster(context, Operation.CREATE, is_logged=False):
        denied = names - authorizer.allowed(context, Operation.CREATE, ResourceType.TOPIC, names)
    describable = authorizer.allowed(
        context, Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, names, is_logged=False
    )

    def without_configs(response: Any) -> Any:
        topics = tuple(
            _without_config(topic)
            if topic.error_code is ErrorCode.none and topic.name not in describable
            else topic
            for topic in response.topics
        )
        return dataclasses.replace(response, topics=topics)

    return then(
        handle_allowed(
            api, context, request, lambda topic: REFUSED if topic.name in denied else None
        ),
        without_configs,
    )


def _without_config(topic: Any) -> Any:
    """The created topic without its configuration, which versions from 5 on return if it may be
    described.
    """
    if not hasattr(topic, "topic_config_error_code"):
        return topic
    return dataclasses.replace(
        topic,
        topic_config_error_code=int(REFUSED),
        num_partitions=NOT_SHOWN,
        replication_factor=NOT_SHOWN,
        configs=(),
    )


def _delete_topics(authorizer: Authorizer, api: Api, context: RequestContext, request: Any) -> Any:
    """DeleteTopics needs DELETE.

    A topic that may be described but not deleted keeps its name in the answer. A topic that may not
    be described is refused whether it exists or not.
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
        else (name for each in request.topics if (name := topic_name(context, each)) is not None)
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
        return REFUSED

    def with_names(response: Any) -> Any:
        return dataclasses.replace(
            response,
            responses=tuple(_named(context, each, describable) for each in response.responses),
        )

    handled = handle_allowed(api, context, request, refusal_of)
    return handled if by_name else then(handled, with_names)


def _named(context: RequestContext, result: Any, describable: set[str]) -> Any:
    if result.error_code is not REFUSED or result.topic_id is None:
        return result
    name = topic_name(context, result)
    return dataclasses.replace(result, name=name if name in describable else None)


def _create_partitions(
    authorizer: Authorizer, api: Api, context: RequestContext, request: Any
) -> Any:
    counts = Counter(topic.name for topic in request.topics)
    names = {name for name, count in counts.items() if count == 1}
    denied = names - authorizer.allowed(context, Operation.ALTER, ResourceType.TOPIC, names)
    return handle_allowed(
        api, context, request, lambda topic: REFUSED if topic.name in denied else None
    )


GUARDS: Mapping[int, Guard] = {
    ApiKey.CREATE_PARTITIONS: _create_partitions,
    ApiKey.CREATE_TOPICS: _create_topics,
    ApiKey.DELETE_TOPICS: _delete_topics,
}
