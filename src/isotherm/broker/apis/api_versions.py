"""ApiVersions (key 18).

Versions  0-4. 1 throttle time · 3 flexible, client's software, features · 4 features with a
          minimum version of 0. The response header is version 0 in every version.
Behaviour The table has the versions that every API declares. Produce is shown from version 0
          although it is served from 3, because old librdkafka otherwise sends everything
          uncompressed. Dispatch answers a version of ApiVersions that is not supported. Client
          names outside KIP-511's pattern get INVALID_REQUEST. The features are those of
          `isotherm.broker.metadata.features`, and in a member of a cluster those of its
          registration. Up to version 3, features with a minimum version of 0 are left out, since
          older clients take 0 for an error. For the APIs that it forwards, a member shows the
          versions that the active controller serves too. It does so from its first forwarded
          request on.
Not done  Version 5 (cluster id and node id in the request).
KIPs      35 · 511 client software · 584 features · 1043 minimum versions of 0
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.features import SUPPORTED_FEATURES, SupportedLevels
from isotherm.broker.metadata.quorum.controller_connection import ControllerVersions
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.errors import InvalidRequestError
from isotherm.protocol.api_keys import ApiKey, VersionRange

FIRST_SOFTWARE_VERSION = 3
FIRST_MIN_OF_ZERO_VERSION = 4

_VERSIONS = VersionRange(0, 4)
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def declare(
    others: Collection[Api],
    features: Mapping[str, SupportedLevels] = SUPPORTED_FEATURES,
    controllers: ControllerVersions | None = None,
) -> Api:
    """ApiVersions of a broker that serves `others` and itself.

    If `controllers` is given, its versions bound the versions of forwarded APIs.
    """
    shown = {int(api.key): api.shown_versions for api in others} | {
        int(ApiKey.API_VERSIONS): _VERSIONS
    }
    forwarded = frozenset(int(api.key) for api in others if api.is_forwardable)

    def handle(context: RequestContext, request: Any) -> Any:
        served = None if controllers is None else controllers.served
        return _answer(
            context,
            request,
            shown if served is None else _shared_versions(shown, forwarded, served),
            features,
        )

    access = Access(no_guard="clients need it before they log in")
    return Api(ApiKey.API_VERSIONS, _VERSIONS, handle, access)


def _shared_versions(
    shown: Mapping[int, VersionRange],
    forwarded: Collection[int],
    controllers: Mapping[int, VersionRange],
) -> Mapping[int, VersionRange]:
    """`shown`, with each forwarded API reduced to the versions that both serve, and left out if
    there are none.

    Source: Kafka ApiVersionsResponse.intersectForwardableApis.
    """
    shared = dict(shown)
    for key in forwarded:
        ours, theirs = shown[key], controllers.get(key)
        both = theirs and VersionRange(max(ours.min, theirs.min), min(ours.max, theirs.max))
        if both and both.min <= both.max:
            shared[key] = both
        else:
            del shared[key]
    return shared


def _row(api_key: int, versions: VersionRange) -> dict[str, int]:
    return {"api_key": int(api_key), "min_version": versions.min, "max_version": versions.max}


def _answer(
    context: RequestContext,
    request: Any,
    shown: Mapping[int, VersionRange],
    features: Mapping[str, SupportedLevels],
) -> Any:
    if context.header.api_version >= FIRST_SOFTWARE_VERSION and not (
        _SOFTWARE.fullmatch(request.client_software_name)
        and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        raise InvalidRequestError(
            "the software name or version of the client is malformed"
            f" name={request.client_software_name!r} version={request.client_software_version!r}"
        )
    image = context.services.metadata.image
    return context.response(
        {
            "error_code": ErrorCode.none,
            "api_keys": [_row(key, shown[key]) for key in sorted(shown)],
            "supported_features": [
                {"name": name, "min_version": levels.min, "max_version": levels.max}
                for name, levels in features.items()
                if levels.min > 0 or context.header.api_version >= FIRST_MIN_OF_ZERO_VERSION
            ],
            "finalized_features_epoch": image.end_offset - 1,
            "finalized_features": [
                {"name": name, "max_version_level": level, "min_version_level": level}
                for name, level in image.features.items()
            ],
        }
    )
