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

from collections.abc import Iterable
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
from isotherm.protocol.api_keys import ApiKey, VersionRange

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
    results = [_result(context, request, asked) for asked in request.resources]
    return context.response({"results": results})


def _result(context: RequestContext, request: Any, asked: Any) -> dict[str, Any]:
    try:
        described = _described(context.services, asked.resource_type, asked.resource_name)
        wanted = set(asked.configuration_keys or ())
        return {
            "error_code": ErrorCode.none,
            "error_message": None,
            "resource_type": asked.resource_type,
            "resource_name": asked.resource_name,
            "configs": [
                _config_fields(config, request)
                for config in described
                if not wanted or config.name in wanted
            ],
        }
    except RejectedError as error:
        return _error_fields(asked, code_of(error), str(error))


def _described(services: BrokerServices, kind: int, name: str) -> Iterable[DescribedConfig]:
    if kind == TOPIC:
        check_topic_name(name)
        metadata = services.metadata
        if name not in metadata.image.topics_by_name:
            raise UnknownTopicOrPartitionError(f"no such topic topic={name}")
        return describe_topic_config(
            metadata.topic_texts(name), metadata.topic_config(name), services.config
        )
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
