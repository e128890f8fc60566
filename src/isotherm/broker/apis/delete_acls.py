"""DeleteAcls (key 31).

Versions  1-3. 1 pattern types · 2 flexible · 3 user resources.
Behaviour SECURITY_DISABLED for every filter, as a broker of Kafka without an authorizer answers.
Not done  Access control.
KIPs      140 · 290 pattern types
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.requests.context import RequestContext
from isotherm.broker.requests.refusals import Items
from isotherm.broker.requests.served_api import Api
from isotherm.protocol.api_keys import ApiKey, VersionRange


def handle(context: RequestContext, request: Any) -> Any:
    return API.refuse(context, request, ErrorCode.security_disabled, "No Authorizer is configured.")


API = Api(
    ApiKey.DELETE_ACLS,
    VersionRange(1, 3),
    handle,
    items=(Items(("filters",), ("filter_results",), split_depth=0),),
)
