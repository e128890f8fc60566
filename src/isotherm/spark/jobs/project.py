"""Projects a metadata topic to a table of its live segments (KIP-1266's keyed full state), and
updates it.

Each run reads the records since the last run. A task reads the state of its metadata partition from
the table, folds the new records, and puts the new state as one object. If a run is killed, the
finished partitions keep their new state, and the next run updates the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from isotherm.errors import ConfigError
from isotherm.remote.metadata.folding.segment_fold import SEGMENTS
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.jobs.cost import Cost
from isotherm.spark.jobs.replay import cost_of_log, partition_count
from isotherm.spark.metadata.projection import ProjectedPartition, Projection, read_segments
from isotherm.spark.metadata.remote_metadata_log import LogSlice, MetadataLog, as_events
from isotherm.spark.metadata.slice_fold import DAMAGED_BATCH, SliceFold
from isotherm.spark.numbered_tasks import each_of
from isotherm.spark.requirements import table_package
from isotherm.types import Offset

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOST = "events lost"
BEYOND = "beyond the topic"
_BEGIN_ANEW = " projected; begin a new projection, from a dump if that has more"
_DONE = "projected"
_FIELDS: list[Any] = [
    ("kind", pa.string()),
    ("metadata_partition", pa.int32()),
    ("offset", pa.int64()),
    ("text", pa.string()),
    ("records", pa.int64()),
    ("segments", pa.int64()),
]
_REPORT = pa.schema(_FIELDS)
_TABLE_CLASSES = {
    "delta": "io.delta.sql.DeltaSparkSessionExtension",
    "iceberg": "org.apache.iceberg.spark.source.IcebergSource",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem of a metadata partition. If `kind` is LOST or BEYOND, the run left the partition
    unchanged."""

    metadata_partition: int
    offset: Offset
    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class ProjectionRun:
    """The counts of one run: the `records` that it read, and the live `segments` of the metadata
    partitions with new records."""

    metadata_partitions: int
    changed: int
    records: int
    segments: int
    findings: tuple[Finding, ...]


def project(spark: SparkSession, log: MetadataLog, target: ObjectStoreSettings) -> ProjectionRun:
    """Update the projection in `target` to the end of the topic, or create it.

    Raises ConfigError if `target` is a projection of another topic, or contains anything else. Only
    one run may be active at a time.
    """
    projection = Projection(target, create=True)
    projection.begin(log.identity())
    projected = projection.partitions()
    slices = log.slices()
    count = partition_count(slices)

    def work(number: int) -> Iterator[pa.RecordBatch]:
        log_slice = slices[number]
        yield from _project_slice(log, log_slice, count, target, projected.get(log_slice.number))

    # A second action would run the tasks again and put their objects twice, so this is the only
    # one.
    rows = each_of(spark, len(slices), work, _REPORT).collect()
    done = [row for row in rows if row.kind == _DONE]
    finding_rows = [row for row in rows if row.kind != _DONE]
    return ProjectionRun(
        metadata_partitions=len(slices),
        changed=sum(row.records > 0 for row in done),
        records=sum(row.records for row in done),
        segments=sum(row.segments for row in done),
        findings=tuple(
            Finding(row.metadata_partition, row.offset, row.kind, row.text) for row in finding_rows
        ),
    )


def cost_of_projecting(log: MetadataLog, target: ObjectStoreSettings) -> Cost:
    """The cost of the records that a run would read."""
    projected = Projection(target, create=True).partitions()
    return cost_of_log(log, {number: files.next_offset for number, files in projected.items()})


def projected_segments(spark: SparkSession, target: ObjectStoreSettings) -> DataFrame:
    """The projection's rows: the metadata partition and segment_fold.SEGMENTS."""
    projection = Projection(target)
    if projection.identity() is None:
        raise ConfigError(f"there is no projection url={target.url}")
    numbers = list(projection.partitions())
    schema = pa.schema([pa.field("metadata_partition", pa.int32()), *SEGMENTS])

    def read(index: int) -> Iterator[pa.RecordBatch]:
        for table in read_segments(target, lambda number: number == numbers[index]):
            repeated = pa.repeat(pa.scalar(numbers[index], pa.int32()), len(table))
            rows = table.append_column("metadata_partition", repeated)
            yield from rows.select(schema.names).cast(schema).to_batches(max_chunksize=50_000)

    return each_of(spark, len(numbers), read, schema)


