"""Compares the segments of a full history with those of its replacement.

The replacement is a projection, a topic of keyed states, or the keyed records of a migrated topic,
which its compaction keeps. Each difference is a row with the segment, the field and both values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from isotherm.remote.metadata.api import MetadataColumns
from isotherm.remote.metadata.topic.log_files import OnDamage
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.jobs.replay import AsOf
from isotherm.spark.metadata.projection import Projection
from isotherm.spark.metadata.remote_metadata_log import (
    LogIdentity,
    LogSlice,
    MetadataLog,
    RecordRun,
)
from isotherm.types import NO_LEADER_EPOCH

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MISSING = "missing"
EXTRA = "extra"
DIFFERENT = "different"

_IDENTITY = ("topic_id", "partition", "segment_id")
_COMPARED = (
    "topic", "start_offset", "end_offset", "state", "leader_epochs", "max_timestamp_ms",
    "event_timestamp_ms", "broker_id", "size_in_bytes", "custom_metadata", "txn_index_empty",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class KeyedRecordsOf:
    """A `MetadataLog` with only the keyed records of another log, which compaction keeps."""

    log: MetadataLog

    @property
    def topic(self) -> str:
        return self.log.topic

    def identity(self) -> LogIdentity:
        return self.log.identity()

    def slices(self) -> list[LogSlice]:
        return self.log.slices()

    def read(self, part: LogSlice, on_damage: OnDamage) -> Iterator[RecordRun]:
        for run in self.log.read(part, on_damage):
            is_keyed = run.columns.key.is_valid()
            rows = is_keyed.to_numpy(zero_copy_only=False)
            columns = MetadataColumns(
                run.columns.offset[rows],
                run.columns.key.filter(is_keyed),
                run.columns.value.filter(is_keyed),
                run.columns.next_offset,
            )
            yield RecordRun(columns, run.timestamp_ms[rows])


def verify(expected: DataFrame, actual: DataFrame) -> DataFrame:
    """The differences between two DataFrames of segments (`Replay.segments`, `projected_segments`).

    Columns: topic_id, partition, segment_id, topic, kind, field, expected, found. A segment on one
    side only is one row. A segment on both sides has one row for each different field. The broker's
    leader epoch is compared only if the history has one, because a migration otherwise fills in a
    default.
    """
    from pyspark.sql import functions as sql

    fields = [*_COMPARED, "broker_leader_epoch"]
    left = expected.select(*_IDENTITY, sql.struct(*fields).alias("left"))
    right = actual.select(*_IDENTITY, sql.struct(*fields).alias("right"))
    joined = left.join(right, list(_IDENTITY), "full_outer")
    both = sql.col("left").isNotNull() & sql.col("right").isNotNull()
    one_sided = sql.struct(
        sql.when(sql.col("right").isNull(), MISSING).otherwise(EXTRA).alias("kind"),
        sql.lit("segment").alias("field"),
        _summary("left").alias("expected"),
        _summary("right").alias("found"),
    )
    differences = [_difference(name) for name in fields]
    reported = sql.when(both, sql.array_compact(sql.array(*differences))).otherwise(
        sql.array(one_sided)
    )
    rows = joined.select(
        *_IDENTITY,
        sql.coalesce("left.topic", "right.topic").alias("topic"),
        sql.explode(reported).alias("difference"),
    )
    return rows.select(*_IDENTITY, "topic", "difference.*").orderBy("topic", *_IDENTITY, "field")


def projected_point(target: ObjectStoreSettings, log: MetadataLog) -> AsOf:
    """The point up to which a projection of `log` was updated. Later events are not compared.

    Raises ConfigError if it is a projection of another topic.
    """
    projection = Projection(target)
    projection.check(log.identity())
    offsets = dict.fromkeys((log_slice.number for log_slice in log.slices()), 0)
    partitions = projection.partitions().values()
    return AsOf(offsets | {partition.number: partition.next_offset for partition in partitions})


def _difference(name: str) -> Column:
    """The difference in one field as a struct, or null."""
    from pyspark.sql import functions as sql

    left, right = sql.col(f"left.{name}"), sql.col(f"right.{name}")
    differs = ~left.eqNullSafe(right)
    if name == "broker_leader_epoch":
        differs = differs & (left > NO_LEADER_EPOCH)
    return sql.when(
        differs,
        sql.struct(
            sql.lit(DIFFERENT).alias("kind"),
            sql.lit(name).alias("field"),
            _text(left, name).alias("expected"),
            _text(right, name).alias("found"),
        ),
    )


def _summary(side: str) -> Column:
    """State and offsets of a segment that is on one side only. Null for the other side."""
    from pyspark.sql import functions as sql

    parts = (sql.col(f"{side}.{name}") for name in ("state", "start_offset", "end_offset"))
    return sql.when(sql.col(side).isNotNull(), sql.format_string("%s %d-%d", *parts))


def _text(value: Column, name: str) -> Column:
    from pyspark.sql import functions as sql

    if name == "leader_epochs":
        return sql.to_json(value)
    return sql.hex(value) if name == "custom_metadata" else value.cast("string")
