"""DeleteAcls (key 31).

Versions  1-3. 1 pattern types · 2 flexible · 3 user resources.
Behaviour Removes the ACLs that the filters match in one batch, and returns them. Without an
          authorizer the answer is SECURITY_DISABLED. An undefined type or operation closes the
          connection, as in Kafka.
Not done  -
KIPs      140 · 290 pattern types
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.apis.create_acls import NOT_CONFIGURED
from isotherm.broker.metadata.access.acl_changes import AclFilter, binding_of, has_unknown
from isotherm.broker.metadata.access.acls import Operation
from isotherm.broker.server.requests.access_checks import on_cluster
from isotherm.broker.server.requests.context import HangUpError, RequestContext
from isotherm.broker.server.requests.refusals import Items
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.protocol.api_keys import ApiKey, VersionRange


def requested_filter(acl_filter: Any) -> AclFilter:
    """The filter in a DeleteAcls or DescribeAcls request."""
    return AclFilter(
        acl_filter.resource_type_filter,
        acl_filter.resource_name_filter,
        acl_filter.pattern_type_filter,
        acl_filter.principal_filter,
        acl_filter.host_filter,
        acl_filter.operation,
        acl_filter.permission_type,
    )


def is_malformed(request: Any) -> bool:
    return any(has_unknown(requested_filter(filter_)) for filter_ in request.filters)


async def handle(context: RequestContext, request: Any) -> Any:
    services = context.services
    if services.authorizer is None:
        return API.refuse(context, request, ErrorCode.security_disabled, NOT_CONFIGURED)
    if is_malformed(request):
        raise HangUpError("an ACL filter has an unknown code")
    controller = services.controller
    filters = [requested_filter(filter_) for filter_ in request.filters]
    matched = await services.run_control(lambda: controller.delete_acls(filters))
    no_error = {"error_code": ErrorCode.none, "error_message": None}
    return context.response(
        {
            "filter_results": [
                {
                    **no_error,
                    "matching_acls": [{**no_error, **binding_of(acl)._asdict()} for acl in acls],
                }
                for acls in matched
            ]
        }
    )


API = Api(
    ApiKey.DELETE_ACLS,
    VersionRange(1, 3),
    handle,
    access=Access(
        [
            on_cluster(
                Operation.ALTER,
                covers=["filters/resource_name_filter", "filters/principal_filter"],
                shows=[
                    "filter_results/matching_acls/resource_name",
                    "filter_results/matching_acls/principal",
                ],
            )
        ],
        unless=is_malformed,
    ),
    items=(Items(("filters",), ("filter_results",), split_depth=0),),
    is_forwardable=True,
)
