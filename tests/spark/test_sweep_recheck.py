"""What a sweep found deletable is looked at again in newer metadata."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from isotherm.remote.metadata.wire.serde import KeyedEvent, encode_keyed_event
from isotherm.remote.scrub.findings import FindingKind
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.jobs.recheck import MetadataNow, segments_finished_last, still_deletable
from isotherm.spark.metadata.remote_metadata_log import DumpMetadataLog
from isotherm.types import REMOTE_LOG_METADATA_AUDIT_TOPIC, TopicIdPartition, uuid_to_text
from tests.support.metadata_dump import write_dump

PARTITION = TopicIdPartition(uuid.UUID(int=7), "flights", 0)
COPY_STARTED = "COPY_SEGMENT_STARTED"
COPY_FINISHED = "COPY_SEGMENT_FINISHED"
DELETE_STARTED = "DELETE_SEGMENT_STARTED"


@pytest.mark.parametrize(
    ("kind", "states"),
    [
        (FindingKind.FAILED_COPY, {COPY_STARTED}),
        (FindingKind.UNFINISHED_DELETION, {DELETE_STARTED}),
        (FindingKind.DELETED_BUT_PRESENT, set()),
        (FindingKind.UNKNOWN_SEGMENT, set()),
        (FindingKind.PARTIAL_UPLOAD, set()),
    ],
)
def test_objects_that_newer_metadata_counts_on_stay(
    spark: SparkSession, kind: FindingKind, states: set[str]
) -> None:
    live = {each.lower(): each for each in (COPY_STARTED, COPY_FINISHED, DELETE_STARTED)}
    segments = spark.createDataFrame(list(live.items()), "segment_id string, state string")
    rows = [(kind.value, f"key-{name}", 1, name) for name in (*live, "gone", "half")]
    doomed = spark.createDataFrame(rows, "kind string, key string, size int, segment_id string")
    found = still_deletable(doomed, MetadataNow(segments, {"half"})).where("is_due").collect()
    assert {row["segment_id"] for row in found} == {"gone"} | {state.lower() for state in states}


def test_copy_that_the_audit_topic_finishes_last_is_found(tmp_path: Path) -> None:
    def update(number: int, state: RemoteLogSegmentState) -> KeyedEvent:
        segment_id = RemoteLogSegmentId(PARTITION, uuid.UUID(int=number))
        return RemoteLogSegmentMetadataUpdate(
            segment_id=segment_id, event_timestamp_ms=0, state=state, broker_id=0
        )

    finished = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
    deleted = RemoteLogSegmentState.DELETE_SEGMENT_STARTED
    for number, events in {
        0: [update(1, deleted), update(2, finished)],
        1: [update(3, finished), update(4, deleted)],
    }.items():
        records = [(b"key", encode_keyed_event(event)) for event in events]
        write_dump(tmp_path, number, records, topic=REMOTE_LOG_METADATA_AUDIT_TOPIC)
    store = ObjectStoreSettings(url=tmp_path.as_uri())
    log = DumpMetadataLog((store,), REMOTE_LOG_METADATA_AUDIT_TOPIC)
    assert segments_finished_last(log) == {uuid_to_text(uuid.UUID(int=2))}
