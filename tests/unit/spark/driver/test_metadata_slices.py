"""Slices of a metadata topic, to which the brokers append while a job reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from isotherm.remote.metadata.wire.serde import encode_event
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata, RemoteLogSegmentState
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.jobs.project import _project_slice
from isotherm.spark.metadata import remote_metadata_log
from isotherm.spark.metadata.projection import Projection
from isotherm.spark.metadata.remote_metadata_log import LogSlice, TopicMetadataLog
from tests.support.memory_metadata_topic import MemoryMetadataTopic

Append = Callable[[range], None]


@pytest.fixture
def append(
    monkeypatch: pytest.MonkeyPatch, segment: Callable[..., RemoteLogSegmentMetadata]
) -> Append:
    """Appends the first events of the segments with these numbers to the topic of the brokers."""
    topic = MemoryMetadataTopic(partition_count=1)
    monkeypatch.setattr(remote_metadata_log, "KafkaMetadataTopic", lambda *_, **__: topic)

    def appended(numbers: range) -> None:
        for number in numbers:
            begun = replace(
                segment(number, number), state=RemoteLogSegmentState.COPY_SEGMENT_STARTED
            )
            topic.append(0, None, encode_event(begun), 0)

    return appended


def fail(offset: int, reason: str) -> None:
    raise AssertionError(f"damage offset={offset} reason={reason}")


@pytest.mark.parametrize(("end", "offsets"), [(2, [0, 1]), (4, [0, 1, 2, 3]), (None, [0, 1, 2, 3])])
def test_read_ends_with_its_slice(append: Append, end: int | None, offsets: list[int]) -> None:
    append(range(4))
    runs = list(TopicMetadataLog({}).read(LogSlice(0, 0, end), fail))
    assert [offset for run in runs for offset in run.columns.offset.tolist()] == offsets
    assert runs[-1].columns.next_offset == len(offsets)


def test_events_that_follow_a_slice_are_in_the_next_projection(
    append: Append, tmp_path: Path
) -> None:
    target = ObjectStoreSettings(url=tmp_path.as_uri())
    projection, log = Projection(target, create=True), TopicMetadataLog({})
    append(range(2))
    first = log.slices()[0]
    append(range(2, 4))
    list(_project_slice(log, first, 1, target, None))
    known = projection.partitions()[0]
    assert known.next_offset == 2
    list(_project_slice(log, log.slices()[0], 1, target, known))
    table = projection.segments(projection.partitions()[0])
    assert sorted(table["start_offset"].to_pylist()) == [0, 1, 2, 3]
