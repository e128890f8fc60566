"""Configuration of a broker in a cluster with a quorum of Kafka controllers (KRaftConfigs and
QuorumConfig in Kafka). A broker with the embedded controller does not use it."""

from __future__ import annotations

from dataclasses import dataclass

from isotherm.config.definition import (
    BOOLEAN,
    INT,
    LONG,
    LONG_MAX,
    STRING,
    at_least,
    key,
    optional,
)

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumConfig:
    """Broker-level keys that have an effect with process.roles=broker."""

    broker_heartbeat_interval_ms: int = key(
        INT,
        2000,
        "Time between two heartbeats to the active controller. It must be at most half of the"
        " controllers' broker.session.timeout.ms.",
        check=at_least(1),
    )
    broker_session_timeout_ms: int = key(
        INT,
        9000,
        "Time without a heartbeat after which a broker is fenced.",
        check=at_least(1),
        no_effect="the active controller goes by its own setting",
    )
    initial_broker_registration_timeout_ms: int = key(
        INT,
        60_000,
        "Time after which a broker that no controller registers gives up, and stops.",
        check=at_least(1),
    )
    controlled_shutdown_enable: bool = key(
        BOOLEAN,
        True,
        "Let the controller move this broker's leaderships before it stops.",
    )
    controller_quorum_request_timeout_ms: int = key(
        INT,
        2000,
        "Longest wait for an answer to a fetch of the cluster's metadata.",
        check=at_least(1),
    )
    controller_quorum_retry_backoff_ms: int = key(
        INT, 20, "Wait before a fetch of the metadata is tried again.", check=at_least(1)
    )
    controller_quorum_fetch_max_bytes: int = key(
        INT, _MIB, "Metadata fetched at a time; at least one batch.", check=at_least(1)
    )
    controller_quorum_fetch_snapshot_max_bytes: int = key(
        INT, _MIB, "Bytes of a metadata snapshot fetched at a time.", check=at_least(1)
    )
    controller_socket_timeout_ms: int = key(
        INT, 30_000, "Longest wait for a controller's answer to a request.", check=at_least(1)
    )
    socket_connection_setup_timeout_ms: int = key(
        LONG,
        10_000,
        "Longest wait for a connection to another node.",
        check=at_least(1),
    )
    server_max_startup_time_ms: int = key(
        LONG,
        LONG_MAX,
        "Longest wait at the start for the cluster's metadata, and to be unfenced.",
        check=at_least(1),
    )
    log_dir_failure_timeout_ms: int = key(
        LONG,
        30_000,
        "Time in which the controller must have heard of a log directory that failed, or the broker"
        " stops.",
        check=at_least(1),
    )
    metadata_log_dir: str | None = key(
        optional(STRING),
        None,
        "Folder of the cluster's metadata log, one of log.dirs; the first of them if not set.",
    )
    metadata_log_max_record_bytes_between_snapshots: int = key(
        LONG,
        20 * _MIB,
        "Bytes of the metadata log after which a snapshot of it is written.",
        check=at_least(1),
    )
    controller_requests_max: int = key(
        INT,
        1000,
        "Requests to the active controller that may wait at once. Isotherm's own key.",
        check=at_least(1),
    )
