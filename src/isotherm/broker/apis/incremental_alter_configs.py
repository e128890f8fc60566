"""IncrementalAlterConfigs (key 44).

Versions  0-1. 1 flexible.
Behaviour Sets or removes keys of a topic, of this broker or of all brokers (no name), and appends
          to or subtracts from lists. The changes of a resource are atomic, and durable before the
          answer. They are in effect when the request is answered, and again after a restart.
          validate_only checks and changes nothing. Keys of the broker that take effect only at a
          start get INVALID_REQUEST. Groups, client metrics and broker loggers can be altered too;
          levels of loggers are not stored and end with the process.
KIPs      226 dynamic broker keys · 339
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isotherm.broker.apis.config_alteration import answer_alteration
from isotherm.broker.metadata.access.acls import Operation
from isotherm.broker.metadata.configs.config_resources import ACCESS_TYPES
from isotherm.broker.metadata.controller.config_changes import ConfigChange, ConfigOperation
from isotherm.broker.server.requests.access_checks import Check, Denial, TypeBy
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.refusals import Items
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.errors import InvalidRequestError
from isotherm.protocol.api_keys import ApiKey, VersionRange

OPERATIONS = frozenset(ConfigOperation)


async def handle(context: RequestContext, request: Any) -> Any:
    return context.response(await answer_alteration(context, request, changes_of))


def changes_of(resource: Any, _current: Mapping[str, str]) -> list[ConfigChange]:
    for config in resource.configs:
        if config.config_operation not in OPERATIONS:
            raise InvalidRequestError(
                f"no such operation key={config.name} operation={config.config_operation}"
            )
    return [
        ConfigChange(config.name, ConfigOperation(config.config_operation), config.value)
        for config in resource.configs
    ]


API = Api(
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    VersionRange(0, 1),
    handle,
    access=Access(
        [
            Check(
                Operation.ALTER_CONFIGS,
                TypeBy("resource_type", ACCESS_TYPES),
                ["resources/resource_name"],
                Denial.REFUSES_ITEM,
            )
        ]
    ),
    items=(Items(("resources",), ("responses",)),),
    is_forwardable=True,
)
