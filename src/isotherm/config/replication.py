"""Configuration of replicas on several brokers (ReplicationConfigs in Kafka)."""

from __future__ import annotations

from dataclasses import dataclass

from isotherm.config.definition import BOOLEAN, INT, LONG, STRING, at_least, key, one_of, optional
from isotherm.errors import ConfigError

RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationConfig:
    """Broker-level keys of replication. Without other brokers they have no effect."""

    replica_lag_time_max_ms: int = key(
        LONG,
        30_000,
        "Time after which a follower that does not have all records leaves the in-sync replicas.",
        check=at_least(1),
    )
    replica_selector_class: str | None = key(
        optional(STRING),
        None,
        "Which replica consumers read from: the leader if not set, else one in their own rack"
        f" (client.rack), with {RACK_AWARE_SELECTOR}.",
        check=one_of(RACK_AWARE_SELECTOR),
        name="replica.selector.class",
    )
    num_replica_fetchers: int = key(
        INT,
        1,
        "Threads that fetch from each other broker.",
        check=at_least(1),
        dynamic=True,
        thread_pool=True,
    )
    replica_fetch_max_bytes: int = key(
        INT,
        1024 * 1024,
        "Bytes that a follower fetches of a partition at once; at least one batch.",
        check=at_least(0),
    )
    replica_fetch_wait_max_ms: int = key(
        INT, 500, "How long a leader waits for records that a follower can fetch."
    )
    replica_fetch_min_bytes: int = key(
        INT, 1, "Bytes that a leader waits for before it answers a follower."
    )
    replica_fetch_response_max_bytes: int = key(
        INT,
        10 * 1024 * 1024,
        "Bytes of one answer to a follower; at least one batch.",
        check=at_least(0),
    )
    replica_fetch_backoff_ms: int = key(
        INT,
        1000,
        "How long a follower waits after an error before it fetches a partition again.",
        check=at_least(0),
    )
    replica_socket_timeout_ms: int = key(
        INT,
        30_000,
        "How long a follower waits for an answer; at least replica.fetch.wait.max.ms.",
    )
    replica_high_watermark_checkpoint_interval_ms: int = key(
        LONG, 5000, "How often high watermarks are written to disk.", check=at_least(1)
    )
    follower_fetch_last_tiered_offset_enable: bool = key(
        BOOLEAN,
        False,
        "Whether a new follower of a tiered topic begins where the leader's uploads end, instead of"
        " where the leader's local log begins (KIP-1023).",
        dynamic=True,
    )
    replication_quota_window_num: int = key(
        INT, 11, "Samples of the quotas of replication.", check=at_least(1)
    )
    replication_quota_window_size_seconds: int = key(
        INT, 1, "Length of a sample of the quotas of replication.", check=at_least(1)
    )

    def __post_init__(self) -> None:
        if self.replica_socket_timeout_ms < self.replica_fetch_wait_max_ms:
            raise ConfigError(
                "a fetch must not end before its leader's wait key=replica.socket.timeout.ms"
                f" value={self.replica_socket_timeout_ms}"
                f" replica.fetch.wait.max.ms={self.replica_fetch_wait_max_ms}"
            )
        if self.replica_lag_time_max_ms < self.replica_fetch_wait_max_ms:
            raise ConfigError(
                "a follower must not lag while its fetch waits key=replica.lag.time.max.ms"
                f" value={self.replica_lag_time_max_ms}"
                f" replica.fetch.wait.max.ms={self.replica_fetch_wait_max_ms}"
            )
