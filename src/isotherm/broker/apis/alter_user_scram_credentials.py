"""AlterUserScramCredentials (key 51).

Versions  0
Behaviour There are no credentials to delete (RESOURCE_NOT_FOUND, as in Kafka), and none is made
          (UNSUPPORTED_SASL_MECHANISM): it would protect nothing.
Not done  SASL.
KIPs      554
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.requests.context import RequestContext
from isotherm.broker.requests.served_api import Api
from isotherm.protocol.api_keys import ApiKey, VersionRange

_NONE_TO_DELETE = "Attempt to delete a user credential that does not exist"
_NONE_IS_MADE = "there is no SASL here, and a credential would protect nothing"


def handle(context: RequestContext, request: Any) -> Any:
    refusals = {
        each.name: (ErrorCode.resource_not_found, _NONE_TO_DELETE) for each in request.deletions
    }
    refusals |= {
        each.name: (ErrorCode.unsupported_sasl_mechanism, _NONE_IS_MADE)
        for each in request.upsertions
    }
    return _response(context, [(user, *refusal) for user, refusal in refusals.items()])


def _response(context: RequestContext, results: list[tuple[str, ErrorCode, str | None]]) -> Any:
    return context.response(
        {
            "results": [
                {"user": user, "error_code": code, "error_message": message}
                for user, code, message in results
            ],
        }
    )


def _refuse(context: RequestContext, request: Any, error_code: ErrorCode) -> Any:
    users = {each.name: None for each in (*request.deletions, *request.upsertions)}
    return _response(context, [(user, error_code, None) for user in users])


API = Api(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, VersionRange(0, 0), handle, refuse_by=_refuse)
