"""The registration of this broker with the active controller. Pure.

A broker must declare every feature that the cluster has finalized, even that of groups that it does
not serve (streams groups). A broker of Kafka 4.3 declares the same ranges.
Source: KIP-631, KIP-866, KIP-966; Kafka BrokerLifecycleManager,
ClusterControlManager.registerBroker.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.endpoint import Endpoint
from isotherm.broker.metadata.features import (
    GROUP_VERSION_FEATURE,
    METADATA_COMPACTION_FEATURE,
    METADATA_VERSION,
    METADATA_VERSION_MIN,
    SHARE_VERSION_FEATURE,
    SUPPORTED_FEATURES,
    TRANSACTION_VERSION_FEATURE,
    SupportedLevels,
)
from isotherm.broker.metadata.metadata_records import (
    KRAFT_VERSION_FEATURE,
    METADATA_VERSION_FEATURE,
)
from isotherm.config.broker import BrokerConfig
from isotherm.errors import ConfigError
from isotherm.protocol.api_keys import ApiKey, request_class
from isotherm.protocol.code_names import code_name
from isotherm.protocol.entities import entity_of

VERSION = 4

DECLARED_FEATURES: Mapping[str, SupportedLevels] = {
    METADATA_VERSION_FEATURE: SupportedLevels(METADATA_VERSION_MIN, METADATA_VERSION),
    KRAFT_VERSION_FEATURE: SupportedLevels(0, 1),
    GROUP_VERSION_FEATURE: SupportedLevels(0, 1),
    TRANSACTION_VERSION_FEATURE: SupportedLevels(0, 2),
    "eligible.leader.replicas.version": SupportedLevels(0, 1),
    SHARE_VERSION_FEATURE: SupportedLevels(0, 1),
    "streams.version": SupportedLevels(0, 1),
}


# Controllers keep features that they do not know, and every broker sees them in the metadata
# (docs/decisions/0103). Clients see only the features that a Kafka broker has
# (`DECLARED_FEATURES`).
REGISTERED_FEATURES: Mapping[str, SupportedLevels] = {
    **DECLARED_FEATURES,
    METADATA_COMPACTION_FEATURE: SUPPORTED_FEATURES[METADATA_COMPACTION_FEATURE],
}


def registration_request(
    config: BrokerConfig,
    *,
    cluster_id: str,
    incarnation_id: uuid.UUID,
    endpoints: Sequence[Endpoint],
    log_dirs: Iterable[uuid.UUID],
    previous_broker_epoch: int,
) -> Any:
    """`log_dirs` are the ids of the online directories. `previous_broker_epoch` is the epoch before
    a clean stop; -1 says that the stop was unclean, so the logs may have lost their last records.
    """
    protocols = {broker.name: broker.protocol for broker in config.listener_layout.brokers}
    return entity_of(
        request_class(ApiKey.BROKER_REGISTRATION, VERSION),
        {
            "broker_id": config.node_id,
            "cluster_id": cluster_id,
            "incarnation_id": incarnation_id,
            "listeners": [
                {
                    "name": endpoint.listener_name,
                    "host": endpoint.host,
                    "port": endpoint.port,
                    "security_protocol": protocols[endpoint.listener_name],
                }
                for endpoint in endpoints
            ],
            "features": [
                {
                    "name": name,
                    "min_supported_version": levels.min,
                    "max_supported_version": levels.max,
                }
                for name, levels in REGISTERED_FEATURES.items()
            ],
            "rack": config.broker_rack,
            "is_migrating_zk_broker": False,
            "log_dirs": tuple(sorted(log_dirs)),
            "previous_broker_epoch": previous_broker_epoch,
        },
    )


def refusal(error: ErrorCode, request: Any) -> ConfigError | None:
    """The error for a refused registration that no retry can help; None if a retry may help."""
    place = f"broker_id={request.broker_id} cluster_id={request.cluster_id}"
    if error == ErrorCode.inconsistent_cluster_id:
        return ConfigError(f"the controllers are of another cluster than this broker {place}")
    if error == ErrorCode.unsupported_version:
        ranges = ",".join(
            f"{name}={feature.min}-{feature.max}" for name, feature in DECLARED_FEATURES.items()
        )
        return ConfigError(
            "the cluster has finalized a feature, or a level of one, that this broker does not"
            f" have: lower it with kafka-features.sh {place} supported={ranges}"
        )
    if error == ErrorCode.invalid_registration:
        return ConfigError(
            "the controller finds the registration invalid: a log directory may be another broker's"
            f" (directory.id in meta.properties), or a listener is wrong {place}"
        )
    return None


def reason_to_wait(error: ErrorCode) -> str:
    """The log text for an error after which the registration is retried."""
    if error == ErrorCode.duplicate_broker_registration:
        return (
            "another process with this node.id is alive, or was a moment ago: its session ends"
            " broker.session.timeout.ms after its last heartbeat"
        )
    return code_name(error)
