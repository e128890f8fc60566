"""AlterConfigs (key 33).

Versions  0-2. 2 flexible.
Behaviour What a topic, this broker or all brokers have set is replaced: keys that are not named go
          back to their defaults. Otherwise as IncrementalAlterConfigs, which clients should prefer.
Not done  -
KIPs      133
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.config_alteration import answer_alteration, refusal_of_all
from isotherm.broker.context import RequestContext
from isotherm.broker.controller.config_changes import ConfigChange, replacing_changes
from isotherm.errors import InvalidRequestError
from isotherm.protocol.api_versions import ApiKey, response_class
from isotherm.protocol.entities import entity_of


async def handle(context: RequestContext, request: Any) -> Any:
    return _response(context, await answer_alteration(context, request, _changes))


def _changes(resource: Any, current: Mapping[str, str]) -> list[ConfigChange]:
    texts = {config.name: config.value for config in resource.configs}
    if len(texts) != len(resource.configs):
        raise InvalidRequestError("one key is set twice in one request")
    return replacing_changes(current, texts)


def _response(context: RequestContext, fields: dict[str, Any]) -> Any:
    return entity_of(response_class(ApiKey.ALTER_CONFIGS, context.header.api_version), fields)


def error_response(context: RequestContext, request: Any, error_code: ErrorCode) -> Any:
    """Every resource is answered with `error_code`."""
    return _response(context, refusal_of_all(request, error_code))
