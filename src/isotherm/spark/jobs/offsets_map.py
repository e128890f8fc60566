"""The folder of a repartition's map: Parquet files of ranges, one file for each run.

A run stores its ranges when its segments are staged. Before the next run the map is compared with
the new topic: its last ranges end where the partitions end, or a run is missing in one of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import functions as sql

from isotherm.errors import ConfigError
from isotherm.spark.jobs.moved_offsets import MOVED
from isotherm.spark.table_frame import table_frame
from isotherm.types import Offset, TopicIdPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RANGE_BYTES_MIN = 64 * 1024
"""Rows of a range. They are more if a run would have more ranges than RANGES_MAX."""
RANGES_MAX = 1_000_000
"""The driver has the ranges of a run in memory, some 50 bytes each."""
_NO_PATH = "PATH_NOT_FOUND"


class CopiedTo(NamedTuple):
    """Where runs have ended: the offset behind what is copied by partition of the old topic, and
    the log ends of the new one. Both are empty before the first run; `new` is empty if it is not
    known."""

    old: Mapping[int, Offset]
    new: Mapping[int, Offset]


class MapOfTopics(NamedTuple):
    """A folder, and the topics that one repartition is about."""

    folder: str
    old: TopicIdPartition
    new: TopicIdPartition


def range_bytes(total_bytes: int, old_partitions: int) -> int:
    """The rows of a range for a run of so many bytes."""
    return max(RANGE_BYTES_MIN, total_bytes * old_partitions // RANGES_MAX)


def write_map(spark: SparkSession, place: MapOfTopics, moved: pa.Table) -> None:
    """Add the ranges of a run, a table of MOVED."""
    frame = table_frame(spark, moved).withColumns(
        {name: sql.lit(text) for name, text in _topics(place).items()}
    )
    frame.coalesce(1).write.mode("append").parquet(place.folder)


def read_map(spark: SparkSession, place: MapOfTopics) -> DataFrame | None:
    """The ranges of all earlier runs with the columns of MOVED, or None if there are none. Raises
    ConfigError if the folder has something else."""
    try:
        frame = spark.read.parquet(place.folder)
    except AnalysisException as error:
        if error.getCondition() == _NO_PATH:
            return None
        raise ConfigError(
            f"the folder has no map of offsets folder={place.folder} reason={error.getCondition()}"
            " hint='--offsets-map names a new folder, or that of earlier runs'"
        ) from error
    missing = {*MOVED.names, *_topics(place)} - set(frame.columns)
    if missing:
        raise ConfigError(
            f"the folder has no map of offsets folder={place.folder} missing={sorted(missing)}"
            " hint='--offsets-map names a new folder, or that of earlier runs'"
        )
    mine = frame
    for name, text in _topics(place).items():
        mine = mine.where(sql.col(name) == text)
    return mine.select(*MOVED.names)


def copied_to(ranges: DataFrame) -> CopiedTo:
    """Where the runs of a map have ended."""
    return CopiedTo(_ends(ranges, "old"), _ends(ranges, "new"))


def ended_at(ends: Mapping[int, Offset], new_ends: Mapping[int, Offset]) -> pa.Table:
    """Ranges without records, one for each old partition, up to where a run has read it: the last
    offsets may be those of markers."""
    partition, offset = next(iter(new_ends.items()))
    rows: Sequence[dict[str, int]] = [
        {
            "old_partition": old_partition,
            "old_start_offset": end,
            "old_end_offset": end,
            "new_partition": partition,
            "new_start_offset": offset,
            "new_end_offset": offset,
            "records": 0,
        }
        for old_partition, end in ends.items()
    ]
    return pa.Table.from_pylist(list(rows), schema=MOVED)


def _ends(ranges: DataFrame, side: str) -> dict[int, Offset]:
    ends = ranges.groupBy(f"{side}_partition").agg(sql.max(f"{side}_end_offset").alias("end"))
    return {row[0]: row["end"] for row in ends.collect()}


def _topics(place: MapOfTopics) -> dict[str, str]:
    return {
        "old_topic": place.old.topic,
        "old_topic_id": str(place.old.topic_id),
        "new_topic": place.new.topic,
        "new_topic_id": str(place.new.topic_id),
    }
