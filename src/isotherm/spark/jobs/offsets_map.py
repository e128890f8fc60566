"""The folder of a repartition's map: Parquet files of ranges, one file for each run.

A run stores its ranges when its segments are staged, and before the broker may adopt them. Before
the next run the map is compared with the new topic. A run with ranges behind the topic's end was
undone: it is taken out of the map. The other ranges end where the partitions end, or something else
has written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

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
_RUN, _FILE = "run", "file"


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


def write_map(spark: SparkSession, place: MapOfTopics, run: str, moved: pa.Table) -> None:
    """Add the ranges of a run, a table of MOVED."""
    frame = table_frame(spark, moved).withColumns(
        {name: sql.lit(text) for name, text in (*_topics(place).items(), (_RUN, run))}
    )
    frame.coalesce(1).write.mode("append").parquet(place.folder)


def read_map(spark: SparkSession, place: MapOfTopics) -> DataFrame | None:
    """The ranges of all earlier runs: the columns of MOVED, `run`, and `file`, where the range is.
    None if there are none. Raises ConfigError if the folder has something else."""
    try:
        frame = spark.read.parquet(place.folder)
    except AnalysisException as error:
        if error.getCondition() == _NO_PATH:
            return None
        raise ConfigError(
            f"the folder has no map of offsets folder={place.folder} reason={error.getCondition()}"
            " hint='--offsets-map names a new folder, or that of earlier runs'"
        ) from error
    missing = {*MOVED.names, *_topics(place), _RUN} - set(frame.columns)
    if missing:
        raise ConfigError(
            f"the folder has no map of offsets folder={place.folder} missing={sorted(missing)}"
            " hint='--offsets-map names a new folder, or that of earlier runs'"
        )
    mine = frame
    for name, text in _topics(place).items():
        mine = mine.where(sql.col(name) == text)
    return mine.select(*MOVED.names, _RUN, sql.col("_metadata.file_path").alias(_FILE))


def runs_behind(ranges: DataFrame, ends: Mapping[int, Offset]) -> list[str]:
    """The runs of a map with ranges behind the `ends` of the new topic."""
    largest = ranges.groupBy(_RUN, "new_partition").agg(sql.max("new_end_offset").alias("end"))
    rows = largest.collect()
    return sorted({row[_RUN] for row in rows if row.end > ends.get(row.new_partition, 0)})


def without_runs(ranges: DataFrame, runs: Sequence[str]) -> DataFrame:
    return ranges.where(~sql.col(_RUN).isin(list(runs))) if runs else ranges


def forget_runs(spark: SparkSession, ranges: DataFrame, runs: Sequence[str]) -> None:
    """Delete the files of these runs from the folder that `ranges` are read from."""
    if not runs:
        return
    java: Any = spark._jvm
    configuration = spark._jsc.hadoopConfiguration()
    for row in ranges.where(sql.col(_RUN).isin(list(runs))).select(_FILE).distinct().collect():
        path = java.org.apache.hadoop.fs.Path(java.java.net.URI(row[_FILE]))
        path.getFileSystem(configuration).delete(path, False)


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
