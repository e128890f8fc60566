"""ApiVersions (key 18).

Versions  0-4. 1 throttle time · 3 flexible, client's software, features · 4 features with a
          minimum version of 0. The response header is version 0 in every version.
Behaviour The table is `isotherm.protocol.api_versions.ADVERTISED`: Produce is shown from version 0
          although it is served from 3, or old librdkafka sends everything uncompressed. A version
          that is not served is answered in version 0 with UNSUPPORTED_VERSION and the table.
          Client names outside KIP-511's pattern get INVALID_REQUEST.
          The features are those of `isotherm.broker.controller.features`. Up to version 3 those
          with a level 0 are not shown as supported, since clients then took 0 for an error.
Not done  Version 5 (cluster id and node id in the request).
KIPs      35 · 511 client software · 584 features · 1043 minimum versions of 0
"""

from __future__ import annotations

import datetime
import re
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.context import RequestContext
from isotherm.broker.controller.features import SUPPORTED_FEATURES
from isotherm.protocol.api_versions import ADVERTISED, ApiKey, response_class
from isotherm.protocol.entities import entity_of

NO_THROTTLE = datetime.timedelta()
FIRST_SOFTWARE_VERSION = 3
FIRST_MIN_OF_ZERO_VERSION = 4

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")

_API_KEYS = [
    {"api_key": int(key), "min_version": versions.min, "max_version": versions.max}
    for key, versions in sorted(ADVERTISED.items())
]


def handle(context: RequestContext, request: Any) -> Any:
    if context.header.api_version >= FIRST_SOFTWARE_VERSION and not (
        _SOFTWARE.fullmatch(request.client_software_name)
        and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return error_response(context, request, ErrorCode.invalid_request)
    image = context.services.controller.image
    return entity_of(
        response_class(ApiKey.API_VERSIONS, context.header.api_version),
        {
            "error_code": ErrorCode.none,
            "api_keys": _API_KEYS,
            "throttle_time": NO_THROTTLE,
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
        },
    )


def unsupported_version_response() -> Any:
    """For a version that is not served; to be written as version 0. As Kafka's, it tells of the
    versions of ApiVersions alone: the client asks again.
    """
    own = [each for each in _API_KEYS if each["api_key"] == ApiKey.API_VERSIONS]
    return entity_of(
        response_class(ApiKey.API_VERSIONS, 0),
        {"error_code": ErrorCode.unsupported_version, "api_keys": own},
    )


def error_response(context: RequestContext, _request: Any, error_code: ErrorCode) -> Any:
    return entity_of(
        response_class(ApiKey.API_VERSIONS, context.header.api_version),
        {"error_code": error_code, "api_keys": (), "throttle_time": NO_THROTTLE},
    )
