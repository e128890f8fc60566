"""The features with levels in the cluster's metadata, and the allowed updates. Pure.

Source: KIP-584, KIP-778; Kafka FeatureControlManager.updateFeature, whose error codes are used.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from isotherm.broker.metadata.metadata_records import METADATA_VERSION_FEATURE, FeatureLevelRecord
from isotherm.errors import InvalidRequestError, InvalidUpdateVersionError

METADATA_VERSION_MIN = 7  # 3.3-IV3
METADATA_VERSION = 30  # of Kafka 4.3: the version whose record formats are written

GROUP_VERSION_FEATURE = "group.version"  # 1: the consumer protocol (KIP-848)
TRANSACTION_VERSION_FEATURE = "transaction.version"  # 2: an epoch per transaction (KIP-890)
# 1: eligible leader replicas (KIP-966). min.insync.replicas is one setting of the cluster then.
ELIGIBLE_LEADER_REPLICAS_FEATURE = "eligible.leader.replicas.version"
SHARE_VERSION_FEATURE = "share.version"  # 1: share groups (KIP-932)
METADATA_COMPACTION_FEATURE = "remote.log.metadata.compaction"  # 1: keyed, compacted (KIP-1266)


class SupportedLevels(NamedTuple):
    """Both ends inclusive. At level 0, where supported, the feature is off."""

    min: int
    max: int


SUPPORTED_FEATURES: Mapping[str, SupportedLevels] = {
    METADATA_VERSION_FEATURE: SupportedLevels(METADATA_VERSION_MIN, METADATA_VERSION),
    GROUP_VERSION_FEATURE: SupportedLevels(0, 1),
    TRANSACTION_VERSION_FEATURE: SupportedLevels(0, 2),
    ELIGIBLE_LEADER_REPLICAS_FEATURE: SupportedLevels(0, 1),
    SHARE_VERSION_FEATURE: SupportedLevels(0, 1),
    METADATA_COMPACTION_FEATURE: SupportedLevels(0, 1),
}

# A lower level cannot read the records of a higher one: newer formats in the metadata log, and
# keyed remote log metadata, from which compaction has removed the events.
_NEVER_LOWERED = (METADATA_VERSION_FEATURE, METADATA_COMPACTION_FEATURE)


def new_cluster_features(metadata_compaction_level: int) -> list[FeatureLevelRecord]:
    """The feature levels of a new cluster: the highest, except the configured one
    (remote.log.metadata.compaction.initial.level). An existing cluster keeps its levels."""
    chosen = {METADATA_COMPACTION_FEATURE: metadata_compaction_level}
    levels = {name: chosen.get(name, feature.max) for name, feature in SUPPORTED_FEATURES.items()}
    return [
        FeatureLevelRecord(name=name, feature_level=level)
        for name, level in levels.items()
        if level
    ]


class UpgradeType(enum.IntEnum):
    """FeatureUpdate.UpgradeType; the numbers are the wire's."""

    UPGRADE = 1
    SAFE_DOWNGRADE = 2
    UNSAFE_DOWNGRADE = 3


class FeatureUpdate(NamedTuple):
    """One update of a request. `upgrade_type` is the request's number and may be unknown."""

    name: str
    level: int
    upgrade_type: int


def plan_feature_updates(
    updates: Sequence[FeatureUpdate], current: Mapping[str, int]
) -> list[FeatureLevelRecord]:
    """The records that set the levels. A feature that has its level already needs no record.

    Raises InvalidUpdateVersionError for the first update that is not allowed, and
    InvalidRequestError if a feature is updated twice.
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
            f"unknown upgrade type {facts} upgrade_type={update.upgrade_type}"
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
        if update.name in _NEVER_LOWERED:
            raise InvalidUpdateVersionError(f"this feature is never lowered {facts}")
