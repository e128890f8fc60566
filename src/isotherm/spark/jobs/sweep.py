"""Compares the bucket's objects with the metadata, in both directions.

The caller lists the bucket first and reads the metadata after that. A copy is announced in the
metadata before its first object is uploaded. So if the metadata does not name a listed object, it
belongs to no copy that began before the listing. As a second guard, objects younger than `age_ms`
are skipped.

This module only reads. `quarantine.py` moves the deletable objects of a report, unless the report
has refusals.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import to_arrow_schema

from isotherm.clock import SystemClock
from isotherm.errors import (
    RemoteResourceNotFoundError,
    UnreadableDataError,
)
from isotherm.remote.rewriting.journal import RewriteJournals
from isotherm.remote.scrub.findings import FindingKind
from isotherm.remote.segment_metadata import (
    IndexType,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from isotherm.remote.storage.inventory import open_for_reading
from isotherm.remote.storage.layout.local_tiered_storage import INDEX_SUFFIXES
from isotherm.remote.storage.layout.segment_layout import LOG_SUFFIX, Layout
from isotherm.remote.storage.manifest.chunk_index import stored_file_size
from isotherm.remote.storage.object_client import ObjectClient
from isotherm.remote.storage.object_store import fetch_manifest
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.jobs.bucket_listing import ELSEWHERE, FOREIGN
from isotherm.spark.jobs.cost import Cost, parallel_tasks
from isotherm.spark.jobs.users_segments import PART, UsersLayout, absent_keys
from isotherm.spark.metadata.segment_frames import segment_of_row
from isotherm.spark.options import SourceOptions
from isotherm.spark.reading.brokers import KafkaBrokers, RequestSettings
from isotherm.spark.small_input import is_small, kept, map_batches
from isotherm.spark.table_frame import table_frame
from isotherm.types import TimestampMs, uuid_to_text

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

DEFAULT_AGE_MS = 24 * 3_600_000

FINDING_COLUMNS = (
    "kind", "topic", "topic_id", "partition", "segment_id", "start_offset", "key", "size",
    "modified_ms", "detail", "is_deletable",
)  # fmt: skip

# Objects of these kinds are deletable, because no read can reach them through the metadata.
_DELETABLE = (
    FindingKind.PARTIAL_UPLOAD,
    FindingKind.FAILED_COPY,
    FindingKind.UNFINISHED_DELETION,
    FindingKind.DELETED_BUT_PRESENT,
    FindingKind.UNKNOWN_SEGMENT,
)

_EXPECTED_FIELDS: dict[str, pa.DataType] = {
    "key": pa.string(),
    "expected_segment_id": pa.string(),
    "expected_topic": pa.string(),
    "expected_topic_id": pa.string(),
    "expected_partition": pa.int32(),
    "expected_start": pa.int64(),
    "state": pa.string(),
    "event_timestamp_ms": pa.int64(),
    "is_required": pa.bool_(),
    "log_size": pa.int64(),
}
_EXPECTED = pa.schema(_EXPECTED_FIELDS)
# The columns of a listed log to check, and of a finding about it.
_SIZED_FIELDS: dict[str, pa.DataType] = {
    "kind": pa.string(),
    "topic": pa.string(),
    "topic_id": pa.string(),
    "partition": pa.int32(),
    "segment_id": pa.string(),
    "start_offset": pa.int64(),
    "key": pa.string(),
    "size": pa.int64(),
    "modified_ms": pa.int64(),
    "log_size": pa.int64(),
    **{name: kind for name, kind in _EXPECTED_FIELDS.items() if name.startswith("expected_")},
    "detail": pa.string(),
}
# Objects that a segment need not have: optional indexes, and the part of an unfinished copy.
_OPTIONAL_SUFFIXES = frozenset(
    {INDEX_SUFFIXES[IndexType.TRANSACTION], INDEX_SUFFIXES[IndexType.LEADER_EPOCH], PART}
)


# Findings about segments without metadata. A deletion in the topic's history explains them.
_NOT_KNOWN = (
    FindingKind.PARTIAL_UPLOAD.value,
    FindingKind.UNKNOWN_SEGMENT.value,
    FindingKind.METADATA_LAGS.value,
)


@dataclass(frozen=True, slots=True)
class Completeness:
    """Whether the metadata is complete. `problems` are reasons to doubt it.

    `cluster_topics` has the cluster's topic names by their ids (as text). It is None without a
    cluster.
    """

    problems: tuple[str, ...] = ()
    cluster_topics: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """`at_ms` is the start of the listing. Objects younger than `age_ms` at that time are skipped.
    Objects of unknown topics are deletable only with `takes_unknown_topics`, because clusters may
    share a bucket. `spared` has the segments (ids as text) in the journals of unfinished
    compactions."""

    at_ms: TimestampMs
    age_ms: int = DEFAULT_AGE_MS
    takes_unknown_topics: bool = False
    spared: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SweepReport:
    """`findings` has FINDING_COLUMNS and is persisted until `close`. If there are `refusals`,
    nothing may be deleted."""

    findings: DataFrame
    refusals: tuple[str, ...]
    objects: int

    def close(self) -> None:
        self.findings.unpersist()


def sweep(
    listing: DataFrame,
    segments: DataFrame,
    store: ObjectStoreSettings | SourceOptions,
    settings: SweepSettings,
    completeness: Completeness = Completeness(),
    deleted: Callable[[], DataFrame] | None = None,
) -> SweepReport:
    """Compare `listing` (from bucket_listing) with `segments` (as in segment_frames, in any state).
    `store` is a bucket in a built-in layout, or options that name a user's RemoteStorageManager.

    `deleted` returns the ids of deleted segments (deleted_segments). It reads the metadata topic
    once more, so it is called only if there are objects of segments without metadata.
    """
    listing = listing if is_small(listing.sparkSession) else listing.persist()
    # Each kind of finding reads the join, so it is computed only once.
    joined = kept(listing.join(expected_objects(segments, store), "key", "full_outer"))
    expected = joined.where(sql.col("expected_segment_id").isNotNull())
    strangers = joined.where(sql.col("expected_segment_id").isNull())
    commit_suffix = _layout_of(store).commit_suffix
    rows = _of_expected(expected, settings).unionByName(
        _of_strangers(strangers, segments, settings, completeness, commit_suffix)
    )
    rows = rows.unionByName(_missing(expected, store, settings))
    if isinstance(store, ObjectStoreSettings):
        rows = rows.unionByName(_wrong_sizes(expected, store))
    if settings.spared:
        is_spared = sql.coalesce(sql.col("segment_id").isin(list(settings.spared)), sql.lit(False))
        rows = rows.where(~is_spared)
    findings = kept(rows.select(*FINDING_COLUMNS))
    objects = listing.count()
    if deleted is not None and not findings.where(sql.col("kind").isin(*_NOT_KNOWN)).isEmpty():
        findings = kept(_named_deleted(findings, deleted()))
    refusals = _refusals(findings, listing, segments, completeness)
    # All findings are computed and persisted by now. Computed again, they would list the bucket
    # again, after the metadata was read.
    listing.unpersist()
    joined.unpersist()
    return SweepReport(findings, refusals, objects)


def cluster_topics(properties: Mapping[str, str]) -> dict[str, str]:
    """The names of a cluster's topics by their ids (as text). `properties` are Kafka client
    properties."""
    brokers = KafkaBrokers(properties, SystemClock(), RequestSettings())
    partitions = brokers.partitions(brokers.topic_names())
    return {uuid_to_text(partition.topic_id): partition.topic for partition in partitions}


def spared_segments(store: ObjectStoreSettings) -> tuple[str, ...]:
    """The ids (as text) of the new segments of unfinished compactions, and of the old segments that
    these keep for readers."""
    journals = RewriteJournals(open_for_reading(store), store.create_layout().root_directory)
    spared: set[str] = set()
    for run in journals.find():
        spared |= {uuid_to_text(segment.id) for _, segment in run.staged}
        for replacement in run.journal.replacements if run.journal is not None else ():
            spared |= {
                uuid_to_text(side.segment_id.id) for side in (replacement.old, replacement.new)
            }
    return tuple(sorted(spared))


def _named_deleted(findings: DataFrame, deleted: DataFrame) -> DataFrame:
    # The history has the deletion, so the metadata does not lag behind such a segment.
    gone = deleted.withColumn("was_deleted", sql.lit(True))
    is_deleted = sql.col("was_deleted") & sql.col("kind").isin(*_NOT_KNOWN)
    changes: dict[str, Column] = {
        "detail": sql.when(is_deleted, sql.lit("the metadata has its deletion")).otherwise(
            sql.col("detail")
        ),
        "is_deletable": sql.when(is_deleted, sql.lit(True)).otherwise(sql.col("is_deletable")),
    }
    joined = findings.join(gone, "segment_id", "left").withColumns(changes)
    kind = sql.when(is_deleted, _kind("DELETED_BUT_PRESENT")).otherwise(sql.col("kind"))
    return joined.withColumn("kind", kind).select(*FINDING_COLUMNS)


def _layout_of(store: ObjectStoreSettings | SourceOptions) -> Layout | UsersLayout:
    return store.create_layout() if isinstance(store, ObjectStoreSettings) else UsersLayout()


def expected_objects(segments: DataFrame, store: ObjectStoreSettings | SourceOptions) -> DataFrame:
    """A row for each possible object of a segment, with its key in the layout."""

    def name_objects(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        layout = _layout_of(store)
        for batch in batches:
            rows: list[dict[str, Any]] = []
            for row in batch.to_pylist():
                for key in _keys_of(segment_of_row(row), layout):
                    rows.append(_expected_row(row, key))  # noqa: PERF401 - two loops read better
            yield pa.RecordBatch.from_pylist(rows, schema=_EXPECTED)

    return map_batches(segments, name_objects, _EXPECTED)


def _keys_of(segment: RemoteLogSegmentMetadata, layout: Layout | UsersLayout) -> Sequence[str]:
    """Custom metadata that cannot be read names no place: the objects are looked for where the
    layout has them without. The metadata has
    the segment, so wherever else they lie they are not deletable."""
    try:
        return layout.object_keys(segment)
    except UnreadableDataError:
        return layout.object_keys(replace(segment, custom_metadata=None))


def _expected_row(row: Mapping[str, Any], key: str) -> dict[str, Any]:
    suffix = key.rpartition(".")[2]
    return {
        "key": key,
        "expected_segment_id": row["segment_id"],
        "expected_topic": row["topic"],
        "expected_topic_id": row["topic_id"],
        "expected_partition": row["partition"],
        "expected_start": row["start_offset"],
        "state": row["state"],
        "event_timestamp_ms": row["event_timestamp_ms"],
        "is_required": suffix not in _OPTIONAL_SUFFIXES,
        "log_size": row["size_in_bytes"] if suffix == LOG_SUFFIX else None,
    }


def _of_expected(expected: DataFrame, settings: SweepSettings) -> DataFrame:
    """Objects at the key of a segment of the metadata that should not exist, or should be gone."""
    state = sql.col("state")
    kind = (
        sql.when(state == RemoteLogSegmentState.COPY_SEGMENT_STARTED.name, _kind("FAILED_COPY"))
        .when(
            state == RemoteLogSegmentState.DELETE_SEGMENT_STARTED.name,
            _kind("UNFINISHED_DELETION"),
        )
        .when(
            state == RemoteLogSegmentState.DELETE_SEGMENT_FINISHED.name,
            _kind("DELETED_BUT_PRESENT"),
        )
    )
    # The state's own age, too: an old object may belong to a deletion that has just begun.
    is_old = sql.col("event_timestamp_ms") <= settings.at_ms - settings.age_ms
    present = expected.where(sql.col("size").isNotNull() & _is_old(settings) & is_old)
    detail = sql.format_string("metadata says %s since %s", "state", "event_timestamp_ms")
    return _finding_rows(present.withColumn("kind", kind), detail).where(
        sql.col("kind").isNotNull()
    )


def _of_strangers(
    strangers: DataFrame,
    segments: DataFrame,
    settings: SweepSettings,
    completeness: Completeness,
    commit_suffix: str | None,
) -> DataFrame:
    """Objects that belong to no segment of the metadata, and objects that are not at their
    segment's key. The first kind that matches counts."""
    spark = segments.sparkSession
    # Distinct: a join with several rows would repeat a finding.
    ids = segments.select(sql.col("segment_id"), sql.lit(True).alias("is_known")).distinct()
    ends = segments.groupBy("topic_id", "partition").agg(sql.max("end_offset").alias("known_end"))
    of_metadata = segments.select("topic_id", sql.lit(True).alias("has_metadata")).distinct()
    topic_ids = pa.array(list(completeness.cluster_topics or ()), pa.string())
    cluster = table_frame(spark, pa.table({"topic_id": topic_ids})).withColumn(
        "is_in_cluster", sql.lit(True)
    )
    whole = (
        strangers.where(sql.col("suffix") == (commit_suffix or LOG_SUFFIX))
        .select("segment_id", sql.lit(True).alias("is_whole"))
        .distinct()
    )
    placed = (
        strangers.join(ids, "segment_id", "left")
        .join(ends, ["topic_id", "partition"], "left")
        .join(of_metadata, "topic_id", "left")
        .join(cluster, "topic_id", "left")
        .join(whole, "segment_id", "left")
    )
    # Without metadata of its partition a segment is beyond them too, and then nothing is deleted.
    is_beyond = sql.col("start_offset") > sql.coalesce("known_end", sql.lit(-1))
    kind = (
        sql.when(sql.col("place") == FOREIGN, _kind("FOREIGN_OBJECT"))
        .when(sql.col("is_known"), _kind("MISPLACED_OBJECT"))
        .when(
            sql.col("has_metadata").isNull() & sql.col("is_in_cluster").isNull(),
            _kind("UNKNOWN_TOPIC"),
        )
        .when(sql.col("place") == ELSEWHERE, _kind("MISPLACED_OBJECT"))
        .when(sql.col("is_whole").isNull(), _kind("PARTIAL_UPLOAD"))
        .when(is_beyond, _kind("METADATA_LAGS"))
        .otherwise(_kind("UNKNOWN_SEGMENT"))
    )
    # The other kinds are never deletable, whatever their age.
    is_young = ~_is_old(settings) & sql.col("kind").isin(
        FindingKind.PARTIAL_UPLOAD.value, FindingKind.UNKNOWN_SEGMENT.value,
        FindingKind.METADATA_LAGS.value, FindingKind.UNKNOWN_TOPIC.value,
    )  # fmt: skip
    detail = _by_kind(
        {
            FindingKind.FOREIGN_OBJECT: "not an object of the layout",
            FindingKind.MISPLACED_OBJECT: "not at the key of its segment's object",
            FindingKind.UNKNOWN_TOPIC: "neither metadata nor cluster has this topic id",
            FindingKind.PARTIAL_UPLOAD: "no metadata, and not whole: its last object is missing",
            FindingKind.METADATA_LAGS: "a whole segment above the offsets of the metadata",
            FindingKind.UNKNOWN_SEGMENT: "a whole segment without metadata",
        }
    )
    return _finding_rows(
        placed.withColumn("kind", kind).where(~is_young),
        detail,
        takes_unknown_topics=settings.takes_unknown_topics,
    )


