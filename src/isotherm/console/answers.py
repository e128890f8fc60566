"""Builds the JSON of the API from the state of the cluster. Pure."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from isotherm.console.watched_metrics import MetricsLook
from isotherm.remote.metadata.state.segment_columns import id_texts
from isotherm.remote.segment_metadata import RemoteLogSegmentState
from isotherm.storage_view.cluster_storage import (
    ClusterStorage,
    Histories,
    PartitionStorage,
    TopicStorage,
)
from isotherm.storage_view.group_lag import PartitionLag, ReadsFrom, group_lags
from isotherm.storage_view.group_progress import GroupProgress
from isotherm.storage_view.group_reader import GroupState
from isotherm.storage_view.growth import growth
from isotherm.storage_view.partition_storage import LocalTier, added, last_tiered_offset
from isotherm.storage_view.prices import PriceList
from isotherm.storage_view.rows import Row, partition_row, sums_row, topic_row
from isotherm.storage_view.segment_history import SegmentHistory, past_log
from isotherm.storage_view.tier_map import (
    FIRST_LANE,
    NO_SEGMENT,
    Cell,
    SpanKind,
    Spans,
    map_cells,
    tier_spans,
)
from isotherm.storage_view.traffic import ALL_TOPICS, Traffic, request_cost, requests_a_month
from isotherm.types import Offset, TimestampMs

PARTITIONS_KEPT = 8
"""The most partitions whose spans are cached, so that zooming in one is fast."""
EPOCHS_MAX = 200
"""The most leader epochs of a map. The newest ones are shown."""
RECORDS_OF_A_COPY = 2
HISTORY_MS = 24 * 3_600_000
Window = tuple[Offset | None, Offset | None]
SECOND_LANE = tuple(kind for kind in SpanKind if kind not in FIRST_LANE)


# The cache serves the pages of one state of the cluster. The next state has another time, and other
# column objects where events came, so stale entries are never found.
_spans = functools.lru_cache(PARTITIONS_KEPT)(tier_spans)


def overview(storage: ClusterStorage, prices: PriceList, metrics: MetricsLook | None = None) -> Row:
    topics = storage.topics.values()
    price = prices.mean_price(storage.remote_bytes)
    return {
        "cluster_id": storage.cluster_id,
        "controller_id": storage.controller_id,
        "price_per_gib_month": price,
        "total": sums_row(added(topic.sums for topic in topics), price),
        "metadata_topic": metadata_topic_row(storage),
        "brokers": [asdict(broker) for broker in storage.brokers],
        "topics": [topic_row(topic, price) for topic in topics],
        "errors": None if metrics is None else metrics.errors,
        "traffic": _traffic_row(metrics, prices),
    }


def metadata_topic_row(storage: ClusterStorage) -> Row | None:
    """The size and growth of the metadata topic. `restart_s` estimates the time to read it, from
    the time that it took here. Each copy adds two records. The rates are null while the history of
    copies is too short."""
    topic = storage.metadata_topic
    if topic is None:
        return None
    copies = [
        growth(partition.segments, storage.read_at_ms).segments_per_month
        for topic_storage in storage.topics.values()
        for partition in topic_storage.partitions
        if len(partition.segments)
    ]
    per_day = sum(copy for copy in copies if copy is not None) * RECORDS_OF_A_COPY / 30
    is_known = bool(copies) and None not in copies
    record_bytes = topic.size_in_bytes / topic.records if topic.records else 0.0
    return {
        **asdict(topic),
        "restart_s": topic.restart_s,
        "records_per_day": round(per_day) if is_known else None,
        "bytes_per_day": round(per_day * record_bytes) if is_known else None,
    }


def _traffic_row(metrics: MetricsLook | None, prices: PriceList) -> Row | None:
    """The rates over some minutes, and the monthly cost at the rate of the last hour. Null without
    metrics, and before their second reading. The cost is null if requests have no price."""
    if metrics is None or metrics.traffic is None or metrics.hourly_traffic is None:
        return None
    hour = metrics.hourly_traffic.get(ALL_TOPICS, Traffic())
    puts, gets = requests_a_month(hour)
    return {
        **asdict(metrics.traffic.get(ALL_TOPICS, Traffic())),
        "since_ms": metrics.since_ms,
        "puts_per_month": round(puts),
        "gets_per_month": round(gets),
        "cost_per_month": (
            None if prices.requests is None else round(request_cost(hour, prices.requests), 6)
        ),
    }


def topic_detail(topic: TopicStorage, price: float, metrics: MetricsLook | None = None) -> Row:
    """`traffic` is that with clients and the remote tier; null without metrics."""
    traffic = None if metrics is None else metrics.traffic
    return {
        **topic_row(topic, price),
        "traffic": None if traffic is None else asdict(traffic.get(topic.state.name, Traffic())),
        "by_partition": [
            {
                **partition_row(partition, price),
                "replicas": partition.state.replicas,
                "in_sync_replicas": partition.state.in_sync_replicas,
            }
            for partition in topic.partitions
        ],
    }


def tier_maps(
    partitions: Iterable[PartitionStorage],
    now_ms: TimestampMs,
    columns: int,
    window: Window,
) -> list[Row]:
    """One map for each partition whose leader answers, of the whole log or of a window."""
    return [
        _tier_map(partition, _spans_of(partition, now_ms), columns, window)
        for partition in partitions
        if partition.state.local
    ]


def past_tier_maps(
    partitions: Iterable[PartitionStorage],
    histories: Histories,
    at_ms: TimestampMs,
    columns: int,
    window: Window,
) -> list[Row]:
    """The maps at an earlier time, as far as events have it. `remote` means in the remote tier at
    that time; whether it was also local is unknown. Maps of all times cover the same offsets, so
    that they can be compared."""
    return [
        _past_tier_map(
            partition, histories.by_partition[partition.state.partition], at_ms, columns, window
        )
        for partition in partitions
        if partition.state.local
    ]


def history_reach(histories: Histories | None, now_ms: TimestampMs) -> Row:
    """The range of times for `at`: as far back as events are kept, but at most a day. `since_ms` is
    null without events."""
    by_partition = () if histories is None else histories.by_partition.values()
    first = [partition.first_ms for partition in by_partition if partition.first_ms is not None]
    return {
        "kept_in": None if histories is None else histories.topic,
        "since_ms": max(now_ms - HISTORY_MS, min(first)) if first else None,
        "until_ms": now_ms,
    }


def _past_tier_map(
    partition: PartitionStorage,
    history: SegmentHistory,
    at_ms: TimestampMs,
    columns: int,
    window: Window,
) -> Row:
    assert partition.state.local is not None
    past, unknown = history.as_of(partition.segments, at_ms)
    local = past_log(partition.state.local, partition.segments, past, at_ms)
    then = replace(
        partition,
        state=replace(partition.state, local=local),
        segments=past,
        last_tiered_offset=last_tiered_offset(past),
    )
    first, end = _reach(partition.state.local, _spans_of(partition, at_ms))
    kept = history.offsets()
    if kept is not None:
        first, end = min(first, kept[0]), max(end, kept[1])
    row = _tier_map(then, tier_spans(local, past, at_ms), columns, window, (first, end))
    return {**row, "unknown_segments": unknown}


def _spans_of(partition: PartitionStorage, now_ms: TimestampMs) -> Spans:
    assert partition.state.local is not None
    return _spans(partition.state.local, partition.segments, now_ms)


def _reach(local: LocalTier, spans: Spans) -> tuple[Offset, Offset]:
    """The range of offsets to show."""
    starts, ends = [local.log_start_offset], [local.high_watermark, local.log_start_offset + 1]
    if len(spans):
        starts.append(int(spans.start.min()))
        ends.append(int(spans.end.max()))
    return min(starts), max(ends)


def _tier_map(
    partition: PartitionStorage,
    spans: Spans,
    columns: int,
    window: Window,
    reach: tuple[Offset, Offset] | None = None,
) -> Row:
    local, segments = partition.state.local, partition.segments
    assert local is not None
    log_first, log_end = _reach(local, spans) if reach is None else reach
    first = log_first if window[0] is None else window[0]
    end = log_end if window[1] is None else window[1]
    lanes = (FIRST_LANE, SECOND_LANE)
    return {
        "partition": partition.state.partition.partition,
        "leader": partition.state.leader,
        "leader_epoch": partition.state.leader_epoch,
        "leader_epochs": sorted(segments.epoch_starts.items())[-EPOCHS_MAX:],
        "log_first": log_first,
        "log_end": log_end,
        "first": first,
        "end": end,
        "log_start_offset": local.log_start_offset,
        "local_log_start_offset": local.local_log_start_offset,
        "last_tiered_offset": partition.last_tiered_offset,
        "last_stable_offset": local.last_stable_offset,
        "high_watermark": local.high_watermark,
        "counts": {kind.name.lower(): int((spans.kind == kind).sum()) for kind in SpanKind},
        "lanes": [
            [
                _cell(cell, partition)
                for cell in map_cells(spans.of_kinds(kinds), first, end, columns)
            ]
            for kinds in lanes
        ],
    }


@dataclass(frozen=True, slots=True)
class GroupReading:
    """The data about the reads of groups: their committed offsets over time, and the traffic by
    topic, which is None without metrics."""

    progress: GroupProgress
    traffic: Mapping[str, Traffic] | None


def group_rows(
    groups: Iterable[GroupState], storage: ClusterStorage, reading: GroupReading
) -> list[Row]:
    """One row for each group: the sum of its lags, its oldest age, and the tiers that its
    partitions read from."""
    return [
        _group_row(group, _partition_rows(group, storage, reading), reading) for group in groups
    ]


def group_detail(group: GroupState, storage: ClusterStorage, reading: GroupReading) -> Row:
    rows = _partition_rows(group, storage, reading)
    return {**_group_row(group, rows, reading), "by_partition": rows}


def _partition_rows(group: GroupState, storage: ClusterStorage, reading: GroupReading) -> list[Row]:
    """`committed_offset` is null for a share group; `start_offset` and `delivered_max` are null for
    the others."""
    rates = reading.progress.offsets_per_s(group.group_id)
    is_share = group.share is not None
    return [
        {
            "topic": lag.place.topic,
            "partition": lag.place.partition,
            "committed_offset": None if is_share else lag.committed_offset,
            "start_offset": lag.committed_offset if is_share else None,
            "delivered_max": lag.delivered_max,
            "reads_from": lag.reads_from,
            "lag": lag.lag,
            "remote_lag": lag.remote_lag,
            "age_s": lag.age_s,
            "age_s_max": lag.age_s_max,
            "offsets_per_s": rates.get(lag.place),
            "remote_bytes_per_s": _remote_bytes_per_s(lag, rates.get(lag.place), storage),
        }
        for lag in group_lags(group, storage.topics, storage.read_at_ms)
    ]


def _remote_bytes_per_s(
    lag: PartitionLag, rate: float | None, storage: ClusterStorage
) -> float | None:
    """The bytes that a group reads from the remote tier, estimated by the mean size of an offset
    there. 0 if it reads from another place."""
    if rate is None or lag.reads_from is not ReadsFrom.REMOTE:
        return None if rate is None else 0.0
    for partition in storage.topics[lag.place.topic].partitions:
        if partition.state.partition.topic_partition == lag.place:
            finished = partition.segments.in_state(RemoteLogSegmentState.COPY_SEGMENT_FINISHED)
            size = int(partition.segments.size_in_bytes[finished].sum())
            offsets = (
                partition.segments.end_offset[finished]
                - partition.segments.start_offset[finished]
                + 1
            )
            return rate * size / max(1, int(offsets.sum()))
    return None


def _group_row(group: GroupState, rows: Sequence[Row], reading: GroupReading) -> Row:
    behind = [row for row in rows if (row["lag"] or 0) > 0]

    def oldest(name: str) -> float | None:
        ages = [lag[name] for lag in behind if lag[name] is not None]
        return max(ages, default=None) if behind else 0.0

    def total(name: str) -> float | None:
        values = [row[name] for row in rows if row[name] is not None]
        return sum(values) if values else None

    remote = sorted({row["topic"] for row in rows if row["reads_from"] is ReadsFrom.REMOTE})
    return {
        "group": group.group_id,
        "state": group.state,
        "type": group.kind,
        "group_error": group.error,
        "partitions": len(rows),
        # Offsets beyond an end hide none that are left elsewhere.
        "lag": sum(lag["lag"] for lag in behind) or total("lag") or 0,
        "remote_lag": total("remote_lag") or 0,
        "age_s": oldest("age_s"),
        "age_s_max": oldest("age_s_max"),
        "offsets_per_s": total("offsets_per_s"),
        "remote_bytes_per_s": total("remote_bytes_per_s"),
        "reads_from": dict(Counter(row["reads_from"] for row in rows)),
        "remote_topics": [
            {
                "topic": topic,
                "traffic": (
                    None
                    if reading.traffic is None
                    else asdict(reading.traffic.get(topic, Traffic()))
                ),
            }
            for topic in remote
        ],
    }


def _cell(cell: Cell, partition: PartitionStorage) -> Row:
    """The row of a cell. `start` and `end` are offsets, `end` is exclusive. A cell of one segment
    has its `id`."""
    row: dict[str, Any] = {
        "start": cell.start,
        "end": cell.end,
        "kinds": [kind.name.lower() for kind in cell.kinds],
        "segments": cell.segments,
        "bytes": cell.size_in_bytes,
    }
    if cell.segment != NO_SEGMENT:
        segments = partition.segments
        (row["id"],) = id_texts([segments.ids[cell.segment]])
        row["bytes"] = int(segments.size_in_bytes[cell.segment])
    return row
