"""Tables (DataFrames) about the health of the remote tier, from its metadata topic.

The events show durations and the growth of the topic. The replay shows the current state. The
events of a compacted topic are in its audit topic, which the caller then passes as `history`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as sql

from isotherm.errors import CorruptMetadataError
from isotherm.remote.segment_metadata import RemoteLogSegmentState
from isotherm.remote.storage.layout.aiven_custom_metadata import read_custom_metadata
from isotherm.spark.jobs.event_frame import KEYED_KINDS, metadata_events
from isotherm.spark.jobs.replay import replay
from isotherm.spark.metadata.remote_metadata_log import MetadataLog
from isotherm.spark.small_input import kept, local_frame, map_batches
from isotherm.types import REMOTE_LOG_METADATA_AUDIT_TOPIC, TimestampMs

DAY_MS = 86_400_000
FORECAST_DAYS = (30, 90, 365)
FORECAST_WINDOW_DAYS = 30
STARTED, FINISHED, DELETE_STARTED, DELETE_FINISHED = RemoteLogSegmentState

UPLOAD_ABANDONED = "upload abandoned"
UPLOAD_NOT_REMOVED = "failed upload not removed"
DELETION_UNFINISHED = "deletion unfinished"
COVERED = "covered by another copy"
TOPIC_REPLACED = "topic was made again"
UNKNOWN_START = "start not known"

_OWNER = ("topic", "topic_id", "partition")
_SEGMENT = ("topic_id", "partition", "segment_id")

_LIMITS: list[Any] = [
    ("topic", pa.string()),
    ("retention_ms", pa.int64()),
    ("retention_bytes", pa.int64()),
]
_SIZES: list[Any] = [
    *((name, pa.string()) for name in ("topic", "topic_id")),
    ("partition", pa.int32()),
    ("size_in_bytes", pa.int64()),
    ("remote_size", pa.int64()),
]


@dataclass(frozen=True, slots=True)
class Retention:
    """The retention of a topic, from its configuration; -1 means no limit."""

    ms: int = -1
    bytes: int = -1


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """`now_ms` is the time with which retention and the age of leftovers are computed. An
    unfinished state older than `grace_ms` counts as left over, and so does a segment whose
    retention.ms is over for longer."""

    now_ms: TimestampMs
    grace_ms: int = 3_600_000
    retention: Mapping[str, Retention] = field(default_factory=dict)


class Audit:
    """The tables of an audit. A context manager: Spark persists their common DataFrames until it
    ends."""

    def __init__(
        self,
        spark: SparkSession,
        log: MetadataLog,
        settings: AuditSettings,
        history: MetadataLog | None = None,
    ) -> None:
        self._spark = spark
        self._settings = settings
        events = history or log
        # Its records have keys as well, but it is not compacted.
        self._may_be_compacted = events.topic != REMOTE_LOG_METADATA_AUDIT_TOPIC
        self.events = kept(metadata_events(spark, events))
        self.replay = replay(spark, log)
        self._lives = kept(self._segment_lives())
        self._days = kept(self._daily())
        self._finished = self.replay.segments.where(f"state = '{FINISHED.name}'")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for frame in (self._days, self._lives, self.events):
            frame.unpersist()
        self.replay.__exit__(kind, error, trace)

    @property
    def tables(self) -> dict[str, DataFrame]:
        return {
            "partitions": self.partitions(),
            "orphans": self.orphans(),
            "coverage": self.coverage(),
            "retention": self.beyond_retention(),
            "sizes": self.sizes(),
            "growth": self.growth(),
            "forecast": self.forecast(),
        }

    def partitions(self) -> DataFrame:
        """Per partition, the numbers of uploads, failed uploads and repeated uploads, and the
        durations of uploads, lives and deletions in seconds."""
        lives = self._lives.withColumns(
            {
                "upload_s": _seconds("started_ms", "finished_ms"),
                "life_s": _seconds("finished_ms", "deletion_ms"),
                "deletion_s": _seconds("deletion_ms", "gone_ms"),
                "has_failed": sql.col("finished_ms").isNull() & sql.col("deletion_ms").isNotNull(),
            }
        )
        starts = lives.groupBy(*_OWNER, "start_offset").agg(
            sql.greatest(sql.count("started_ms") - 1, sql.lit(0)).alias("again")
        )
        retried = starts.groupBy(*_OWNER).agg(sql.sum("again").alias("retried_uploads"))
        durations = [
            sql.percentile_approx(name, quantile).alias(f"{name}_{label}")
            for name in ("upload_s", "life_s", "deletion_s")
            for quantile, label in ((0.5, "median"), (0.95, "p95"), (1.0, "max"))
        ]
        counted = lives.groupBy(*_OWNER).agg(
            sql.count("started_ms").alias("uploads"),
            sql.count("finished_ms").alias("finished"),
            sql.count("gone_ms").alias("deleted"),
            sql.sum(sql.col("has_failed").cast("long")).alias("failed_uploads"),
            *durations,
        )
        return counted.join(retried, list(_OWNER)).orderBy(*_OWNER)

    def orphans(self) -> DataFrame:
        """Segments that take space but are not part of the log, or stay in an unfinished state. The
        column `cause` tells which."""
        settings = self._settings
        live = self.replay.segments
        is_old = sql.col("event_timestamp_ms") < settings.now_ms - settings.grace_ms
        state = sql.col("state")
        incarnations = (
            self.events.where("topic is not null")
            .groupBy("topic")
            .agg(sql.max_by("topic_id", "event_timestamp_ms").alias("newest_id"))
        )
        finished_before = self._lives.select(*_SEGMENT, "finished_ms")
        # Of two segments that begin together the longer one is first, and covers the other.
        by_start = Window.partitionBy(*_OWNER).orderBy("start_offset", sql.desc("end_offset"))
        reach = sql.max(sql.when(state == FINISHED.name, sql.col("end_offset"))).over(
            by_start.rowsBetween(Window.unboundedPreceding, -1)
        )
        counted = (
            live.withColumn("reach", reach)
            .join(finished_before, list(_SEGMENT), "left")
            .join(incarnations, "topic", "left")
        )
        cause = (
            sql.when(sql.col("newest_id") != sql.col("topic_id"), TOPIC_REPLACED)
            .when((state == STARTED.name) & is_old, UPLOAD_ABANDONED)
            .when(
                (state == DELETE_STARTED.name) & is_old & sql.col("finished_ms").isNull(),
                UPLOAD_NOT_REMOVED,
            )
            .when((state == DELETE_STARTED.name) & is_old, DELETION_UNFINISHED)
            .when((state == FINISHED.name) & (sql.col("end_offset") <= sql.col("reach")), COVERED)
        )
        columns = ["segment_id", "start_offset", "end_offset", "state", "event_timestamp_ms"]
        with_cause = counted.withColumn("cause", cause).where("cause is not null")
        unknown = self._lives.where("start_offset is null").select(
            *_OWNER,
            "segment_id",
            "start_offset",
            "end_offset",
            sql.lit(None).cast("string").alias("state"),
            sql.col("last_ms").alias("event_timestamp_ms"),
            sql.lit(None).cast("int").alias("size_in_bytes"),
            sql.lit(UNKNOWN_START).alias("cause"),
        )
        rows = with_cause.select(*_OWNER, *columns, "size_in_bytes", "cause")
        return rows.unionByName(unknown).orderBy("cause", *_OWNER, "start_offset")

    def coverage(self) -> DataFrame:
        """Gaps and overlaps between the finished segments of a partition; ends are inclusive."""
        before = (
            Window.partitionBy(*_OWNER)
            .orderBy("start_offset", "end_offset")
            .rowsBetween(Window.unboundedPreceding, -1)
        )
        finished = self._finished.withColumn("reach", sql.max("end_offset").over(before))
        start, end, reach = (sql.col(name) for name in ("start_offset", "end_offset", "reach"))
        # `reach + 1` could overflow: a damaged end offset may be the largest long.
        is_gap = start - 1 > reach
        kind = sql.when(is_gap, "gap").when(start <= reach, "overlap")
        return (
            finished.withColumn("kind", kind)
            .where("kind is not null")
            .select(
                *_OWNER,
                "kind",
                sql.when(is_gap, reach + 1).otherwise(start).alias("first_offset"),
                sql.when(is_gap, start - 1).otherwise(sql.least(end, reach)).alias("last_offset"),
                "segment_id",
            )
            .orderBy(*_OWNER, "first_offset")
        )

    def beyond_retention(self) -> DataFrame:
        """Finished segments that retention should have deleted, by age or by size. One whose time
        is over for less than the grace period is not late: brokers look for it at intervals."""
        retention = [
            {"topic": topic, "retention_ms": limits.ms, "retention_bytes": limits.bytes}
            for topic, limits in self._settings.retention.items()
        ]
        # Not from Python's rows, for which Spark would start a job.
        limits = local_frame(
            self._spark,
            [pa.RecordBatch.from_pylist(retention, pa.schema(_LIMITS))],
            pa.schema(_LIMITS),
        )
        newer = (
            Window.partitionBy(*_OWNER)
            .orderBy(sql.desc("start_offset"))
            .rowsBetween(Window.unboundedPreceding, 0)
        )
        kept = self._finished.withColumn("kept_bytes", sql.sum("size_in_bytes").over(newer))
        joined = kept.join(limits, "topic")
        latest_ms = self._settings.now_ms - self._settings.grace_ms
        age_ms = sql.try_subtract(sql.lit(latest_ms), sql.col("max_timestamp_ms"))
        by_age = (sql.col("retention_ms") >= 0) & (age_ms > sql.col("retention_ms"))
        by_size = (sql.col("retention_bytes") >= 0) & (
            # As in Kafka, a segment goes if the newer ones alone reach the limit.
            sql.col("kept_bytes") - sql.col("size_in_bytes") >= sql.col("retention_bytes")
        )
        return (
            joined.withColumn("limit", sql.when(by_age, "age").when(by_size, "size"))
            .where("limit is not null")
            .select(
                *_OWNER, "segment_id", "start_offset", "end_offset", "max_timestamp_ms",
                "size_in_bytes", "limit",
            )
            .orderBy(*_OWNER, "start_offset")
        )  # fmt: skip

    def sizes(self) -> DataFrame:
        """Per topic, the bytes of its finished segments: of their logs, and of all their objects if
        custom metadata contains that size."""
        columns = ["topic", "topic_id", "partition", "size_in_bytes", "custom_metadata"]
        finished = self._finished.select(*columns)
        sized = map_batches(finished, _with_remote_size, pa.schema(_SIZES))
        return (
            sized.groupBy("topic", "topic_id")
            .agg(
                sql.count("*").alias("segments"),
                sql.sum("size_in_bytes").alias("log_bytes"),
                sql.count("remote_size").alias("with_remote_size"),
                sql.sum(sql.when(sql.col("remote_size").isNotNull(), sql.col("size_in_bytes")))
                .alias("their_log_bytes"),
                sql.sum("remote_size").alias("their_remote_bytes"),
            )
            .orderBy("topic", "topic_id")
        )  # fmt: skip

    def growth(self) -> DataFrame:
        """Per day (UTC, by append time): records and bytes of the topic, counts of events, and the
        number of live segments at the end of the day."""
        return self._days.drop("has_keys").orderBy("day")

    def forecast(self) -> DataFrame:
        """The future size of the topic, if it grows as in its last 30 days. Empty if the events
        are of one day, which gives no rate, or of a compacted topic, which is bounded."""
        # A window over all days, since a join with their sums would compute the days twice.
        all_days = Window.partitionBy()
        window = self._days.withColumns(
            {
                "last_day": sql.max("day").over(all_days),
                "bytes_now": sql.max("bytes_so_far").over(all_days),
                "records_now": sql.sum("records").over(all_days),
                "is_compacted": sql.bool_or("has_keys").over(all_days)
                & sql.lit(self._may_be_compacted),
            }
        ).where(sql.datediff("last_day", "day") < sql.lit(FORECAST_WINDOW_DAYS))
        days = sql.datediff(sql.max("last_day"), sql.min("day")) + 1
        rates = window.agg(
            sql.max("last_day").alias("last_day"),
            sql.max("bytes_now").alias("bytes_now"),
            sql.max("records_now").alias("records_now"),
            sql.bool_or("is_compacted").alias("is_compacted"),
            days.alias("days"),
            (sql.sum("bytes") / days).alias("bytes_a_day"),
            (sql.sum("records") / days).alias("records_a_day"),
        )
        usable = rates.where("days > 1 and not is_compacted")
        ahead = sql.explode(sql.array(*(sql.lit(days) for days in FORECAST_DAYS)))
        more = sql.col("days_ahead")
        records = sql.col("records_now") + more * sql.col("records_a_day")
        in_bytes = sql.col("bytes_now") + more * sql.col("bytes_a_day")
        return usable.withColumn("days_ahead", ahead).select(
            "days_ahead",
            sql.date_add("last_day", more).alias("day"),
            records.cast("long").alias("records"),
            in_bytes.cast("long").alias("bytes"),
        ).orderBy("days_ahead")  # fmt: skip

    def _daily(self) -> DataFrame:
        """The columns of `growth`, and whether a record of the day has a key."""
        state = sql.col("state")

        def times(reached: RemoteLogSegmentState) -> Any:
            is_one = (state == reached.value) & sql.col("segment_id").isNotNull()
            return sql.sum(is_one.cast("long"))

        finished = self._lives.where("finished_ms is not null and start_offset is not null")
        events = self.events.join(
            finished.select(*_SEGMENT, sql.lit(1).alias("was_live")), list(_SEGMENT), "left"
        )
        day = sql.to_date(sql.timestamp_millis("timestamp_ms"))
        daily = events.groupBy(day.alias("day")).agg(
            sql.count("*").alias("records"),
            sql.sum("size_of_record").alias("bytes"),
            times(STARTED).alias("uploads_started"),
            times(FINISHED).alias("uploads_finished"),
            times(DELETE_FINISHED).alias("segments_deleted"),
            sql.sum(
                sql.when(state == FINISHED.value, sql.col("was_live"))
                .when(state == DELETE_FINISHED.value, -sql.col("was_live"))
                .otherwise(0)
            ).alias("more_live"),
            sql.bool_or(sql.col("kind").isin(*KEYED_KINDS)).alias("has_keys"),
        )
        so_far = Window.orderBy("day").rowsBetween(Window.unboundedPreceding, 0)
        return daily.withColumns(
            {
                "live_segments": sql.coalesce(sql.sum("more_live").over(so_far), sql.lit(0)),
                "bytes_so_far": sql.sum("bytes").over(so_far),
            }
        ).drop("more_live")

    def _segment_lives(self) -> DataFrame:
        """One row for each segment in the events, with the time at which it first had each
        state.
        """
        state, time = sql.col("state"), sql.col("event_timestamp_ms")
        moments = [
            sql.min(sql.when(state == reached.value, time)).alias(name)
            for reached, name in (
                (STARTED, "started_ms"),
                (FINISHED, "finished_ms"),
                (DELETE_STARTED, "deletion_ms"),
                (DELETE_FINISHED, "gone_ms"),
            )
        ]
        of_segments = self.events.where("segment_id is not null")
        return of_segments.groupBy(*_OWNER, "segment_id").agg(
            *moments,
            sql.max(time).alias("last_ms"),
            sql.max("start_offset").alias("start_offset"),
            sql.max("end_offset").alias("end_offset"),
        )


def _seconds(start: str, end: str) -> Column:
    """Seconds between two times in milliseconds. Null if the difference overflows a long, as it may
    if the times are damaged."""
    return sql.try_subtract(sql.col(end), sql.col(start)) / 1000


def _with_remote_size(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Replace the column custom_metadata by the size in it.

    Null unless it is the Aiven layout's.
    """
    for batch in batches:
        sizes = [_remote_size(value) for value in batch.column("custom_metadata").to_pylist()]
        columns = [batch.column(name) for name in batch.schema.names[:-1]]
        columns[-1] = columns[-1].cast(pa.int64())
        arrays = [*columns, pa.array(sizes, pa.int64())]
        yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema(_SIZES))


def _remote_size(custom_metadata: bytes | None) -> int | None:
    try:
        return read_custom_metadata(custom_metadata).remote_size
    except CorruptMetadataError:
        return None
