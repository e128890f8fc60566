"""DescribeUserScramCredentials (key 50).

Versions  0
Behaviour Returns the mechanisms and iterations of the named users, or of all users; nothing else of
          a credential is shown. A user without credentials gets RESOURCE_NOT_FOUND, a user that is
          named twice DUPLICATE_RESOURCE. The user with the cluster's own secret is left out.
Not done  -
KIPs      554
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.access.acls import Operation
from isotherm.broker.server.authentication.unknown_users import SECRET_USER
from isotherm.broker.server.requests.access_checks import on_cluster
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.protocol.api_keys import ApiKey, VersionRange


def handle(context: RequestContext, request: Any) -> Any:
    credentials = context.services.metadata.image.scram_credentials
    infos: dict[str, list[dict[str, Any]]] = {}
    for (mechanism, name), record in sorted(credentials.items()):
        if name == SECRET_USER:
            continue
        info = {"mechanism": mechanism, "iterations": record.iterations}
        infos.setdefault(name, []).append(info)
    counts = Counter([user.name for user in request.users or ()] or list(infos))
    results = [
        _described(name, infos[name])
        if name in infos and counts[name] == 1
        else _missing(name, counts[name])
        for name in counts
    ]
    return context.response(
        {"error_code": ErrorCode.none, "error_message": None, "results": results}
    )


def _described(user: str, infos: list[dict[str, Any]]) -> dict[str, Any]:
    no_error = {"error_code": ErrorCode.none, "error_message": None}
    return {"user": user, **no_error, "credential_infos": infos}


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


def _refuse(context: RequestContext, request: Any, code: ErrorCode) -> Any:
    """Answer the request and each user with `code`. As in Kafka the answer does not name the users:
    nothing about them has been looked up."""
    refused = {"user": "", "error_code": code, "error_message": None, "credential_infos": ()}
    results = [refused for _ in request.users or ()]
    return context.response({"error_code": code, "error_message": None, "results": results})


API = Api(
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS,
    VersionRange(0, 0),
    handle,
    access=Access([on_cluster(Operation.DESCRIBE, covers=["users/name"], shows=["results/user"])]),
    refuse_by=_refuse,
)
