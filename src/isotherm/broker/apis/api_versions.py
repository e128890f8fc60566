"""ApiVersions (key 18).

Versions  0-4. 1 throttle time · 3 flexible, client's software, features · 4 features with a
          minimum version of 0. The response header is version 0 in every version.
Behaviour The table is what every API declares of itself; Produce is shown from version 0 although it
          is served from 3, or old librdkafka sends everything uncompressed. A version that is not
          served is answered in version 0 with UNSUPPORTED_VERSION and the table.
          Client names outside KIP-511's pattern get INVALID_REQUEST.
          The features are those of `isotherm.broker.controller.features`. Up to version 3 those
          with a level 0 are not shown as supported, since clients then took 0 for an error.
Not done  Version 5 (cluster id and node id in the request).
KIPs      35 · 511 client software · 584 features · 1043 minimum versions of 0
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.controller.features import SUPPORTED_FEATURES
from isotherm.broker.requests.context import RequestContext
from isotherm.broker.requests.served_api import Api
from isotherm.errors import InvalidRequestError
from isotherm.protocol.api_keys import ApiKey, VersionRange, response_class
from isotherm.protocol.entities import entity_of

FIRST_SOFTWARE_VERSION = 3
FIRST_MIN_OF_ZERO_VERSION = 4

_VERSIONS = VersionRange(0, 4)
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def declare(others: Iterable[Api]) -> Api:
    """ApiVersions of a broker that serves these and itself."""
    rows = [_row(api.key, api.shown_versions) for api in others]
    rows.append(_row(ApiKey.API_VERSIONS, _VERSIONS))
    rows.sort(key=lambda row: row["api_key"])
    return Api(ApiKey.API_VERSIONS, _VERSIONS, partial(_handle, rows))


def _row(api_key: int, versions: VersionRange) -> dict[str, int]:
    return {"api_key": int(api_key), "min_version": versions.min, "max_version": versions.max}


def _handle(rows: Sequence[dict[str, int]], context: RequestContext, request: Any) -> Any:
    if context.header.api_version >= FIRST_SOFTWARE_VERSION and not (
        _SOFTWARE.fullmatch(request.client_software_name)
        and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        raise InvalidRequestError(
            f"the name or version of a client is not allowed name={request.client_software_name!r}"
            f" version={request.client_software_version!r}"
        )
    image = context.services.controller.image
    return context.response(
        {
            "error_code": ErrorCode.none,
            "api_keys": rows,
            "supported_features": [
                {"name": name, "min_version": levels.min, "max_version": levels.max}
                for name, levels in SUPPORTED_FEATURES.items()
                if levels.min > 0 or context.header.api_version >= FIRST_MIN_OF_ZERO_VERSION
            ],
            "finalized_features_epoch": image.end_offset - 1,
            "finalized_features": [
                {"name": name, "max_version_level": level, "min_version_level": level}
                for name, level in image.features.items()
            ],
        }
    )


def unsupported_version_response() -> Any:
    """For a version that is not served; to be written as version 0. As Kafka's, it tells of the
    versions of ApiVersions alone: the client asks again.
    """
    return entity_of(
        response_class(ApiKey.API_VERSIONS, 0),
        {
            "error_code": ErrorCode.unsupported_version,
            "api_keys": [_row(ApiKey.API_VERSIONS, _VERSIONS)],
        },
    )
