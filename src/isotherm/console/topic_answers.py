"""Builds the JSON of the page "Answers": the causes of a topic's local size, its leftovers, its
future cost. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from isotherm.console.answers import metadata_topic_row
from isotherm.storage_view.cluster_storage import ClusterStorage, PartitionStorage, TopicStorage
from isotherm.storage_view.copy_signs import CopySigns
from isotherm.storage_view.growth import DAY_MS, MONTH_MS, forecast_bytes, growth
from isotherm.storage_view.leftovers import Leftover, leftovers
from isotherm.storage_view.local_holds import PROBLEMS, Hold, HoldCause, local_holds
from isotherm.storage_view.prices import PriceList, monthly_cost
from isotherm.storage_view.rows import Row
from isotherm.types import TimestampMs

FORECAST_MONTHS = (1, 3, 12)
PARTITIONS_NAMED_MAX = 5
_REMEDIES = {
    HoldCause.NOT_TIERED: "The topic is not tiered: set remote.storage.enable=true.",
    HoldCause.LOCAL_RETENTION: "Copied, and kept for fast reads: lower local.retention.ms or"
    " local.retention.bytes.",
    HoldCause.DELETION_LATE: "Due for local deletion: the broker applies retention every"
    " log.retention.check.interval.ms. It never deletes a segment above one that is not copied.",
    HoldCause.ACTIVE_SEGMENT: "Active, or just closed: a segment is copied after it has rolled, at"
    " segment.bytes or segment.ms.",
    HoldCause.COPY_DISABLED: "remote.log.copy.disable=true: nothing more is copied, so local"
    " retention does not delete these segments.",
    HoldCause.OPEN_TRANSACTION: "Above the last stable offset: an open transaction delays copies."
    " Find it with kafka-transactions.sh find-hanging, and abort it.",
    HoldCause.COPYING: "An upload is in progress.",
    HoldCause.COPY_FAILED: "The leader tries again for ever; nothing is lost. Its log has the"
    " reason (remote tier task failed task=copy). Check that the bucket answers, and that the"
    " broker may write to it: isotherm doctor.",
    HoldCause.COPY_HALTED: "The storage manager's custom metadata is larger than"
    " remote.log.metadata.custom.metadata.max.bytes: raise that, and copying goes on. The leader's"
    " log has the size.",
    HoldCause.METADATA_UNREAD: "The leader has not read __remote_log_metadata to its end. It copies"
    " after that. If this stays, its log has the reason.",
    HoldCause.COPY_WAITS: "Closed segments without an upload, and without a failed one: the bucket"
    " or the copier is slower than what is produced. See"
    " remote.log.manager.copier.thread.pool.size and remote.log.manager.copy.max.bytes.per.second.",
}
_WAITS_FOR_AN_UNKNOWN_REASON = (
    "Closed segments without an upload: the copier lags, or each copy fails and leaves nothing"
    " behind. The leader's log tells which, and so does --metrics."
)
Signs = Mapping[str, CopySigns]
"""By topic. Empty without metrics."""


def topic_answers(
    storage: ClusterStorage, prices: PriceList, sweep_command: str, signs: Signs
) -> Row:
    """The answers for all topics with bytes: those with a problem first, then the largest local
    tier."""
    price = prices.mean_price(storage.remote_bytes)
    topics = [
        _topic_row(topic, price, storage.read_at_ms, signs) for topic in storage.topics.values()
    ]
    return {
        "price_per_gib_month": price,
        "forecast_months": FORECAST_MONTHS,
        "sweep_command": sweep_command,
        "metadata_topic": metadata_topic_row(storage),
        "topics": sorted(
            (topic for topic in topics if topic["local_bytes"] or topic["remote_bytes"]),
            key=lambda row: (not _has_problem(row["holds"]), -row["local_bytes"]),
        ),
        "leftovers": [
            row for topic in storage.topics.values() for row in _leftover_rows(topic, storage)
        ],
    }


def storage_problems(storage: ClusterStorage, signs: Signs) -> list[Row]:
    """What somebody has to act on: brokers that do not answer, settings and disks that cannot be
    read, partitions without a leader, copies that fail or have halted. `topic` is null for a
    broker, `bytes` unless copies are the problem.
    `partitions` are those with most of the bytes, at most PARTITIONS_NAMED_MAX, largest first: the
    metrics tell of copies by topic, so all partitions with segments that wait are meant.
    """
    return [
        *(
            {
                "topic": None,
                "cause": f"broker {broker.broker_id} does not answer",
                "bytes": None,
                "partitions": [],
                "failures": 0,
                "text": f"{broker.error}. The numbers leave out what only it knows.",
            }
            for broker in storage.brokers
            if broker.error is not None
        ),
        *(
            row
            for topic in storage.topics.values()
            for row in topic_problems(topic, storage.read_at_ms, signs)
        ),
    ]


def topic_problems(topic: TopicStorage, now_ms: TimestampMs, signs: Signs) -> list[Row]:
    """The part of `storage_problems` for one topic."""
    name = topic.state.name
    silent: defaultdict[str | None, list[int]] = defaultdict(list)
    for partition in topic.partitions:
        if partition.sums is None:
            silent[partition.state.error].append(partition.state.partition.partition)
    rows: list[Row] = []
    if topic.state.settings_error is not None:
        text = (
            f"{topic.state.settings_error}. Whether it is tiered and its retention are not known,"
            " so its lags are left out. Reading settings needs DescribeConfigs on the topic."
        )
        rows.append(_problem(name, "its settings are unknown", text))
    for error, lost in silent.items():
        text = f"{_numbered(lost)}: {error}. The sums leave them out."
        rows.append(_problem(name, "partitions do not answer", text))
    hidden: defaultdict[str, list[int]] = defaultdict(list)
    for partition in topic.partitions:
        if partition.sums is not None and partition.state.disks_error is not None:
            hidden[partition.state.disks_error].append(partition.state.partition.partition)
    for error, unseen in hidden.items():
        text = (
            f"{_numbered(unseen)}: {error}. Their bytes on disks count as 0. Reading them needs"
            " Describe on the cluster."
        )
        rows.append(_problem(name, "local bytes are unknown", text))
    for hold in _hold_rows(topic, now_ms, signs):
        if hold["cause"] in PROBLEMS:
            sizes = {key: hold[key] for key in ("bytes", "failures")}
            rows.append(
                {
                    "topic": name,
                    "cause": hold["cause"],
                    **sizes,
                    "partitions": hold["partition_numbers"],
                    "text": hold["remedy"],
                }
            )
    return rows


def _problem(topic: str, cause: str, text: str) -> Row:
    """A problem that is not one of copies."""
    return {
        "topic": topic,
        "cause": cause,
        "bytes": None,
        "partitions": [],
        "failures": 0,
        "text": text,
    }


def _numbered(partitions: Sequence[int]) -> str:
    numbers = ", ".join(map(str, partitions[:PARTITIONS_NAMED_MAX]))
    return f"Partition {numbers}{', ...' if len(partitions) > PARTITIONS_NAMED_MAX else ''}"


def _has_problem(holds: Iterable[Row]) -> bool:
    return any(hold["cause"] in PROBLEMS for hold in holds)


def _topic_row(topic: TopicStorage, price: float, now_ms: TimestampMs, signs: Signs) -> Row:
    return {
        "topic": topic.state.name,
        "is_internal": topic.state.is_internal,
        "local_bytes": topic.sums.local_bytes,
        "remote_bytes": topic.sums.remote_bytes,
        "holds": _hold_rows(topic, now_ms, signs),
        "cost_per_month": monthly_cost(topic.sums.remote_bytes, price),
        **_forecast_row(topic, price, now_ms),
    }


def _hold_rows(topic: TopicStorage, now_ms: TimestampMs, signs: Signs) -> list[Row]:
    """The sums over all partitions by cause, each with the partition that has the most bytes of
    it. Problems come first, then the largest sum.
    """
    holds: dict[HoldCause, list[tuple[Hold, int]]] = defaultdict(list)
    seen = signs.get(topic.state.name)
    for storage, of_partition in zip(topic.partitions, _shared(seen, topic), strict=True):
        for hold in _holds(topic, storage, now_ms, of_partition):
            holds[hold.cause].append((hold, storage.state.partition.partition))
    rows = []
    for cause, held in holds.items():
        held.sort(key=lambda one: -one[0].size_in_bytes)
        worst, partition = held[0]
        since = [hold.since_ms for hold, _ in held if hold.since_ms is not None]
        rows.append(
            {
                "cause": cause.value,
                "bytes": sum(hold.size_in_bytes for hold, _ in held),
                "partitions": len(held),
                "attempts": sum(hold.attempts for hold, _ in held),
                "since_ms": min(since, default=None),
                "worst_partition": partition,
                "partition_numbers": [number for _, number in held[:PARTITIONS_NAMED_MAX]],
                "first_offset": worst.first_offset,
                "failures": seen.failures if seen and cause is HoldCause.COPY_FAILED else 0,
                "remedy": _remedy(cause, seen),
            }
        )
    return sorted(rows, key=lambda row: (row["cause"] not in PROBLEMS, -row["bytes"]))


def _remedy(cause: HoldCause, seen: CopySigns | None) -> str:
    if cause is HoldCause.COPY_WAITS and seen is None:
        return _WAITS_FOR_AN_UNKNOWN_REASON
    if cause is HoldCause.COPY_FAILED and seen is not None and seen.store_reasons:
        return f"The broker's reason: {', '.join(seen.store_reasons)}. {_REMEDIES[cause]}"
    return _REMEDIES[cause]


def _shared(seen: CopySigns | None, topic: TopicStorage) -> list[CopySigns | None]:
    """The signs of each partition. Metrics have the lag of the topic alone, and each partition gets
    its share by the bytes that are not copied."""
    if seen is None or seen.lag_bytes is None:
        return [seen] * len(topic.partitions)
    uncopied = [
        0 if partition.sums is None else partition.sums.local_bytes - partition.sums.overlap_bytes
        for partition in topic.partitions
    ]
    whole = max(1, sum(uncopied))
    return [replace(seen, lag_bytes=round(seen.lag_bytes * size / whole)) for size in uncopied]


def _holds(
    topic: TopicStorage,
    partition: PartitionStorage,
    now_ms: TimestampMs,
    signs: CopySigns | None,
) -> list[Hold]:
    local = partition.state.local
    if local is None or partition.sums is None or topic.state.settings_error is not None:
        return []
    return local_holds(
        local,
        partition.segments,
        partition.sums,
        topic.state.tier_settings,
        now_ms,
        is_tiered=topic.state.is_tiered,
        signs=signs,
    )


def _forecast_row(topic: TopicStorage, price: float, now_ms: TimestampMs) -> Row:
    """The forecast of a topic. Null if the history of one of its partitions is too short."""
    growths = [
        growth(partition.segments, now_ms)
        for partition in topic.partitions
        if len(partition.segments)
    ]
    rates = [past.bytes_per_ms for past in growths]
    row: Row = {"growth_bytes_per_day": _sum(None if r is None else r * DAY_MS for r in rates)}
    sizes = [
        _sum(
            forecast_bytes(partition.segments, topic.state.retention, now_ms, months * MONTH_MS)
            for partition in topic.partitions
            if len(partition.segments)
        )
        for months in FORECAST_MONTHS
    ]
    return {
        **row,
        "forecast_bytes": sizes,
        "forecast_cost_per_month": [
            None if size is None else monthly_cost(size, price) for size in sizes
        ],
    }


def _sum(numbers: Iterable[float | None]) -> int | None:
    values = list(numbers)
    return None if None in values else round(sum(value for value in values if value is not None))


def _leftover_rows(topic: TopicStorage, storage: ClusterStorage) -> list[Row]:
    return [
        _leftover_row(topic, partition.state.partition.partition, left, storage.read_at_ms)
        for partition in topic.partitions
        if partition.state.local is not None
        for left in leftovers(partition.state.local, partition.segments, storage.read_at_ms)
    ]


def _leftover_row(topic: TopicStorage, partition: int, left: Leftover, now_ms: TimestampMs) -> Row:
    return {
        "topic": topic.state.name,
        "partition": partition,
        "cause": left.cause.value,
        "segments": left.segments,
        "bytes": left.size_in_bytes,
        "oldest_s": max(0, now_ms - left.oldest_event_ms) / 1000,
        "first_offset": left.first_offset,
    }
