"""DescribeConfigs (key 32).

Versions  1-4. 1 sources and synonyms · 3 types and documentation · 4 flexible.
Behaviour Describes topics, this broker and its loggers, groups, and client metrics subscriptions.
          Each key has its source: the resource, the dynamic settings of this broker or of all
          brokers, the broker's file, or the default. Synonyms and documentation are included on
          request. Of requested keys those that exist are returned; null or an empty list means all
          keys. Keys of the broker that take effect only at a start are read-only. A broker resource
          without a name has the dynamic settings of all brokers. Each resource has its own error.
Not done  Settings of the remote storage plug-ins (rsm.config., rlmm.config.) are not shown: they
          may hold secrets.
KIPs      133 · 226 synonyms · 412 loggers · 569 documentation · 714 · 848
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from isotherm.broker.error_mapping import error_code as code_of
from isotherm.broker.metadata.access.acls import Operation
from isotherm.broker.metadata.configs.broker_loggers import logger_levels
from isotherm.broker.metadata.configs.config_description import (
    UNKNOWN_TYPE,
    DescribedConfig,
    describe_broker_config,
    describe_client_metrics,
    describe_dynamic_defaults,
    describe_group_config,
    describe_loggers,
    describe_topic_config,
)
from isotherm.broker.metadata.configs.config_resources import (
    ACCESS_TYPES,
    ResourceType,
    check_this_broker,
)
from isotherm.broker.metadata.controller.topic_rules import check_topic_name
from isotherm.broker.metadata.image import ConfigResource
from isotherm.broker.server.requests.access_checks import Check, Denial, TypeBy
from isotherm.broker.server.requests.context import BrokerServices, RequestContext
from isotherm.broker.server.requests.refusals import Items
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.config.definition import PASSWORD
from isotherm.errors import InvalidRequestError, RejectedError, UnknownTopicOrPartitionError
from isotherm.protocol.api_keys import ApiKey, VersionRange, response_class
from isotherm.protocol.entities import entity_of, item_class
from isotherm.protocol.wire_types import SharedItems

TOPIC, BROKER = ResourceType.TOPIC, ResourceType.BROKER

# DescribeConfigsResponse.ConfigType
CONFIG_TYPES = {
    UNKNOWN_TYPE: 0,
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
    results = [describing.result(resource) for resource in request.resources]
    return context.response({"results": results})


class _Describing:
    """The results of one request.

    Resources with the same settings share one description, because a client may ask for thousands
    of resources that differ only in their names.
    """

    def __init__(self, context: RequestContext, request: Any) -> None:
        header = context.header
        response_type = response_class(header.api_key, header.api_version)
        self._result_type = item_class(response_type, "results")
        self._services = context.services
        self._request = request
        # `_described` by the settings, `_made` by the settings and the requested keys. Each has at
        # most as many entries as the request has resources.
        self._described: dict[Hashable, tuple[DescribedConfig, ...]] = {}
        self._made: dict[Hashable, Any] = {}

    def result(self, resource: Any) -> Any:
        try:
            return self._result(resource)
        except RejectedError as error:
            return _error_fields(resource, code_of(error), str(error))

    def _result(self, resource: Any) -> Any:
        source = _source(self._services, resource.resource_type, resource.resource_name)
        shown = source.depends_on, frozenset(resource.configuration_keys or ())
        made = self._made.get(shown)
        if made is None:
            made = self._made[shown] = self._make(resource, source)
        return dataclasses.replace(made, resource_name=resource.resource_name)

    def _make(self, resource: Any, source: _Source) -> Any:
        described = self._described.get(source.depends_on)
        if described is None:
            described = self._described[source.depends_on] = tuple(source.describe())
        names = set(resource.configuration_keys or ())
        made = entity_of(
            self._result_type,
            {
                "error_code": ErrorCode.none,
                "error_message": None,
                "resource_type": resource.resource_type,
                "resource_name": resource.resource_name,
                "configs": [
                    _config_fields(config, self._request)
                    for config in described
                    if not names or config.name in names
                ],
            },
        )
        return dataclasses.replace(made, configs=SharedItems(made.configs))


class _Source(NamedTuple):
    """The source of a resource's description. Equal `depends_on` means equal descriptions."""

    depends_on: Hashable
    describe: Callable[[], Iterable[DescribedConfig]]


def _source(services: BrokerServices, kind: int, name: str) -> _Source:
    """The source for a resource. Raises RejectedError if there is no such resource."""
    config, metadata = services.config, services.metadata
    if kind == TOPIC:
        check_topic_name(name)
        if name not in metadata.image.topics_by_name:
            raise UnknownTopicOrPartitionError(f"no such topic topic={name}")
        texts = metadata.topic_texts(name)
        return _Source(
            (kind, frozenset(texts.items())),
            lambda: describe_topic_config(texts, metadata.topic_config(name), config),
        )
    if kind == BROKER and not name:
        return _Source((kind, name), lambda: describe_dynamic_defaults(config))
    if kind == BROKER:
        check_this_broker(name, config.node_id)
        return _Source((kind, name), lambda: describe_broker_config(config))
    if kind == ResourceType.BROKER_LOGGER:
        check_this_broker(name, config.node_id)
        return _Source((kind, name), lambda: describe_loggers(logger_levels()))
    if kind in (ResourceType.GROUP, ResourceType.CLIENT_METRICS):
        if not name:
            raise InvalidRequestError(f"a resource has no name resource_type={kind}")
        texts = metadata.texts_of(ConfigResource(kind, name))
        describe = describe_group_config if kind == ResourceType.GROUP else describe_client_metrics
        return _Source((kind, frozenset(texts.items())), lambda: describe(texts, config))
    raise InvalidRequestError(f"resources of this type cannot be described resource_type={kind}")


def _config_fields(config: DescribedConfig, request: Any) -> dict[str, Any]:
    with_synonyms = request.include_synonyms
    with_documentation = getattr(request, "include_documentation", False)
    return {
        "name": config.name,
        "value": config.value,
        "read_only": config.read_only,
        "config_source": int(config.source),
        "is_sensitive": config.type_name in (PASSWORD.name, UNKNOWN_TYPE),
        "synonyms": [
            {"name": synonym.name, "value": synonym.value, "source": int(synonym.source)}
            for synonym in (config.synonyms if with_synonyms else ())
        ],
        "config_type": CONFIG_TYPES[config.type_name],
        "documentation": config.documentation if with_documentation else None,
    }


def _error_fields(resource: Any, error_code: ErrorCode, message: str | None) -> dict[str, Any]:
    return {
        "error_code": error_code,
        "error_message": message,
        "resource_type": resource.resource_type,
        "resource_name": resource.resource_name,
        "configs": (),
    }


API = Api(
    ApiKey.DESCRIBE_CONFIGS,
    VersionRange(1, 4),
    handle,
    access=Access(
        [
            Check(
                Operation.DESCRIBE_CONFIGS,
                TypeBy("resource_type", ACCESS_TYPES),
                ["resources/resource_name"],
                Denial.REFUSES_ITEM,
            )
        ]
    ),
    items=(Items(("resources",), ("results",)),),
)
