"""Configuration of the share coordinator (ShareCoordinatorConfig in Kafka)."""

from __future__ import annotations

from dataclasses import dataclass

from isotherm.config.definition import INT, SHORT, at_least, between, key
from isotherm.config.inert import EVENT_LOOP


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareCoordinatorConfig:
    """Broker-level keys of `__share_group_state`."""

    share_coordinator_state_topic_num_partitions: int = key(
        INT,
        50,
        "Partitions of __share_group_state. Fixed once the topic exists.",
        check=at_least(1),
    )
    share_coordinator_state_topic_replication_factor: int = key(
        SHORT,
        3,
        "Replicas of __share_group_state in a cluster; only used when the topic is created.",
        check=at_least(1),
    )
    share_coordinator_state_topic_min_isr: int = key(
        SHORT,
        2,
        "min.insync.replicas of __share_group_state in a cluster; only used when the topic is"
        " created.",
        check=at_least(1),
    )
    share_coordinator_share_partitions_max: int = key(
        INT,
        1_000_000,
        "Partitions, times the share groups that consume each, whose state this broker"
        " coordinates; a further one is refused with POLICY_VIOLATION. Isotherm's own key. (Kafka"
        " has no bound.)",
        check=at_least(1),
    )
    share_coordinator_state_topic_segment_bytes: int = key(
        INT, 104_857_600, "Segment size of __share_group_state.", check=at_least(1)
    )
    share_coordinator_state_topic_compression_codec: int = key(
        INT,
        0,
        "Compression of the records of __share_group_state: 0 none, 1 gzip, 2 snappy, 3 lz4,"
        " 4 zstd.",
        check=between(0, 4),
    )
    share_coordinator_state_topic_prune_interval_ms: int = key(
        INT,
        300_000,
        "Time between two deletions of records of __share_group_state that no load needs.",
        check=at_least(1),
        internal=True,
    )
    share_coordinator_snapshot_update_records_per_snapshot: int = key(
        INT,
        500,
        "Updates of a share partition's state between two snapshots of it.",
        check=between(0, 500),
    )
    share_coordinator_cold_partition_snapshot_interval_ms: int = key(
        INT,
        300_000,
        "Age at which a share partition's snapshot is written again, so that the records before"
        " it can be deleted.",
        check=at_least(1),
        internal=True,
    )
    share_coordinator_write_timeout_ms: int = key(
        INT,
        5000,
        "How long an answer of the share coordinator waits for the replicas of its records.",
        check=at_least(1),
    )
    share_coordinator_load_buffer_size: int = key(
        INT,
        5_242_880,
        "Bytes of __share_group_state read at a time when it is loaded.",
        check=at_least(1),
    )
    share_coordinator_threads: int = key(
        INT, 1, "Threads of the share coordinator.", check=at_least(1), no_effect=EVENT_LOOP
    )
    share_coordinator_append_linger_ms: int = key(
        INT,
        -1,
        "How long records wait for others of their batch.",
        check=at_least(-1),
        no_effect="each request's records are a batch",
    )
