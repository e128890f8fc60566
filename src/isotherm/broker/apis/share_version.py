"""The APIs of share groups' clients are refused at level 0 of `share.version`, before any right is
checked, as in Kafka. Source: Kafka KafkaApis.isShareGroupProtocolEnabled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.access.authorizer import Authorizer
from isotherm.broker.metadata.features import SHARE_VERSION_FEATURE
from isotherm.broker.server.requests.access_checks import Check
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.guarding import guard_of
from isotherm.broker.server.requests.served_api import Access, Api, Guard

MEMBER_ID_LENGTH_MAX = 36  # that of a UUID as text


def refusal(api: Api, context: RequestContext, request: Any) -> Any | None:
    """The response to a request for share groups while they are off; None if they are on."""
    if context.services.metadata.image.features.get(SHARE_VERSION_FEATURE, 0) > 0:
        return None
    return api.refuse(
        context, request, ErrorCode.unsupported_version, "share groups are off: share.version=0"
    )


def access(
    checks: Sequence[Check],
    *,
    unchecked: Mapping[str, str] | None = None,
    guard: Guard | None = None,
) -> Access:
    """The access of an API of share groups: these checks, or `guard` in their place, if share
    groups are on."""
    performed = guard or guard_of(Access(checks))

    def guard_if_on(authorizer: Authorizer, api: Api, context: RequestContext, request: Any) -> Any:
        refused = refusal(api, context, request)
        return performed(authorizer, api, context, request) if refused is None else refused

    return Access(checks, guard=guard_if_on, unchecked=unchecked or {})
