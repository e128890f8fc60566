"""DescribeAcls (key 29).

Versions  1-3. 1 pattern types · 2 flexible · 3 user resources.
Behaviour Returns the ACLs that the filter matches, by resource pattern. Without an authorizer the
          answer is SECURITY_DISABLED. An undefined type or operation closes the connection, as in
          Kafka.
Not done  -
KIPs      140 · 290 pattern types
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.apis.delete_acls import requested_filter
from isotherm.broker.metadata.access.acl_changes import has_unknown
from isotherm.broker.metadata.access.acls import Operation
from isotherm.broker.server.requests.access_checks import on_cluster
from isotherm.broker.server.requests.context import HangUpError, RequestContext
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.protocol.api_keys import ApiKey, VersionRange


def is_malformed(request: Any) -> bool:
    return has_unknown(requested_filter(request))


def handle(context: RequestContext, request: Any) -> Any:
    services = context.services
    if services.authorizer is None:
        message = "No Authorizer is configured on the broker"
        return API.refuse(context, request, ErrorCode.security_disabled, message)
    acl_filter = requested_filter(request)
    if has_unknown(acl_filter):
        raise HangUpError("an ACL filter has an unknown code")
    by_pattern: dict[tuple[int, str, int], list[dict[str, Any]]] = {}
    for acl in services.metadata.image.acls.values():
        if acl_filter.matches(acl):
            pattern = (acl.resource_type, acl.resource_name, acl.pattern_type)
            by_pattern.setdefault(pattern, []).append(
                {
                    "principal": acl.principal,
                    "host": acl.host,
                    "operation": acl.operation,
                    "permission_type": acl.permission_type,
                }
            )
    resources = [
        {
            "resource_type": resource_type,
            "resource_name": resource_name,
            "pattern_type": pattern_type,
            "acls": entries,
        }
        for (resource_type, resource_name, pattern_type), entries in by_pattern.items()
    ]
    return context.response(
        {"error_code": ErrorCode.none, "error_message": None, "resources": resources}
    )


API = Api(
    ApiKey.DESCRIBE_ACLS,
    VersionRange(1, 3),
    handle,
    access=Access(
        [
            on_cluster(
                Operation.DESCRIBE,
                covers=["resource_name_filter", "principal_filter"],
                shows=["resources/resource_name", "resources/acls/principal"],
            )
        ],
        unless=is_malformed,
    ),
)
