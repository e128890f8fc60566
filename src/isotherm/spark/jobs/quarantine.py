"""Moves the deletable objects of a sweep's report into quarantine: copies, verifies, then deletes.

    isotherm-quarantine/<time of the sweep>/<key>

Each object is moved independently. A repetition after a crash does no harm: if there is a copy and
no original, the object was moved already. An object stays if it has changed since the listing, or
if by now its segment is complete or the metadata refers to it (recheck.py).
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import functions as sql
from pyspark.sql.pandas.types import from_arrow_schema

from isotherm.errors import PolicyViolationError, RemoteResourceNotFoundError
from isotherm.remote.scrub.findings import FindingKind
from isotherm.remote.storage.inventory import open_for_reading
from isotherm.remote.storage.object_client import ObjectClient
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.jobs.bucket_listing import QUARANTINE_PREFIX, spread_over
from isotherm.spark.jobs.recheck import MetadataNow, still_deletable
from isotherm.spark.jobs.sweep import SweepReport
from isotherm.spark.jobs.users_segments import PART, WHOLE, listed_key
from isotherm.spark.options import SourceOptions
from isotherm.spark.table_frame import table_frame
from isotherm.spark.tier.storage import open_users_storage
from isotherm.types import TimestampMs

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_OUTCOME_FIELDS: dict[str, pa.DataType] = {
    "key": pa.string(),
    "moved_to": pa.string(),
    # `quarantined`, `deleted`, or the reason why the object stays.
    "outcome": pa.string(),
    "size": pa.int64(),
}
OUTCOMES = pa.schema(_OUTCOME_FIELDS)
QUARANTINED = "quarantined"
DELETED = "deleted"


def quarantine_prefix(at_ms: TimestampMs) -> str:
    at = datetime.datetime.fromtimestamp(at_ms / 1000, datetime.UTC)
    return f"{QUARANTINE_PREFIX}{at:%Y-%m-%dT%H-%M-%SZ}/"


def take_away(
    report: SweepReport,
    store: ObjectStoreSettings,
    now: MetadataNow,
    *,
    prefix: str | None,
) -> DataFrame:
    """Move the deletable objects. Returns a row with the outcome for each (OUTCOMES), persisted, so
    that no later action moves them again.

    `prefix` is the quarantine; with None the objects are deleted permanently. `now` must be read
    after the report was made. Raises PolicyViolationError if the report has refusals.
    """
    _check_may_delete(report)
    commit_suffix = store.create_layout().commit_suffix

    def take(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        client = open_for_reading(store)
        for batch in batches:
            rows = [_taken(client, row, prefix, commit_suffix) for row in batch.to_pylist()]
            yield pa.RecordBatch.from_pylist(rows, schema=OUTCOMES)

    deletable = report.findings.where("is_deletable").select("kind", "key", "size", "segment_id")
    # Not only those that are due: an object that stays is reported with the reason.
    doomed = still_deletable(deletable, now).select("kind", "key", "size", "is_due")
    # The hash spreads adjacent keys over tasks, because stores limit the request rate of a prefix.
    tasks = spread_over(report.findings.sparkSession)
    moved = doomed.repartition(tasks, sql.hash("key")).mapInArrow(take, from_arrow_schema(OUTCOMES))
    moved = moved.persist()
    moved.count()
    return moved


def delete_users_segments(
    report: SweepReport, options: SourceOptions, now: MetadataNow
) -> DataFrame:
    """Delete the deletable segments of a sweep permanently. Returns a row with the outcome for each
    (OUTCOMES).

    `now` must be read after the report was made. The storage manager lists its segments once more.
    Raises PolicyViolationError if the report has refusals.
    """
    _check_may_delete(report)
    deletable = report.findings.where("is_deletable").select("kind", "key", "size", "segment_id")
    doomed = still_deletable(deletable, now).orderBy("key").collect()
    storage = open_users_storage(options)
    stored = (
        {listed_key(log_segment): log_segment for log_segment in storage.list_log_segments()}
        if doomed
        else {}
    )
    rows = []
    for row in doomed:
        segment = stored.get(row.key)
        if not row.is_due:
            outcome = "the metadata refers to it now: not touched"
        elif segment is None:
            is_whole_now = row.key.removesuffix(PART) + WHOLE in stored
            outcome = "is complete now: not touched" if is_whole_now else "was deleted already"
        else:
            storage.delete_log_segment_data(segment)
            outcome = DELETED
        rows.append({"key": row.key, "moved_to": None, "outcome": outcome, "size": row["size"]})
    table = pa.Table.from_pylist(rows, OUTCOMES)
    return table_frame(report.findings.sparkSession, table)


def _check_may_delete(report: SweepReport) -> None:
    """Raise PolicyViolationError if the report has refusals."""
    if report.refusals:
        raise PolicyViolationError(
            f"nothing is deleted until the metadata is known to be complete: {report.refusals[0]}"
        )


def _taken(
    client: ObjectClient, row: dict[str, Any], prefix: str | None, commit_suffix: str | None
) -> dict[str, Any]:
    key, size = row["key"], row["size"]
    target = None if prefix is None else prefix + key
    if not row["is_due"]:
        outcome = "the metadata refers to it now: not touched"
        return {"key": key, "moved_to": None, "outcome": outcome, "size": size}
    try:
        size_now = client.object_size(key)
    except RemoteResourceNotFoundError:
        return {"key": key, "moved_to": target, "outcome": "was deleted already", "size": size}
    if size_now != size:
        return {
            "key": key,
            "moved_to": None,
            "outcome": "has changed: not touched",
            "size": size_now,
        }
    if row["kind"] == FindingKind.PARTIAL_UPLOAD.value and commit_suffix is not None:
        mark = f"{key.rpartition('.')[0]}.{commit_suffix}"
        if client.exists(mark):
            return {
                "key": key,
                "moved_to": None,
                "outcome": "is complete now: not touched",
                "size": size,
            }
    # Copy, compare, then delete: a crash in between leaves both objects, and the next run copies
    # again.
    if target is not None:
        client.copy(key, target)
        copied = client.object_size(target)
        if copied != size:
            return {
                "key": key,
                "moved_to": None,
                "outcome": f"copy has another size: not touched size={copied}",
                "size": size,
            }
    client.delete(key)
    outcome = DELETED if target is None else QUARANTINED
    return {"key": key, "moved_to": target, "outcome": outcome, "size": size}
