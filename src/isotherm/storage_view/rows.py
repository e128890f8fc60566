"""The storage of topics and partitions as rows of plain values, for JSON and tables."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from isotherm.storage_view.cluster_storage import PartitionStorage, TopicStorage
from isotherm.storage_view.partition_storage import StorageSums
from isotherm.storage_view.prices import monthly_cost

Row = dict[str, Any]


def partition_row(storage: PartitionStorage, price: float) -> Row:
    """The row of a partition. If no leader answers, it has only the partition's number, the leader
    and `error`."""
    state, local = storage.state, storage.state.local
    row: Row = {"partition": state.partition.partition, "leader": state.leader}
    if local is None or storage.sums is None:
        return {**row, "error": state.error}
    return {
        **row,
        "log_start_offset": local.log_start_offset,
        "local_log_start_offset": local.local_log_start_offset,
        "last_tiered_offset": storage.last_tiered_offset,
        "last_stable_offset": local.last_stable_offset,
        "high_watermark": local.high_watermark,
        **sums_row(storage.sums, price),
    }


def topic_row(storage: TopicStorage, price: float) -> Row:
    """The row of a topic: the sums over its partitions. `without_leader` counts partitions whose
    leader does not answer; they are left out of the sums."""
    state = storage.state
    return {
        "topic": state.name,
        "topic_id": str(state.topic_id),
        "is_internal": state.is_internal,
        "is_tiered": state.is_tiered,
        "retention_ms": state.retention.ms,
        "retention_bytes": state.retention.bytes,
        "partitions": len(storage.partitions),
        "without_leader": sum(partition.sums is None for partition in storage.partitions),
        **sums_row(storage.sums, price),
    }


def sums_row(sums: StorageSums, price: float) -> Row:
    return {**asdict(sums), "cost_per_month": round(monthly_cost(sums.remote_bytes, price), 6)}
