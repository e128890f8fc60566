"""Segments, records and stores for the tests of the Spark source."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from isotherm.record.batch import NewRecord
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.types import TopicIdPartition
from tests.support.record_segments import RecordSegmentMaker

TOPIC_ID = uuid.UUID(int=0xF11)


def make_segment(
    start: int,
    end_inclusive: int,
    *,
    epochs: Mapping[int, int] | None = None,
    size: int = 1000,
    number: int | None = None,
    event_timestamp_ms: int = 0,
    max_timestamp_ms: int = 0,
    topic: str = "a",
    partition: int = 0,
    topic_id: uuid.UUID = TOPIC_ID,
    state: RemoteLogSegmentState = RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
) -> RemoteLogSegmentMetadata:
    """The metadata of a finished segment. Equal offsets give an equal id, unless `number` is
    given."""
    id_number = start * 1_000_003 + end_inclusive if number is None else number
    owner = TopicIdPartition(topic_id, topic, partition)
    return RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(owner, uuid.UUID(int=id_number)),
        start_offset=start,
        end_offset_inclusive=end_inclusive,
        max_timestamp_ms=max_timestamp_ms,
        broker_id=1,
        event_timestamp_ms=event_timestamp_ms,
        segment_size_in_bytes=size,
        segment_leader_epochs=epochs or {0: start},
        state=state,
    )


@pytest.fixture
def segment() -> Callable[..., RemoteLogSegmentMetadata]:
    return make_segment


def make_records(count: int, *, start: int = 0, value_size: int = 20) -> list[NewRecord]:
    """Records whose key and value give their number. Every seventh has headers, every fifth has no
    key."""
    return [
        NewRecord(
            timestamp_ms=1_700_000_000_000 + number * 10 + (number * 7919) % 5,
            key=None if number % 5 == 0 else b"key-%d" % number,
            value=(b"value-%d-" % number).ljust(value_size, b"x"),
            headers=(("h", b"%d" % number), ("n", None)) if number % 7 == 0 else (),
        )
        for number in range(start, start + count)
    ]


@pytest.fixture
def records() -> Callable[..., list[NewRecord]]:
    return make_records


@pytest.fixture
def storage_settings(tmp_path: Path) -> ObjectStoreSettings:
    folder = tmp_path / "bucket"
    folder.mkdir()
    return ObjectStoreSettings(url=folder.as_uri())


@pytest.fixture
def storage(storage_settings: ObjectStoreSettings) -> ObjectStoreRemoteStorageManager:
    return ObjectStoreRemoteStorageManager(storage_settings)


@pytest.fixture
def maker(tmp_path: Path, storage: ObjectStoreRemoteStorageManager) -> RecordSegmentMaker:
    return RecordSegmentMaker(tmp_path / "segments", storage)


@pytest.fixture
def owner() -> TopicIdPartition:
    return TopicIdPartition(TOPIC_ID, "a", 0)
