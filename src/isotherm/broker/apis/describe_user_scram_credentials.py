"""DescribeUserScramCredentials (key 50).

Versions  0
Behaviour There are none: no user is described where all are asked for, RESOURCE_NOT_FOUND for one
          that is named, and DUPLICATE_RESOURCE for one that is named twice, as in Kafka.
Not done  SASL.
KIPs      554
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.requests.context import RequestContext
from isotherm.broker.requests.served_api import Api
from isotherm.protocol.api_keys import ApiKey, VersionRange


def handle(context: RequestContext, request: Any) -> Any:
    counts = Counter(each.name for each in request.users or ())
    results = [_missing(name, counts[name]) for name in counts]
    return context.response(
        {"error_code": ErrorCode.none, "error_message": None, "results": results}
    )


def _missing(user: str, count: int) -> dict[str, Any]:
    code, message = (
        ErrorCode.resource_not_found,
        f"Attempt to describe a user credential that does not exist: {user}",
    )
    if count > 1:
        code = ErrorCode.duplicate_resource
        message = (
            f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
        )
    return {"user": user, "error_code": code, "error_message": message, "credential_infos": ()}


API = Api(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, VersionRange(0, 0), handle)