def check_table_format(spark: SparkSession, name: str) -> None:
    """Raise ConfigError, which names the missing package, unless Spark can write tables of this
    format."""
    if name not in _TABLE_CLASSES:
        raise ConfigError(f"no such table format format={name} known={','.join(_TABLE_CLASSES)}")
    jvm: Any = spark._jvm
    if not jvm.org.apache.spark.util.Utils.classIsLoadable(_TABLE_CLASSES[name]):
        package = table_package(name, spark.version)
        if package is None:
            raise ConfigError(
                f"{name} has no package for this Spark: docs/spark.md lists the versions that match"
                f" spark={spark.version} hint='leave --format out: the projection is Parquet'"
            )
        raise ConfigError(
            f"Spark has no {name} here: add its package, --spark-config"
            f" spark.jars.packages={package}, and the settings its documentation names"
        )


def write_table(spark: SparkSession, target: ObjectStoreSettings, name: str, place: str) -> None:
    """Replace the Delta or Iceberg table at `place` (a path or a table's name) with the
    projection's rows, in one commit."""
    check_table_format(spark, name)
    rows = projected_segments(spark, target)
    if name == "iceberg":
        # Iceberg's tables have a name in a catalog, which creates the first version.
        rows.writeTo(place).using(name).createOrReplace()
    else:
        rows.write.format(name).mode("overwrite").save(place)


def _project_slice(
    log: MetadataLog,
    log_slice: LogSlice,
    topic_partitions: int | None,
    target: ObjectStoreSettings,
    projected: ProjectedPartition | None,
) -> Iterator[pa.RecordBatch]:
    folding = SliceFold(log_slice.number, topic_partitions)
    projection = Projection(target)
    if projected is None:
        folding.begin(log_slice)
    else:
        # Left by a run that was killed between its write and its removal.
        projection.remove(projected.outdated)
        refusal = _refusal(log_slice, projected)
        if refusal is not None:
            folding.findings.add(*refusal)
            yield from _report(folding, None)
            return
        log_slice = log_slice.since(projected.next_offset)
        folding.next_offset = projected.next_offset
        if log_slice.end_offset == projected.next_offset:
            yield from _report(folding, None)
            return
        folding.fold.restore(projection.read(projected))
    for run in log.read(log_slice, lambda at, text: folding.findings.add(DAMAGED_BATCH, at, text)):
        folding.feed(as_events(log.topic, run))
    folding.end()
    state = folding.fold.state()
    if folding.records:
        # Written first, then removed: after a crash in between the partition has two files, of
        # which the newer one counts.
        projection.write(log_slice.number, folding.next_offset, state)
        if projected is not None:
            projection.remove((projected.key,))
    yield from _report(folding, len(state.segments))


def _refusal(log_slice: LogSlice, projected: ProjectedPartition) -> tuple[str, Offset, str] | None:
    if log_slice.start_offset > projected.next_offset:
        return (
            LOST,
            projected.next_offset,
            f"events up to offset={log_slice.start_offset} were cut off by retention before they"
            " were" + _BEGIN_ANEW,
        )
    if log_slice.end_offset is not None and log_slice.end_offset < projected.next_offset:
        return (
            BEYOND,
            projected.next_offset,
            f"the topic ends at offset={log_slice.end_offset}: it was made anew after it was"
            + _BEGIN_ANEW,
        )
    return None


def _report(folding: SliceFold, segments: int | None) -> Iterator[pa.RecordBatch]:
    done = {
        "kind": _DONE,
        "metadata_partition": folding.number,
        "offset": folding.next_offset,
        "records": folding.records,
        "segments": segments or 0,
    }
    yield from pa.Table.from_pylist([done, *folding.findings.rows()], schema=_REPORT).to_batches()
