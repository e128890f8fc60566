"""The features whose levels the cluster agrees on, and which changes of them are allowed. Pure.

Source: KIP-584, KIP-778; Kafka FeatureControlManager.updateFeature, whose codes these are.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from isotherm.broker.controller.records import METADATA_VERSION_FEATURE, FeatureLevelRecord
from isotherm.errors import InvalidRequestError, InvalidUpdateVersionError

METADATA_VERSION_MIN = 7  # 3.3-IV3
METADATA_VERSION = 30  # of Kafka 4.3: the version whose record formats are written

GROUP_VERSION_FEATURE = "group.version"  # 1: the consumer protocol (KIP-848)
TRANSACTION_VERSION_FEATURE = "transaction.version"  # 2: an epoch per transaction (KIP-890)


class SupportedLevels(NamedTuple):
    """Both ends inclusive. Level 0, where it is supported, is the feature turned off."""

    min: int
    max: int


SUPPORTED_FEATURES: Mapping[str, SupportedLevels] = {
    METADATA_VERSION_FEATURE: SupportedLevels(METADATA_VERSION_MIN, METADATA_VERSION),
    GROUP_VERSION_FEATURE: SupportedLevels(0, 1),
    TRANSACTION_VERSION_FEATURE: SupportedLevels(0, 2),
}


def new_cluster_features() -> list[FeatureLevelRecord]:
    """A new cluster has every feature at its highest level; an older one keeps what it has."""
    return [
        FeatureLevelRecord(name=name, feature_level=levels.max)
        for name, levels in SUPPORTED_FEATURES.items()
    ]


class UpgradeType(enum.IntEnum):
    """FeatureUpdate.UpgradeType; the numbers are the wire's."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureUpdate(NamedTuple):
    """`upgrade_type` as the request has it, known or not."""

    name: str
    level: int
    upgrade_type: int


def plan_feature_updates(
    updates: Sequence[FeatureUpdate], current: Mapping[str, int]
) -> list[FeatureLevelRecord]:
    """The records that set the levels; nothing for one that is set already.

    Raises InvalidUpdateVersionError for the first update that is not allowed.
    """
    if len({update.name for update in updates}) != len(updates):
        raise InvalidRequestError("a feature is updated twice in one request")
    for update in updates:
        _check(update, current.get(update.name, 0))
    return [
        FeatureLevelRecord(name=update.name, feature_level=update.level)
        for update in updates
        if update.level != current.get(update.name, 0)
    ]


def _check(update: FeatureUpdate, current_level: int) -> None:
    facts = f"feature={update.name} level={update.level} current={current_level}"
    supported = SUPPORTED_FEATURES.get(update.name)
    if supported is None:
        raise InvalidUpdateVersionError(f"this feature is not supported {facts}")
    if update.upgrade_type not in list(UpgradeType):
        raise InvalidUpdateVersionError(
            f"no such type of upgrade {facts} upgrade_type={update.upgrade_type}"
        )
    if not supported.min <= update.level <= supported.max:
        raise InvalidUpdateVersionError(
            f"this level is not supported {facts} min={supported.min} max={supported.max}"
        )
    if update.level > current_level and update.upgrade_type != UpgradeType.UPGRADE:
        raise InvalidUpdateVersionError(f"a downgrade cannot go to a higher level {facts}")
    if update.level < current_level:
        if update.upgrade_type == UpgradeType.UPGRADE:
            raise InvalidUpdateVersionError(f"an upgrade cannot go to a lower level {facts}")
        if update.name == METADATA_VERSION_FEATURE:
            # The log has records of the newer formats.
            raise InvalidUpdateVersionError(f"this feature is never lowered {facts}")