def _missing(
    expected: DataFrame, store: ObjectStoreSettings | SourceOptions, settings: SweepSettings
) -> DataFrame:
    """Objects of finished segments that neither the listing nor a second request finds. The second
    one is needed because a listing may be old (an S3 Inventory)."""

    def ask(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            keys: list[str] = batch["key"].to_pylist()  # type: ignore[assignment]
            if isinstance(store, ObjectStoreSettings):
                client = open_for_reading(store)
                is_absent = [not client.exists(key) for key in keys]
            else:
                is_absent = absent_keys(keys, store) if keys else []
            yield batch.filter(pa.array(is_absent, pa.bool_()))

    is_finished = sql.col("state") == RemoteLogSegmentState.COPY_SEGMENT_FINISHED.name
    # The listing lacks segments that were copied after it began.
    is_older = sql.col("event_timestamp_ms") < settings.at_ms
    candidates = expected.where(
        sql.col("size").isNull() & is_finished & is_older & sql.col("is_required")
    )
    absent = map_batches(candidates, ask, to_arrow_schema(candidates.schema))
    kind = absent.withColumn("kind", _kind("MISSING_OBJECT"))
    return _finding_rows(kind, sql.lit("object of a finished segment is missing"))


def asks_manifests(store: ObjectStoreSettings) -> bool:
    """Whether manifests must be read for the stored sizes of logs, because segments may be
    compressed or encrypted. Otherwise a manifest is read only if a log's size differs from its
    segment's."""
    is_transformed = (
        store.compression_enabled or store.encryption_enabled or bool(store.encryption_key_pairs)
    )
    return is_transformed and store.create_layout().commit_suffix is not None


def cost_of_sizes(listing: DataFrame, segments: DataFrame, store: ObjectStoreSettings) -> Cost:
    """The cost of reading manifests for the sizes of logs, if `asks_manifests`."""
    if not asks_manifests(store):
        return Cost()
    finished = segments.where(sql.col("state") == RemoteLogSegmentState.COPY_SEGMENT_FINISHED.name)
    is_manifest = sql.col("suffix") == sql.lit(store.create_layout().commit_suffix)
    manifests = listing.where(is_manifest).select("segment_id", "size").distinct()
    row = (
        manifests.join(finished.select("segment_id").distinct(), "segment_id")
        .agg(sql.count(sql.lit(1)), sql.coalesce(sql.sum("size"), sql.lit(0)))
        .first()
    )
    count, size = row if row is not None else (0, 0)
    tasks = min(parallel_tasks(listing.sparkSession), max(int(count), 1))
    return Cost(gets=int(count), bytes_read=int(size), tasks=tasks)


def _wrong_sizes(expected: DataFrame, store: ObjectStoreSettings) -> DataFrame:
    """Logs whose size is not that in their manifest, and manifests without a usable size."""
    is_finished = sql.col("state") == RemoteLogSegmentState.COPY_SEGMENT_FINISHED.name
    doubtful = is_finished & sql.col("size").isNotNull() & sql.col("log_size").isNotNull()
    if not asks_manifests(store):
        doubtful &= sql.col("size") != sql.col("log_size")

    def ask(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        client, suffix = open_for_reading(store), store.create_layout().commit_suffix
        for batch in batches:
            rows = [_sized(client, suffix, row) for row in batch.to_pylist()]
            wrong = [row for row in rows if row is not None]
            yield pa.RecordBatch.from_pylist(wrong, schema=pa.schema(_SIZED_FIELDS))

    columns = [name for name in _SIZED_FIELDS if name not in ("kind", "detail")]
    doubtful_rows = expected.where(doubtful).select(*columns)
    sized = map_batches(doubtful_rows, ask, pa.schema(_SIZED_FIELDS))
    return _finding_rows(sized, sql.col("detail"))


def _sized(client: ObjectClient, suffix: str | None, row: dict[str, Any]) -> dict[str, Any] | None:
    """A finding about a listed log's size, or None. A missing manifest is a finding of its own."""
    expected = row["log_size"]
    if suffix is not None:
        manifest_key = f"{row['key'].rpartition('.')[0]}.{suffix}"
        try:
            expected = stored_file_size(fetch_manifest(client, manifest_key).chunk_index)
        except RemoteResourceNotFoundError:
            return None
        except UnreadableDataError as error:
            damaged = {"key": manifest_key, "size": None, "modified_ms": None}
            finding = {"kind": FindingKind.DAMAGED_MANIFEST.value, "detail": str(error)}
            return row | damaged | finding
    if row["size"] == expected:
        return None
    detail = f"size={row['size']} expected={expected}"
    return row | {"kind": FindingKind.WRONG_SIZE.value, "detail": detail}


def _finding_rows(
    rows: DataFrame, detail: Column, *, takes_unknown_topics: bool = False
) -> DataFrame:
    deletable = [kind.value for kind in _DELETABLE]
    if takes_unknown_topics:
        deletable.append(FindingKind.UNKNOWN_TOPIC.value)
    values: dict[str, Column] = {
        "topic": sql.coalesce("topic", "expected_topic"),
        "topic_id": sql.coalesce("topic_id", "expected_topic_id"),
        "partition": sql.coalesce("partition", "expected_partition"),
        "segment_id": sql.coalesce("segment_id", "expected_segment_id"),
        "start_offset": sql.coalesce("start_offset", "expected_start"),
        "detail": detail,
        "is_deletable": sql.col("kind").isin(deletable),
    }
    return rows.withColumns(values).select(*FINDING_COLUMNS)


def _refusals(
    findings: DataFrame, listing: DataFrame, segments: DataFrame, completeness: Completeness
) -> tuple[str, ...]:
    refusals = list(completeness.problems)
    topics = listing.where(sql.col("topic_id").isNotNull()).select("topic_id").distinct()
    in_bucket = {row[0] for row in topics.collect()}
    in_metadata = {row[0] for row in segments.select("topic_id").distinct().collect()}
    refusals += _belonging(in_bucket, in_metadata, completeness.cluster_topics)
    lagging = findings.where(sql.col("kind") == FindingKind.METADATA_LAGS.value)
    behind = lagging.groupBy("topic", "partition").agg(sql.min("start_offset")).limit(5).collect()
    refusals += [
        f"metadata lags behind the bucket topic={topic} partition={partition}"
        f" first_offset_without_metadata={start}"
        for topic, partition, start in behind
    ]
    return tuple(refusals)


def _belonging(
    in_bucket: Collection[str], in_metadata: Collection[str], cluster: Mapping[str, str] | None
) -> Sequence[str]:
    topic_ids = set(in_metadata) | set(cluster or ())
    if in_bucket and not topic_ids & set(in_bucket):
        problem = "bucket and metadata do not belong together: they share no topic id"
        return [f"{problem} topic_ids_in_bucket={len(in_bucket)} topic_ids_known={len(topic_ids)}"]
    return []


def _is_old(settings: SweepSettings) -> Column:
    return sql.col("modified_ms") <= settings.at_ms - settings.age_ms


def _kind(name: str) -> Column:
    return sql.lit(FindingKind[name].value)


def _by_kind(texts: Mapping[FindingKind, str]) -> Column:
    pairs = [sql.lit(text) for kind, detail in texts.items() for text in (kind.value, detail)]
    return sql.create_map(*pairs)[sql.col("kind")]
