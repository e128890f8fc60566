"""DescribeConfigs (key 32).

Versions  1-4. 1 sources and synonyms · 3 types and documentation · 4 flexible.
Behaviour Topics, this broker and its loggers, groups, and subscriptions to clients' metrics. Each
          key tells its source (the resource, this broker or all of them while running, the broker's
          file, the default) and, if asked, the chain of synonyms behind it and its documentation. Asking for
          certain keys gives those that exist; null or none means all. Keys of the
          broker that take effect only at a start are read-only. The broker without a name is what
          was set for all brokers while running.
          Each resource has its own error.
Not done  Settings of the remote storage plug-ins (rsm.config., rlmm.config.) are not shown: they
          may hold secrets.
KIPs      133 · 226 synonyms · 412 loggers · 569 documentation · 714 · 848
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.configs.broker_loggers import logger_levels
from isotherm.broker.configs.config_description import (
    DescribedConfig,
    describe_broker_config,
    describe_client_metrics,
    describe_dynamic_defaults,
    describe_group_config,
    describe_loggers,
    describe_topic_config,
)
from isotherm.broker.configs.config_resources import ResourceType, check_this_broker
from isotherm.broker.controller.topic_rules import check_topic_name
from isotherm.broker.error_mapping import error_code as code_of
from isotherm.broker.metadata.image import ConfigResource
from isotherm.broker.requests.context import BrokerServices, RequestContext
from isotherm.broker.requests.refusals import Items
from isotherm.broker.requests.served_api import Api
from isotherm.config.definition import PASSWORD
from isotherm.errors import InvalidRequestError, RejectedError, UnknownTopicOrPartitionError
from isotherm.protocol.api_keys import ApiKey, VersionRange, response_class
from isotherm.protocol.entities import entity_of, item_class

TOPIC, BROKER = ResourceType.TOPIC, ResourceType.BROKER

# DescribeConfigsResponse.ConfigType
CONFIG_TYPES = {
    "BOOLEAN": 1,
    "STRING": 2,
    "INT": 3,
    "SHORT": 4,
    "LONG": 5,
    "DOUBLE": 6,
    "LIST": 7,
    "CLASS": 8,
    "PASSWORD": 9,
}


def handle(context: RequestContext, request: Any) -> Any:
    describing = _Describing(context, request)
    results = [describing.result(asked) for asked in request.resources]
    return context.response({"results": results})


class _Describing:
    """The results of one request. Topics with the same settings differ in their names alone, so
    the description of one is that of the others, with another name: a client may ask for thousands."""

    def __init__(self, context: RequestContext, request: Any) -> None:
        header = context.header
        response_type = response_class(header.api_key, header.api_version)
        self._result_type = item_class(response_type, "results")
        self._services = context.services
        self._request = request
        # By the settings and the keys asked for; at most as many as the request has resources.
        self._of_topics: dict[Hashable, Any] = {}

    def result(self, asked: Any) -> Any:
        try:
            if asked.resource_type == TOPIC:
                return self._topic(asked)
            described = _described(self._services, asked.resource_type, asked.resource_name)
            return self._made(asked, described)
        except RejectedError as error:
            return _error_fields(asked, code_of(error), str(error))

    def _topic(self, asked: Any) -> Any:
        name, metadata = asked.resource_name, self._services.metadata
        check_topic_name(name)
        if name not in metadata.image.topics_by_name:
            raise UnknownTopicOrPartitionError(f"no such topic topic={name}")
        texts = metadata.topic_texts(name)
        settings = frozenset(texts.items()), frozenset(asked.configuration_keys or ())
        known = self._of_topics.get(settings)
        if known is not None:
            return dataclasses.replace(known, resource_name=name)
        described = describe_topic_config(texts, metadata.topic_config(name), self._services.config)
        made = self._of_topics[settings] = self._made(asked, described)
        return made

    def _made(self, asked: Any, described: Iterable[DescribedConfig]) -> Any:
        wanted = set(asked.configuration_keys or ())
        return entity_of(
            self._result_type,
            {
                "error_code": ErrorCode.none,
                "error_message": None,
                "resource_type": asked.resource_type,
                "resource_name": asked.resource_name,
                "configs": [
                    _config_fields(config, self._request)
                    for config in described
                    if not wanted or config.name in wanted
                ],
            },
        )


def _described(services: BrokerServices, kind: int, name: str) -> Iterable[DescribedConfig]:
    """Of a resource that is no topic."""
    if kind == BROKER:
        if not name:
            return describe_dynamic_defaults(services.config)
        check_this_broker(name, services.config.node_id)
        return describe_broker_config(services.config)
    if kind == ResourceType.BROKER_LOGGER:
        check_this_broker(name, services.config.node_id)
        return describe_loggers(logger_levels())
    if kind in (ResourceType.GROUP, ResourceType.CLIENT_METRICS):
        if not name:
            raise InvalidRequestError(f"a resource has no name resource_type={kind}")
        texts = services.metadata.texts_of(ConfigResource(kind, name))
        describe = describe_group_config if kind == ResourceType.GROUP else describe_client_metrics
        return describe(texts, services.config)
    raise InvalidRequestError(f"resources of this type are not described resource_type={kind}")


def _config_fields(config: DescribedConfig, request: Any) -> dict[str, Any]:
    with_synonyms = request.include_synonyms
    with_documentation = getattr(request, "include_documentation", False)
    return {
        "name": config.name,
        "value": config.value,
        "read_only": config.read_only,
        "config_source": int(config.source),
        "is_sensitive": config.type_name == PASSWORD.name,
        "synonyms": [
            {"name": synonym.name, "value": synonym.value, "source": int(synonym.source)}
            for synonym in (config.synonyms if with_synonyms else ())
        ],
        "config_type": CONFIG_TYPES[config.type_name],
        "documentation": config.documentation if with_documentation else None,
    }


def _error_fields(asked: Any, error_code: ErrorCode, message: str | None) -> dict[str, Any]:
    return {
        "error_code": error_code,
        "error_message": message,
        "resource_type": asked.resource_type,
        "resource_name": asked.resource_name,
        "configs": (),
    }


API = Api(
    ApiKey.DESCRIBE_CONFIGS,
    VersionRange(1, 4),
    handle,
    items=(Items(("resources",), ("results",)),),
)
