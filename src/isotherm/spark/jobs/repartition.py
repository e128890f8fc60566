"""Copies a topic's committed records into the history of another topic (repartition).

The rows come from the Spark source, and go through `load`. Records of one key keep their order: a
key has been in one partition of the old topic, and the records of a partition stay in the order of
their offsets. Between the partitions of the old topic a record's place is how far into its
partition it lies, so that the new partitions are about in order of time if the old ones cover the
same time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as sql

from isotherm.errors import PolicyViolationError
from isotherm.spark.jobs.packed_rows import places_of
from isotherm.spark.mapped_read import read
from isotherm.spark.options import READ_COMMITTED
from isotherm.types import Offset, TopicIdPartition

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from isotherm.spark.plan.offsets import OffsetBounds

_PLACES = 2.0**40


PLACE = "place"
TIE = "tie"


class OldRange(NamedTuple):
    """The offsets of one partition of the old topic that a run copies: half-open."""

    partition: int
    start: Offset
    end: Offset


class TranslatedOffset(NamedTuple):
    """The offset of a group in a partition of the new topic. `repeated` is the number of records
    from there on that the group has seen."""

    group: str
    partition: int
    offset: Offset
    repeated: int


def old_ranges(bounds: Mapping[int, OffsetBounds], starts: Mapping[int, Offset]) -> list[OldRange]:
    """What is to be copied: from the log start, or where an earlier run has ended (`starts`).

    Raises PolicyViolationError if retention has deleted records that the earlier run did not copy.
    """
    ranges = []
    for partition, offsets in sorted(bounds.items()):
        start = starts.get(partition, offsets.start)
        if start < offsets.start:
            raise PolicyViolationError(
                "records that an earlier run has not copied are deleted"
                f" partition={partition} copied_to={start} start_offset={offsets.start}"
            )
        ranges.append(OldRange(partition, start, offsets.end))
    return ranges


def old_rows(
    spark: SparkSession, options: Mapping[str, object], topic: str, ranges: Sequence[OldRange]
) -> DataFrame:
    """The committed records of these ranges, with their place in the new topic.

    Columns of the record, PLACE, and TIE, which is offset * old_count + partition: a unique number
    that ascends within a partition.
    """
    texts = {
        **options,
        "subscribe": topic,
        "includeHeaders": "true",
        "isolationLevel": READ_COMMITTED,
        "startingOffsets": json.dumps({topic: {str(e.partition): e.start for e in ranges}}),
        "endingOffsets": json.dumps({topic: {str(e.partition): e.end for e in ranges}}),
    }
    rows = read(spark, texts)
    return rows.select(
        "key",
        "value",
        "headers",
        "timestamp",
        "timestampType",
        _place(ranges).alias(PLACE),
        (sql.col("offset") * old_count(ranges) + sql.col("partition")).alias(TIE),
    )


def old_count(ranges: Iterable[OldRange]) -> int:
    """The number of partitions of the old topic."""
    return max((old_range.partition for old_range in ranges), default=0) + 1


def _place(ranges: Iterable[OldRange]) -> Column:
    """A number that never falls within a partition."""
    place = sql.lit(0.0)
    for old_range in ranges:
        share = (sql.col("offset") - old_range.start) / sql.lit(
            float(max(old_range.end - old_range.start, 1))
        )
        place = sql.when(sql.col("partition") == old_range.partition, share * _PLACES).otherwise(
            place
        )
    return sql.floor(place).cast("long")


def translated_offsets(
    packed: DataFrame,
    ranges: Sequence[OldRange],
    committed: Mapping[str, Mapping[int, Offset]],
    starts: Mapping[TopicIdPartition, Offset],
) -> list[TranslatedOffset]:
    """For each group and new partition the largest offset before which the group has seen
    everything.

    `packed` has the rows of a run with their new partitions, `committed` the groups' offsets by
    partition of the old topic. A partition without a committed offset counts as unseen.
    """
    placed = packed.mapInArrow(places_of, "partition int, place long, tie long")
    counts = {
        row["partition"]: row["count"] for row in placed.groupBy("partition").count().collect()
    }
    order = sql.struct(PLACE, TIE)
    count = old_count(ranges)
    old_partition = sql.col(TIE) % count
    translated = []
    for group, offsets in sorted(committed.items()):
        is_seen = sql.lit(False)
        for partition, offset in offsets.items():
            is_seen = is_seen | ((old_partition == partition) & (sql.col(TIE) < offset * count))
        marked = placed.select("partition", order.alias("at"), is_seen.alias("is_seen"))
        first = marked.where("NOT is_seen").groupBy("partition").agg(sql.min("at").alias("first"))
        before = sql.col("first").isNull() | (sql.col("at") < sql.col("first"))
        rows = (
            marked.join(sql.broadcast(first), "partition", "left")
            .groupBy("partition")
            .agg(
                sql.count_if(before).alias("before"),
                sql.count_if(~before & sql.col("is_seen")).alias("repeated"),
            )
            .collect()
        )
        by_partition = {row.partition: row for row in rows}
        for owner, start in starts.items():
            row = by_partition.get(owner.partition)
            # A partition without a record of this run: the group has seen all of it.
            before_count = counts.get(owner.partition, 0) if row is None else row.before
            repeated = 0 if row is None else row.repeated
            translated.append(
                TranslatedOffset(group, owner.partition, start + before_count, repeated)
            )
    return translated


def check_groups_follow(
    committed: Mapping[str, Mapping[int, Offset]], ranges: Iterable[OldRange]
) -> None:
    """Raise PolicyViolationError for a group that has not seen all records of an earlier run: it is
    not known any more where these are."""
    for old_range in ranges:
        for group, offsets in committed.items():
            if offsets.get(old_range.partition, 0) < old_range.start:
                raise PolicyViolationError(
                    "the group has not seen all that an earlier run has copied"
                    f" group={group} partition={old_range.partition} copied_to={old_range.start}"
                    f" committed={offsets.get(old_range.partition)}"
                    " hint='translate its offsets in the run that copies these records'"
                )
