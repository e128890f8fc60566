"""CreateAcls (key 30).

Versions  1-3. 1 pattern types · 2 flexible · 3 user resources.
Behaviour Creates the legal ACLs; an ACL that exists is no error. ACLs are records of the cluster's
          metadata, and apply from the next request on. Without an authorizer the answer is
          SECURITY_DISABLED. An undefined type or operation closes the connection, as in Kafka.
Not done  -
KIPs      140 · 290 pattern types
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.error_mapping import error_code as code_of
from isotherm.broker.metadata.access.acl_changes import AclBinding, has_unknown
from isotherm.broker.metadata.access.acls import Operation
from isotherm.broker.server.requests.access_checks import on_cluster
from isotherm.broker.server.requests.context import HangUpError, RequestContext
from isotherm.broker.server.requests.refusals import Items
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.protocol.api_keys import ApiKey, VersionRange

NOT_CONFIGURED = "No Authorizer is configured."


def is_malformed(request: Any) -> bool:
    return any(map(has_unknown, _bindings(request)))


def _bindings(request: Any) -> list[AclBinding]:
    return [
        AclBinding(
            creation.resource_type,
            creation.resource_name,
            creation.resource_pattern_type,
            creation.principal,
            creation.host,
            creation.operation,
            creation.permission_type,
        )
        for creation in request.creations
    ]


async def handle(context: RequestContext, request: Any) -> Any:
    services = context.services
    if services.authorizer is None:
        return API.refuse(context, request, ErrorCode.security_disabled, NOT_CONFIGURED)
    if is_malformed(request):
        raise HangUpError("an ACL has an unknown code")
    controller, bindings = services.controller, _bindings(request)
    errors = await services.run_control(lambda: controller.create_acls(bindings))
    return context.response(
        {
            "results": [
                {
                    "error_code": code_of(error) if error else ErrorCode.none,
                    "error_message": str(error) if error else None,
                }
                for error in errors
            ]
        }
    )


API = Api(
    ApiKey.CREATE_ACLS,
    VersionRange(1, 3),
    handle,
    access=Access(
        [on_cluster(Operation.ALTER, covers=["creations/resource_name", "creations/principal"])],
        unless=is_malformed,
    ),
    items=(Items(("creations",), ("results",), split_depth=0),),
    is_forwardable=True,
)
