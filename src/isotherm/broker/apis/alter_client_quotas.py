"""AlterClientQuotas (key 49).

Versions  0-1. 1 flexible.
Behaviour Quotas of users, client ids, both together, and addresses are set or taken away, durably,
          each entity as a whole or not at all. Those on produced bytes, fetched bytes and request
          time are in effect when it is answered (see isotherm.broker.quotas).
Not done  controller_mutation_rate and connection_creation_rate are kept and not enforced.
KIPs      13 · 124 request time · 546
"""

from __future__ import annotations

import datetime
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.context import RequestContext
from isotherm.broker.controller.client_quotas import QuotaChange
from isotherm.broker.controller.controller import Controller
from isotherm.broker.error_mapping import error_code as code_of
from isotherm.errors import InvalidRequestError, RejectedError
from isotherm.protocol.api_versions import ApiKey, response_class
from isotherm.protocol.entities import entity_of

NO_THROTTLE = datetime.timedelta()


async def handle(context: RequestContext, request: Any) -> Any:
    controller = context.services.controller
    errors = await context.services.run_control(lambda: _alter_all(controller, request))
    return _response(
        context,
        request,
        [(code_of(error), str(error)) if error else (ErrorCode.none, None) for error in errors],
    )


def _alter_all(controller: Controller, request: Any) -> list[RejectedError | None]:
    entities = [frozenset(_parts(entry)) for entry in request.entries]
    errors: list[RejectedError | None] = []
    for entry, entity in zip(request.entries, entities, strict=True):
        try:
            if entities.count(entity) > 1:
                raise InvalidRequestError("an entity is named twice in one request")
            controller.alter_client_quotas(
                _parts(entry),
                [QuotaChange(op.key, None if op.remove else op.value) for op in entry.ops],
                validate_only=request.validate_only,
            )
        except RejectedError as error:
            errors.append(error)
        else:
            errors.append(None)
    return errors


def _parts(entry: Any) -> list[tuple[str, str | None]]:
    return [(part.entity_type, part.entity_name) for part in entry.entity]


def _response(
    context: RequestContext, request: Any, outcomes: list[tuple[ErrorCode, str | None]]
) -> Any:
    return entity_of(
        response_class(ApiKey.ALTER_CLIENT_QUOTAS, context.header.api_version),
        {
            "throttle_time": NO_THROTTLE,
            "entries": [
                {
                    "error_code": error_code,
                    "error_message": message,
                    "entity": [
                        {"entity_type": kind, "entity_name": name} for kind, name in _parts(entry)
                    ],
                }
                for entry, (error_code, message) in zip(request.entries, outcomes, strict=True)
            ],
        },
    )


def error_response(context: RequestContext, request: Any, error_code: ErrorCode) -> Any:
    """Every entity is answered with `error_code`."""
    return _response(context, request, [(error_code, None)] * len(request.entries))
