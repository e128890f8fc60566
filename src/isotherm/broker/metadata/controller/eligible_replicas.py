"""min.insync.replicas of a cluster with the feature of eligible leader replicas. Pure.

The feature relies on one value for all brokers. So it is a stored setting of all brokers, which
single brokers cannot override. Source: KIP-966; Kafka
ConfigurationControlManager.maybeGenerateElrSafetyRecords.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from isotherm.broker.metadata.cluster_metadata import ALL_BROKERS
from isotherm.broker.metadata.controller.topic_rules import config_records
from isotherm.broker.metadata.features import ELIGIBLE_LEADER_REPLICAS_FEATURE
from isotherm.broker.metadata.image import ConfigResource
from isotherm.broker.metadata.metadata_records import (
    BROKER_RESOURCE,
    ConfigRecord,
    FeatureLevelRecord,
)
from isotherm.errors import ConfigError

MIN_INSYNC_REPLICAS = "min.insync.replicas"


def eligible_replicas_records(
    raised: Sequence[FeatureLevelRecord],
    configs: Mapping[ConfigResource, Mapping[str, str]],
    configured: int,
) -> list[ConfigRecord]:
    """The settings that come with the levels `raised`. `configured` is the value of the file."""
    if not any(
        record.name == ELIGIBLE_LEADER_REPLICAS_FEATURE and record.feature_level
        for record in raised
    ):
        return []
    records = []
    if MIN_INSYNC_REPLICAS not in configs.get(ConfigResource(BROKER_RESOURCE, ALL_BROKERS), {}):
        of_all = {MIN_INSYNC_REPLICAS: str(configured)}
        records += config_records(BROKER_RESOURCE, ALL_BROKERS, of_all)
    for resource, texts in configs.items():
        of_one = resource.resource_type == BROKER_RESOURCE and resource.name != ALL_BROKERS
        if of_one and MIN_INSYNC_REPLICAS in texts:
            records += config_records(*resource, {MIN_INSYNC_REPLICAS: None})
    return records


def check_min_insync_change(
    broker: str, changed: Mapping[str, str | None], features: Mapping[str, int]
) -> None:
    """Raise ConfigError, in Kafka's words, for a change that the feature forbids."""
    if MIN_INSYNC_REPLICAS not in changed or not features.get(ELIGIBLE_LEADER_REPLICAS_FEATURE):
        return
    if broker != ALL_BROKERS:
        raise ConfigError(
            f"Broker-level {MIN_INSYNC_REPLICAS} cannot be altered while ELR is enabled."
        )
    if changed[MIN_INSYNC_REPLICAS] is None:
        raise ConfigError(
            f"Cluster-level {MIN_INSYNC_REPLICAS} cannot be removed while ELR is enabled."
        )
