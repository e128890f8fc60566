"""DescribeClientQuotas (key 48).

Versions  0-1. 1 flexible.
Behaviour Returns the quotas of the entities that pass every filter. With strict, an entity must not
          have a type that no filter names.
Not done  -
KIPs      546
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.error_mapping import error_code as code_of
from isotherm.broker.metadata.access.acls import Operation
from isotherm.broker.metadata.client_quotas import QuotaFilter, matching_quotas
from isotherm.broker.server.requests.access_checks import on_cluster
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.errors import RejectedError
from isotherm.protocol.api_keys import ApiKey, VersionRange


def handle(context: RequestContext, request: Any) -> Any:
    filters = [
        QuotaFilter(component.entity_type, component.match_type, component.match)
        for component in request.components
    ]
    quotas = context.services.metadata.image.client_quotas
    try:
        quota_entries = matching_quotas(quotas, filters, strict=request.strict)
    except RejectedError as error:
        return _response(context, code_of(error), str(error), None)
    entries = [
        {
            "entity": [
                {"entity_type": kind, "entity_name": name} for kind, name in _sorted_parts(entity)
            ],
            "values": [{"key": key, "value": value} for key, value in sorted(values.items())],
        }
        for entity, values in quota_entries
    ]
    return _response(context, ErrorCode.none, None, entries)


def _sorted_parts(entity: frozenset[tuple[str, str | None]]) -> list[tuple[str, str | None]]:
    return sorted(entity, key=lambda part: part[0])


def _response(
    context: RequestContext,
    error_code: ErrorCode,
    message: str | None,
    entries: list[dict[str, Any]] | None,
) -> Any:
    return context.response(
        {
            "error_code": error_code,
            "error_message": message,
            "entries": entries,
        }
    )


API = Api(
    ApiKey.DESCRIBE_CLIENT_QUOTAS,
    VersionRange(0, 1),
    handle,
    access=Access(
        [
            on_cluster(
                Operation.DESCRIBE_CONFIGS,
                covers=["components/match"],
                shows=["entries/entity/entity_name"],
            )
        ]
    ),
    fixed={"entries": None},
)
