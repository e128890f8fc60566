"""The bucket's objects as a DataFrame. Each task lists one folder.

    key, size, modified_ms        as the store shows them
    place                         `layout`: the key is one of the layout's, under its prefix
                                  `elsewhere`: the file is a segment's, but in a folder where the
                                  layout would not put it (another key.prefix, a copy)
                                  `foreign`: anything else inside a topic's folder
    topic, topic_id, partition    from the key; null if it is `foreign` or lacks them
    segment_id, start_offset, suffix

The driver itself lists only folders, down to those of topics and partitions.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from isotherm.remote.erasure.certificate import CERTIFICATES_FOLDER
from isotherm.remote.rewriting.journal import JOURNALS_FOLDER
from isotherm.remote.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata
from isotherm.remote.storage.inventory import open_for_reading
from isotherm.remote.storage.layout.object_names import parse_segment_file, split_trailing_uuid
from isotherm.remote.storage.layout.segment_layout import Layout
from isotherm.remote.storage.object_client import StoredObject
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.small_input import SMALL_INPUT_ROWS_MAX
from isotherm.spark.table_frame import table_frame
from isotherm.types import TopicIdPartition, uuid_to_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

IN_PLACE = "layout"
ELSEWHERE = "elsewhere"
FOREIGN = "foreign"

QUARANTINE_PREFIX = "isotherm-quarantine/"
"""A sweep moves deletable objects below this prefix. No job lists it."""

_FIELDS: dict[str, pa.DataType] = {
    "key": pa.string(),
    "size": pa.int64(),
    "modified_ms": pa.int64(),
    "place": pa.string(),
    "topic": pa.string(),
    "topic_id": pa.string(),
    "partition": pa.int32(),
    "segment_id": pa.string(),
    "start_offset": pa.int64(),
    "suffix": pa.string(),
}
LISTING_ARROW = pa.schema(_FIELDS)
# The folders of sweeps, of runs in progress, and of certificates.
_NOT_OF_TOPICS = (QUARANTINE_PREFIX.rstrip("/"), JOURNALS_FOLDER, CERTIFICATES_FOLDER)
_ROWS_PER_BATCH = 10_000
_DEPTH_MAX = 6
_TASKS_PER_SLOT = 4
# Each is a request, one after the other.
_SMALL_DIRECTORIES_MAX = 64


@dataclass(frozen=True, slots=True)
class ListingPlan:
    """The folders that tasks list recursively, the objects found beside these folders, and the
    number of LIST requests so far."""

    directories: tuple[str, ...]
    objects: tuple[StoredObject, ...]
    lists: int


def plan_listing(settings: ObjectStoreSettings, *, everywhere: bool) -> ListingPlan:
    """Find the folders of partitions, or of topics if the layout has no folders of partitions. With
    `everywhere` search the whole store, not only the configured key.prefix."""
    client, layout = open_for_reading(settings), settings.create_layout()
    listings: list[str] = []
    beside: list[StoredObject] = []
    lists = 0
    frontier = ["" if everywhere else layout.root_directory]
    for depth in range(_DEPTH_MAX + 1):
        below: list[str] = []
        for directory in frontier:
            lists += 1
            for child in client.list_directories(directory):
                if child.rpartition("/")[2] in _NOT_OF_TOPICS:
                    continue
                if _is_topics(child, layout, everywhere=everywhere):
                    lists += 1
                    partitions, objects = client.list_level(child + "/")
                    listings += partitions
                    beside += objects
                elif everywhere and depth < _DEPTH_MAX:
                    below.append(child + "/")
        frontier = below
    return ListingPlan(tuple(dict.fromkeys(listings)), tuple(beside), lists)


def _is_topics(directory: str, layout: Layout, *, everywhere: bool) -> bool:
    if layout.directory_topic(directory) is not None:
        return True
    return everywhere and split_trailing_uuid(directory.rpartition("/")[2]) is not None


def list_small_bucket(settings: ObjectStoreSettings, plan: ListingPlan) -> pa.Table | None:
    """The listing as a table, made in the driver, or None for a bucket with more than
    SMALL_INPUT_ROWS_MAX objects or _SMALL_DIRECTORIES_MAX folders."""
    if len(plan.directories) > _SMALL_DIRECTORIES_MAX:
        return None
    client, layout = open_for_reading(settings), settings.create_layout()
    rest = itertools.chain.from_iterable(
        client.list_objects(directory + "/") for directory in plan.directories
    )
    objects = itertools.chain(plan.objects, rest)
    first = list(itertools.islice(objects, SMALL_INPUT_ROWS_MAX + 1))
    if len(first) > SMALL_INPUT_ROWS_MAX:
        return None
    return pa.Table.from_batches(listing_batches(first, layout), schema=LISTING_ARROW)


def list_bucket(spark: SparkSession, settings: ObjectStoreSettings, plan: ListingPlan) -> DataFrame:
    def list_directories(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        client, layout = open_for_reading(settings), settings.create_layout()
        for batch in batches:
            for directory in filter(None, batch.column(0).to_pylist()):
                yield from listing_batches(client.list_objects(directory + "/"), layout)

    schema = from_arrow_schema(LISTING_ARROW)
    directories = pa.table({"directory": pa.array(plan.directories, pa.string())})
    tasks = max(1, min(len(plan.directories), spread_over(spark)))
    frame = table_frame(spark, directories)
    below = frame.repartition(tasks).mapInArrow(list_directories, schema)
    layout = settings.create_layout()
    beside = pa.Table.from_batches(listing_batches(plan.objects, layout), schema=LISTING_ARROW)
    return below.unionByName(table_frame(spark, beside))


def listing_batches(objects: Iterable[StoredObject], layout: Layout) -> Iterator[pa.RecordBatch]:
    rows: list[dict[str, Any]] = []
    suffixes = _suffixes(layout)
    for stored in objects:
        rows.append(_row(stored, layout, suffixes))
        if len(rows) == _ROWS_PER_BATCH:
            yield pa.RecordBatch.from_pylist(rows, schema=LISTING_ARROW)
            rows = []
    if rows:
        yield pa.RecordBatch.from_pylist(rows, schema=LISTING_ARROW)


def _suffixes(layout: Layout) -> frozenset[str]:
    """The suffixes of a segment's objects in this layout."""
    placeholder = TopicIdPartition(uuid.UUID(int=0), "t", 0)
    segment = RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(placeholder, uuid.UUID(int=0)),
        start_offset=0,
        end_offset_inclusive=0,
        max_timestamp_ms=0,
        broker_id=0,
        event_timestamp_ms=0,
        segment_size_in_bytes=0,
        segment_leader_epochs={0: 0},
    )
    return frozenset(key.rpartition(".")[2] for key in layout.object_keys(segment))


