"""Reads the segments of the bucket from their manifests, in tasks. Problems become findings.

The rows are those of segment_frames, in state COPY_SEGMENT_FINISHED. A manifest contains neither
custom metadata nor the broker's leader epoch, so these are null and -1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark.sql import functions as sql

from isotherm.errors import UnsupportedVersionError
from isotherm.remote.scrub.findings import FindingKind
from isotherm.remote.storage.inventory import (
    MANIFEST_READ_THREADS,
    DamagedSegment,
    SegmentObjects,
    open_for_reading,
    read_segment,
)
from isotherm.remote.storage.layout.segment_layout import Layout
from isotherm.remote.storage.object_client import ObjectClient, StoredObject
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.jobs.bucket_listing import IN_PLACE, spread_over
from isotherm.spark.metadata.segment_frames import SEGMENT_ARROW, segment_row
from isotherm.spark.small_input import is_small, map_batches
from isotherm.types import uuid_to_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_PROBLEM_FIELDS: dict[str, pa.DataType] = {"problem": pa.string(), "key": pa.string()}
_READ = pa.schema([*SEGMENT_ARROW, *pa.schema(_PROBLEM_FIELDS)])
_FINDING_FIELDS = ("topic", "topic_id", "partition", "segment_id", "start_offset", "key")


class ManifestsRead(NamedTuple):
    """`segments` are those with a sound manifest. `findings` (columns of a Finding) are about
    damaged manifests, and manifests that contradict the listing. Both come from `rows`, which is
    persisted; the caller unpersists it."""

    segments: DataFrame
    findings: DataFrame
    rows: DataFrame


def read_manifests(listing: DataFrame, settings: ObjectStoreSettings) -> ManifestsRead:
    """Read the manifest of every committed segment of a listing (bucket_listing), with one GET
    each.

    Raises UnsupportedVersionError for a layout without manifests. A segment that was deleted since
    the listing is in neither DataFrame.
    """
    suffix = settings.create_layout().commit_suffix
    if suffix is None:
        raise UnsupportedVersionError(
            "layout keeps no manifests: only the metadata topic knows which segments are whole"
        )

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        client, layout = open_for_reading(settings), settings.create_layout()
        with ThreadPoolExecutor(MANIFEST_READ_THREADS, "isotherm-manifests") as pool:
            for batch in batches:
                objects = [_segment_objects(row, layout) for row in batch.to_pylist()]
                manifests = pool.map(lambda segment: _read(client, layout, segment), objects)
                rows = [row for row in manifests if row is not None]
                yield pa.RecordBatch.from_pylist(rows, schema=_READ)

    stored = sql.collect_list(sql.struct("suffix", "key", "size", "modified_ms"))
    groups = (
        listing.where(sql.col("place") == IN_PLACE)
        .groupBy("topic_id", "partition", "segment_id", "start_offset")
        .agg(sql.first("topic").alias("topic"), stored.alias("objects"))
        .where(sql.exists("objects", lambda stored: stored["suffix"] == suffix))
    )
    rows = map_batches(groups, read, _READ, tasks=spread_over(listing.sparkSession))
    # In a small session the driver has them already.
    rows = rows if is_small(listing.sparkSession) else rows.persist()
    is_whole = sql.col("problem").isNull()
    findings = rows.where(~is_whole).select(
        sql.lit(FindingKind.DAMAGED_MANIFEST.value).alias("kind"),
        *(sql.col(name) for name in _FINDING_FIELDS[:-1]),
        sql.col("key").alias("object"),
        sql.col("problem").alias("detail"),
    )
    return ManifestsRead(rows.where(is_whole).select(*SEGMENT_ARROW.names), findings, rows)


def _segment_objects(row: dict[str, Any], layout: Layout) -> SegmentObjects:
    objects = {
        object_["suffix"]: StoredObject(object_["key"], object_["size"], object_["modified_ms"])
        for object_ in row["objects"]
    }
    any_key = layout.parse_key(row["objects"][0]["key"])
    assert any_key is not None, "the listing says that it is one of the layout's"
    return SegmentObjects(any_key.segment_id, any_key.start_offset, objects)


def _read(client: ObjectClient, layout: Layout, objects: SegmentObjects) -> dict[str, Any] | None:
    outcome = read_segment(client, layout, objects)
    if outcome is None:
        return None
    if not isinstance(outcome, DamagedSegment):
        return segment_row(outcome)
    assert layout.commit_suffix is not None, "checked by the caller"
    owner = objects.segment_id.topic_id_partition
    return {
        "topic": owner.topic,
        "topic_id": uuid_to_text(owner.topic_id),
        "partition": owner.partition,
        "segment_id": uuid_to_text(objects.segment_id.id),
        "start_offset": objects.start_offset,
        "problem": str(outcome.error),
        "key": objects.objects[layout.commit_suffix].key,
    }
