"""CreateTopics (key 19).

Versions  2-7. 4 -1 stands for the broker's default number of partitions and replicas · 5 flexible,
          the topic's configuration in the response · 7 topic ids in the response.
Behaviour Creates the topics without an error in one durable batch before the answer. Each topic has
          its own error; a topic that is named twice is refused and answered once. validate_only
          checks and creates nothing. Names, numbers, assignments and settings are checked as in
          Kafka's controller, including the tiered-storage rules. More than 10,000 partitions in one
          request get POLICY_VIOLATION.
Not done  The timeout has no effect: topics exist when the answer is sent.
KIPs      4 · 464 defaults · 525 configuration in the response · 516 topic ids · 599 throttling:
          version 6 is refused, older versions wait
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.error_mapping import error_code as code_of
from isotherm.broker.loop_turns import AnswerTurns
from isotherm.broker.metadata.access.acls import Operation, ResourceType
from isotherm.broker.metadata.access.authorizer import Authorizer
from isotherm.broker.metadata.configs.config_description import (
    DescribedConfig,
    describe_topic_config,
)
from isotherm.broker.metadata.controller.topic_rules import CreatedTopic, NewTopic
from isotherm.broker.server.requests.access_checks import named_once, on_topics
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.guarding import handle_items
from isotherm.broker.server.requests.item_refusal import then
from isotherm.broker.server.requests.refusals import Items
from isotherm.broker.server.requests.served_api import Access, Api, Charge
from isotherm.protocol.api_keys import ApiKey, VersionRange
from isotherm.protocol.entities import entity_of, has_field, item_class
from isotherm.types import CLUSTER_METADATA_TOPIC

# The answer of a topic has the description of some forty settings: 0.4 ms.
ANSWERS_PER_TURN = 25


async def handle(context: RequestContext, request: Any) -> Any:
    topics = [_new_topic(topic) for topic in request.topics]
    controller = context.services.controller
    results = await context.services.run_control(
        lambda: controller.create_topics(
            topics, validate_only=request.validate_only, charge=context.charge
        )
    )
    answers: dict[str, Any] = {}
    turns = AnswerTurns(ANSWERS_PER_TURN)
    answering = _Answering(context)
    for result, topic in zip(results, topics, strict=True):
        await turns.take()
        answers[topic.name] = answering.answer(result, topic)
    return context.response({"topics": answers.values()})


def _new_topic(topic: Any) -> NewTopic:
    return NewTopic(
        name=topic.name,
        num_partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=tuple((a.partition_index, tuple(a.broker_ids)) for a in topic.assignments),
        configs={config.name: config.value for config in topic.configs},
    )


class _Answering:
    """The answers of one request.

    Topics share the descriptions of equal settings. A hundred thousand more objects would be
    collected on the event loop.
    """

    def __init__(self, context: RequestContext) -> None:
        self._config = context.services.config
        self._topic_type = item_class(context.response_type, "topics")
        self._has_configs = has_field(self._topic_type, "configs")
        # At most as many as there are settings, and values in the request.
        self._settings: dict[DescribedConfig, Any] = {}

    def answer(self, result: CreatedTopic, topic: NewTopic) -> Any:
        plan = result.plan
        if plan is None:
            assert result.error is not None
            fields = _error_fields(result.name, code_of(result.error), str(result.error))
            return entity_of(self._topic_type, fields)
        fields = {
            "name": result.name,
            "topic_id": plan.topic_id,
            "error_code": ErrorCode.none,
            "error_message": None,
            "num_partitions": len(plan.replicas),
            "replication_factor": len(plan.replicas[0]),
        }
        if self._has_configs:
            texts = {name: value for name, value in topic.configs.items() if value is not None}
            described = describe_topic_config(texts, plan.config, self._config)
            fields["configs"] = [self._setting(config) for config in described]
        return entity_of(self._topic_type, fields)

    def _setting(self, described: DescribedConfig) -> Any:
        made = self._settings.get(described)
        if made is None:
            made = self._settings[described] = entity_of(
                item_class(self._topic_type, "configs"),
                {
                    "name": described.name,
                    "value": described.value,
                    "read_only": described.read_only,
                    "config_source": int(described.source),
                    "is_sensitive": False,
                },
            )
        return made


def _error_fields(name: str, error_code: ErrorCode, message: str | None) -> dict[str, Any]:
    return {
        "name": name,
        "topic_id": None,
        "error_code": error_code,
        "error_message": message,
        "configs": (),
    }


def _judged(names: Sequence[str]) -> set[str]:
    return named_once(names) - {CLUSTER_METADATA_TOPIC}


_TOPICS = on_topics(
    Operation.CREATE, ["topics/name"], unless_cluster=Operation.CREATE, judged=_judged
)
_NOT_SHOWN = -1


def _guard(authorizer: Authorizer, api: Api, context: RequestContext, request: Any) -> Any:
    """Who may not describe the configurations of a created topic does not get its configuration."""

    def without_configs(response: Any) -> Any:
        describable = authorizer.allowed(
            context,
            Operation.DESCRIBE_CONFIGS,
            ResourceType.TOPIC,
            (topic.name for topic in response.topics if topic.error_code is ErrorCode.none),
            is_logged=False,
        )
        topics = tuple(
            _without_config(topic)
            if topic.error_code is ErrorCode.none and topic.name not in describable
            else topic
            for topic in response.topics
        )
        return dataclasses.replace(response, topics=topics)

    return then(handle_items(authorizer, api, context, request, _TOPICS), without_configs)


def _without_config(topic: Any) -> Any:
    """The created topic without its configuration, which versions from 5 on return if it may be
    described.
    """
    if not hasattr(topic, "topic_config_error_code"):
        return topic
    return dataclasses.replace(
        topic,
        topic_config_error_code=int(ErrorCode.topic_authorization_failed),
        num_partitions=_NOT_SHOWN,
        replication_factor=_NOT_SHOWN,
        configs=(),
    )


API = Api(
    ApiKey.CREATE_TOPICS,
    VersionRange(2, 7),
    handle,
    access=Access(
        [_TOPICS],
        guard=_guard,
        unchecked={
            "topics/topic_id": "of a topic that the client has created",
            "topics/assignments/broker_ids": "every client may name brokers",
        },
    ),
    items=(Items(("topics",), ("topics",), split_depth=0),),
    charge=Charge.MUTATIONS,
    first_strict_version=6,
    is_forwardable=True,
)