def spread_over(spark: SparkSession) -> int:
    """The number of tasks for work in uneven pieces: several per core, so that short tasks fill the
    gaps that long ones leave."""
    return int(spark.sparkContext.defaultParallelism) * _TASKS_PER_SLOT


def _row(stored: StoredObject, layout: Layout, suffixes: frozenset[str]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "key": stored.key,
        "size": stored.size,
        "modified_ms": stored.last_modified_ms,
        "place": FOREIGN,
    }
    key = layout.parse_key(stored.key)
    if key is not None:
        owner = key.topic_id_partition
        return row | {
            "place": IN_PLACE if key.suffix in suffixes else FOREIGN,
            "topic": owner.topic,
            "topic_id": uuid_to_text(owner.topic_id),
            "partition": owner.partition,
            "segment_id": uuid_to_text(key.segment_uuid),
            "start_offset": key.start_offset,
            "suffix": key.suffix,
        }
    *folders, name = stored.key.split("/")
    file = parse_segment_file(name)
    if file is None or file.suffix not in suffixes:
        return row
    topics = [split for folder in folders if (split := split_trailing_uuid(folder))]
    return row | {
        "place": ELSEWHERE,
        "topic": topics[-1][0] if topics else None,
        "topic_id": uuid_to_text(topics[-1][1]) if topics else None,
        "segment_id": uuid_to_text(file.segment_uuid),
        "start_offset": file.start_offset,
        "suffix": file.suffix,
    }
