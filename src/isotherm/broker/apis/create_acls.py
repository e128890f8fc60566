"""CreateAcls (key 30).

Versions  1-3. 1 pattern types · 2 flexible · 3 user resources.
Behaviour SECURITY_DISABLED for every creation, as a broker of Kafka without an authorizer answers.
Not done  Access control.
KIPs      140 · 290 pattern types
"""

from __future__ import annotations

import datetime
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.context import RequestContext
from isotherm.protocol.api_versions import ApiKey, response_class
from isotherm.protocol.entities import entity_of

NO_THROTTLE = datetime.timedelta()


def handle(context: RequestContext, request: Any) -> Any:
    return _response(context, request, ErrorCode.security_disabled, "No Authorizer is configured.")


def _response(
    context: RequestContext, request: Any, error_code: ErrorCode, message: str | None
) -> Any:
    result = {"error_code": error_code, "error_message": message}
    return entity_of(
        response_class(ApiKey.CREATE_ACLS, context.header.api_version),
        {"throttle_time": NO_THROTTLE, "results": [result for _ in request.creations]},
    )


def error_response(context: RequestContext, request: Any, error_code: ErrorCode) -> Any:
    return _response(context, request, error_code, None)
