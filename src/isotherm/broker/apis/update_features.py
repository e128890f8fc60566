"""UpdateFeatures (key 57).

Versions  0-2. 1 validate_only, types of upgrade · 2 no results by feature.
Behaviour Sets the levels durably, all or none. The response has the first error with its reason. An
          unknown feature, an unsupported level and an unrequested downgrade get
          INVALID_UPDATE_VERSION. metadata.version and remote.log.metadata.compaction are never
          lowered. A raise of the latter starts the migration of the metadata topic.
Not done  The timeout has no effect.
KIPs      584 · 778 types of upgrade · 1022 feature versions
"""

from __future__ import annotations

from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.error_mapping import error_code as code_of
from isotherm.broker.metadata.access.acls import Operation
from isotherm.broker.metadata.features import FeatureUpdate, UpgradeType
from isotherm.broker.server.requests.access_checks import on_cluster
from isotherm.broker.server.requests.context import RequestContext
from isotherm.broker.server.requests.served_api import Access, Api
from isotherm.errors import RejectedError
from isotherm.protocol.api_keys import ApiKey, VersionRange

FIRST_UPGRADE_TYPE_VERSION = 1


async def handle(context: RequestContext, request: Any) -> Any:
    updates = [_update(context, update) for update in request.feature_updates]
    validate_only = getattr(request, "validate_only", False)
    controller = context.services.controller
    try:
        await context.services.run_control(
            lambda: controller.update_features(updates, validate_only=validate_only)
        )
    except RejectedError as error:
        return _response(context, code_of(error), str(error), ())
    return _response(context, ErrorCode.none, None, tuple(update.name for update in updates))


def _update(context: RequestContext, entry: Any) -> FeatureUpdate:
    if context.header.api_version >= FIRST_UPGRADE_TYPE_VERSION:
        upgrade_type = entry.upgrade_type
    else:
        upgrade_type = UpgradeType.SAFE_DOWNGRADE if entry.allow_downgrade else UpgradeType.UPGRADE
    return FeatureUpdate(entry.feature, entry.max_version_level, upgrade_type)


def _response(
    context: RequestContext, error_code: ErrorCode, message: str | None, updated: tuple[str, ...]
) -> Any:
    return context.response(
        {
            "error_code": error_code,
            "error_message": message,
            "results": [
                {"feature": name, "error_code": ErrorCode.none, "error_message": None}
                for name in updated
            ],
        }
    )


API = Api(
    ApiKey.UPDATE_FEATURES,
    VersionRange(0, 2),
    handle,
    access=Access([on_cluster(Operation.ALTER)]),
    is_forwardable=True,
)
