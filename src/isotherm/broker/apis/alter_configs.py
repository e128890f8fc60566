"""AlterConfigs (key 33).

Versions  0-2. 2 flexible.
Behaviour What a topic, this broker or all brokers have set is replaced: keys that are not named go
          back to their defaults. Otherwise as IncrementalAlterConfigs, which clients should prefer.
Not done  -
KIPs      133
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.config_alteration import AlteredResource, alter_configs
from isotherm.broker.context import RequestContext
from isotherm.broker.controller.config_changes import ConfigChange, replacing_changes
from isotherm.broker.error_mapping import error_code as code_of
from isotherm.errors import InvalidRequestError
from isotherm.protocol.api_versions import ApiKey, response_class
from isotherm.protocol.entities import entity_of

NO_THROTTLE = datetime.timedelta()


async def handle(context: RequestContext, request: Any) -> Any:
    asked = [
        (resource.resource_type, resource.resource_name, partial(_changes, resource))
        for resource in request.resources
    ]
    controller = context.services.controller
    altered = await context.services.run_control(
        lambda: alter_configs(controller, asked, validate_only=request.validate_only)
    )
    return _response(context, altered)


def _changes(resource: Any, current: Mapping[str, str]) -> list[ConfigChange]:
    texts = {config.name: config.value for config in resource.configs}
    if len(texts) != len(resource.configs):
        raise InvalidRequestError("one key is set twice in one request")
    return replacing_changes(current, texts)


def _response(context: RequestContext, altered: list[AlteredResource]) -> Any:
    return _filled(
        context,
        [
            {
                "error_code": code_of(each.error) if each.error else ErrorCode.none,
                "error_message": str(each.error) if each.error else None,
                "resource_type": each.resource_type,
                "resource_name": each.name,
            }
            for each in altered
        ],
    )


def _filled(context: RequestContext, responses: list[dict[str, Any]]) -> Any:
    return entity_of(
        response_class(ApiKey.ALTER_CONFIGS, context.header.api_version),
        {"throttle_time": NO_THROTTLE, "responses": responses},
    )


def error_response(context: RequestContext, request: Any, error_code: ErrorCode) -> Any:
    """Every resource is answered with `error_code`."""
    return _filled(
        context,
        [
            {
                "error_code": error_code,
                "error_message": None,
                "resource_type": asked.resource_type,
                "resource_name": asked.resource_name,
            }
            for asked in request.resources
        ],
    )
