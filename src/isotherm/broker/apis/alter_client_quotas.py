"""AlterClientQuotas (key 49).

Versions  0-1. 1 flexible.
Behaviour Sets or removes quotas of users, client ids, both together, and addresses. The changes of
          an entity are durable and atomic. An entity that is named twice is refused and answered
          once. An address may be a host name, which must resolve. Quotas are in effect when the
          request is answered (see isotherm.broker.server.requests.quotas, mutation_quota,
          connection_quota).
Not done  Quotas of host names are stored and not enforced.
KIPs      13 · 124 request time · 546
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeAlias

from kio.schema.errors import ErrorCode

from isotherm.broker.error_mapping import error_code as code_of
from isotherm.broker.metadata.access.acls import Operation
from isotherm.broker.metadata.client_quotas import IP, QuotaChange
from isotherm.broker.metadata.controller.controller import Controller
from isotherm.broker.server.requests.access_checks import on_cluster
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.refusals import Items
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.errors import InvalidRequestError, RejectedError
from isotherm.protocol.api_keys import ApiKey, VersionRange

Parts: TypeAlias = tuple[tuple[str, str | None], ...]


async def handle(context: RequestContext, request: Any) -> Any:
    controller = context.services.controller
    unknown_hosts = await _unknown_hosts(request)
    errors = await context.services.run_control(
        lambda: _alter_all(controller, request, unknown_hosts)
    )
    return _response(
        context,
        {
            entity: (code_of(error), str(error)) if error else (ErrorCode.none, None)
            for entity, error in errors.items()
        },
    )


def _alter_all(
    controller: Controller, request: Any, unknown_hosts: frozenset[str]
) -> dict[Parts, RejectedError | None]:
    counts = Counter(frozenset(_parts(entry)) for entry in request.entries)
    errors: dict[Parts, RejectedError | None] = {}
    for entry in request.entries:
        parts = _parts(entry)
        try:
            if counts[frozenset(parts)] > 1:
                raise InvalidRequestError(f"an entity is named twice in one request entity={parts}")
            for kind, name in parts:
                if kind == IP and name in unknown_hosts:
                    raise InvalidRequestError(
                        f"neither an address nor a host name with an address ip={name}"
                    )
            controller.alter_client_quotas(
                parts,
                [QuotaChange(op.key, None if op.remove else op.value) for op in entry.ops],
                validate_only=request.validate_only,
            )
        except RejectedError as error:
            errors[parts] = error
        else:
            errors[parts] = None
    return errors


async def _unknown_hosts(request: Any) -> frozenset[str]:
    """The requested addresses that are neither an IP address nor a host name that resolves."""
    addresses = {
        name for entry in request.entries for kind, name in _parts(entry) if kind == IP and name
    }
    unknown = set()
    for name in sorted(addresses):
        try:
            ipaddress.ip_address(name)
        except ValueError:
            try:
                await asyncio.get_running_loop().getaddrinfo(name, None)
            except (OSError, UnicodeError):
                unknown.add(name)
    return frozenset(unknown)


def _parts(entry: Any) -> Parts:
    return tuple((part.entity_type, part.entity_name) for part in entry.entity)


def _response(
    context: RequestContext, outcomes: Mapping[Parts, tuple[ErrorCode, str | None]]
) -> Any:
    return context.response(
        {
            "entries": [
                {
                    "error_code": error_code,
                    "error_message": message,
                    "entity": [{"entity_type": kind, "entity_name": name} for kind, name in parts],
                }
                for parts, (error_code, message) in outcomes.items()
            ],
        }
    )


def _refuse(context: RequestContext, request: Any, error_code: ErrorCode) -> Any:
    """Answer every entity with `error_code`."""
    return _response(context, {_parts(entry): (error_code, None) for entry in request.entries})


API = Api(
    ApiKey.ALTER_CLIENT_QUOTAS,
    VersionRange(0, 1),
    handle,
    access=Access(
        [
            on_cluster(
                Operation.ALTER_CONFIGS,
                covers=["entries/entity/entity_name"],
                shows=["entries/entity/entity_name"],
            )
        ]
    ),
    items=(Items(("entries",), ("entries",)),),
    refuse_by=_refuse,
    is_forwardable=True,
)
