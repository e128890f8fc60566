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
from isotherm.broker.server.requests.refusals import Items
from isotherm.broker.server.requests.served_api import Access, Api, Guard, Handler
from isotherm.protocol.api_keys import ApiKey, VersionRange

MEMBER_ID_LENGTH_MAX = 36  # that of a UUID as text


def share_api(
    key: ApiKey,
    versions: VersionRange,
    handle: Handler,
    checks: Sequence[Check],
    *,
    guard: Guard | None = None,
    unchecked: Mapping[str, str] | None = None,
    items: Sequence[Items] = (),
    is_asked_without_items: bool = False,
) -> Api:
    """An API that is served while share groups are on. `guard` checks in place of `checks`."""
    performed = guard or guard_of(Access(checks))

    def handle_if_on(context: RequestContext, request: Any) -> Any:
        return handle(context, request) if _is_on(context) else _refusal(api, context, request)

    def guard_if_on(authorizer: Authorizer, api: Api, context: RequestContext, request: Any) -> Any:
        if not _is_on(context):
            return _refusal(api, context, request)
        return performed(authorizer, api, context, request)

    api = Api(
        key,
        versions,
        handle_if_on,
        access=Access(checks, guard=guard_if_on, unchecked=unchecked or {}),
        items=items,
        is_asked_without_items=is_asked_without_items,
    )
    return api


def _is_on(context: RequestContext) -> bool:
    return context.services.metadata.image.features.get(SHARE_VERSION_FEATURE, 0) > 0


def _refusal(api: Api, context: RequestContext, request: Any) -> Any:
    code, message = ErrorCode.unsupported_version, "share groups are off: share.version=0"
    return api.refuse(context, request, code, message)
