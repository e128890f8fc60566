"""AlterConfigs (key 33).

Versions  0-2. 2 flexible.
Behaviour Replaces the settings of a topic, of this broker or of all brokers. Keys that are not
          named return to their defaults. Otherwise as IncrementalAlterConfigs, which clients should
          prefer.
Not done  -
KIPs      133
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from isotherm.broker.apis.config_alteration import answer_alteration
from isotherm.broker.metadata.access.acls import Operation
from isotherm.broker.metadata.configs.config_resources import ACCESS_TYPES
from isotherm.broker.metadata.controller.config_changes import ConfigChange, replacing_changes
from isotherm.broker.server.requests.access_checks import Check, Denial, TypeBy
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.refusals import Items
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.errors import InvalidRequestError
from isotherm.protocol.api_keys import ApiKey, VersionRange


async def handle(context: RequestContext, request: Any) -> Any:
    return context.response(await answer_alteration(context, request, changes_of))


def changes_of(resource: Any, current: Mapping[str, str]) -> list[ConfigChange]:
    texts = {config.name: config.value for config in resource.configs}
    if len(texts) != len(resource.configs):
        raise InvalidRequestError("one key is set twice in one request")
    return replacing_changes(current, texts)


API = Api(
    ApiKey.ALTER_CONFIGS,
    VersionRange(0, 2),
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
