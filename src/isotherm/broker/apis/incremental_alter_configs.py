"""IncrementalAlterConfigs (key 44).

Versions  0-1. 1 flexible.
Behaviour Keys of a topic, of this broker or of all brokers (no name) are set, dropped, or, when
          they are lists, appended to and subtracted from; each resource as a whole or not at all,
          durably before the answer. A change is in effect when it is answered, and again after a
          restart. validate_only checks and changes nothing. Keys of the broker that take effect
          only at a start, broker loggers, client metrics and groups get INVALID_REQUEST.
Not done  Levels of loggers.
KIPs      226 dynamic broker keys · 339
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.config_alteration import AlteredResource, alter_configs
from isotherm.broker.context import RequestContext
from isotherm.broker.controller.config_changes import ConfigChange, ConfigOperation
from isotherm.broker.error_mapping import error_code as code_of
from isotherm.errors import InvalidRequestError
from isotherm.protocol.api_versions import ApiKey, response_class
from isotherm.protocol.entities import entity_of

NO_THROTTLE = datetime.timedelta()
OPERATIONS = frozenset(ConfigOperation)


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


def _changes(resource: Any, _current: Mapping[str, str]) -> list[ConfigChange]:
    for config in resource.configs:
        if config.config_operation not in OPERATIONS:
            raise InvalidRequestError(
                f"no such operation key={config.name} operation={config.config_operation}"
            )
    return [
        ConfigChange(config.name, ConfigOperation(config.config_operation), config.value)
        for config in resource.configs
    ]


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
        response_class(ApiKey.INCREMENTAL_ALTER_CONFIGS, context.header.api_version),
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
