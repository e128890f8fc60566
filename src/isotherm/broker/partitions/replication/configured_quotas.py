"""The replication quotas that the metadata configures: for bytes sent to out-of-sync replicas of
other brokers, and for bytes fetched into this broker's own out-of-sync replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from isotherm.broker.metadata.cluster_metadata import ClusterMetadata
from isotherm.broker.partitions.replication.replication_quota import (
    ReplicationQuota,
    is_throttled_replica,
)
from isotherm.clock import Clock
from isotherm.config.topic import TopicConfig
from isotherm.types import TopicPartition


def leader_quota(metadata: ClusterMetadata, clock: Clock) -> ReplicationQuota:
    """The quota of leader.replication.throttled.rate, for the partitions of the topics'
    leader.replication.throttled.replicas. It follows every change of both."""
    return _quota(
        metadata,
        clock,
        lambda topic: topic.leader_replication_throttled_replicas,
        lambda: metadata.broker_config.leader_replication_throttled_rate,
    )


def follower_quota(metadata: ClusterMetadata, clock: Clock) -> ReplicationQuota:
    """The quota of follower.replication.throttled.rate and
    follower.replication.throttled.replicas.
    """
    return _quota(
        metadata,
        clock,
        lambda topic: topic.follower_replication_throttled_replicas,
        lambda: metadata.broker_config.follower_replication_throttled_rate,
    )


def log_dir_move_quota(metadata: ClusterMetadata, clock: Clock) -> ReplicationQuota:
    """The quota of all moves between log directories:
    replica.alter.log.dirs.io.max.bytes.per.second.
    """
    config = metadata.broker_config.replication
    return ReplicationQuota(
        clock,
        is_throttled=lambda _: True,
        bytes_per_second=lambda: (
            metadata.broker_config.replica_alter_log_dirs_io_max_bytes_per_second
        ),
        window_ms=config.replication_quota_window_size_seconds * 1000,
        window_count=config.replication_quota_window_num,
    )


def _quota(
    metadata: ClusterMetadata,
    clock: Clock,
    throttled_replicas: Callable[[TopicConfig], Sequence[str]],
    bytes_per_second: Callable[[], int],
) -> ReplicationQuota:
    config = metadata.broker_config

    def is_throttled(partition: TopicPartition) -> bool:
        replicas = throttled_replicas(metadata.topic_config(partition.topic))
        return is_throttled_replica(replicas, partition.partition, config.node_id)

    return ReplicationQuota(
        clock,
        is_throttled=is_throttled,
        bytes_per_second=bytes_per_second,
        window_ms=config.replication.replication_quota_window_size_seconds * 1000,
        window_count=config.replication.replication_quota_window_num,
    )
