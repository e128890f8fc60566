"""AlterUserScramCredentials (key 51).

Versions  0
Behaviour Writes credentials as records of the cluster's metadata. They apply from the next login
          on; existing sessions continue. A request may change each user once.
Not done  -
KIPs      554
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.access.acls import Operation
from isotherm.broker.metadata.access.scram_changes import ScramDeletion, ScramUpsertion
from isotherm.broker.server.requests.access_checks import on_cluster
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.protocol.api_keys import ApiKey, VersionRange


async def handle(context: RequestContext, request: Any) -> Any:
    deletions = [ScramDeletion(deletion.name, deletion.mechanism) for deletion in request.deletions]
    upsertions = [
        ScramUpsertion(
            upsertion.name,
            upsertion.mechanism,
            upsertion.iterations,
            upsertion.salt,
            upsertion.salted_password,
        )
        for upsertion in request.upsertions
    ]
    controller = context.services.controller
    results = await context.services.run_control(
        lambda: controller.alter_scram_credentials(deletions, upsertions)
    )
    return _response(
        context,
        [(user, *(refused or (ErrorCode.none, None))) for user, refused in results.items()],
    )


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
    users = {change.name: None for change in (*request.deletions, *request.upsertions)}
    return _response(context, [(user, error_code, None) for user in users])


API = Api(
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
    VersionRange(0, 0),
    handle,
    access=Access(
        [
            on_cluster(
                Operation.ALTER,
                covers=["deletions/name", "upsertions/name"],
                shows=["results/user"],
            )
        ]
    ),
    refuse_by=_refuse,
    is_forwardable=True,
)
