"""Rows made from columns are equal to rows made from one record after the other."""

from __future__ import annotations

import random
import subprocess
import sys
import uuid
from dataclasses import replace
from typing import Any

import pytest

from isotherm.cli.decoded_values import describe_event, text_of
from isotherm.cli.remote_events import event_rows
from isotherm.remote.metadata.wire import events
from isotherm.remote.metadata.wire.keys import partition_key, segment_key
from isotherm.remote.metadata.wire.serde import encode_event, encode_keyed_event
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from isotherm.types import TopicIdPartition
from tests.support.memory_metadata_topic import MemoryMetadataTopic

Row = dict[str, Any]
TOPICS = ("flights", "prices", "flights.2")


@pytest.fixture
def filled() -> tuple[MemoryMetadataTopic, list[Row]]:
    """A topic with records of every form, and the row expected for each."""
    rng = random.Random(1)
    topic = MemoryMetadataTopic(partition_count=1)
    rows: list[Row] = []

    def tell(key: bytes | None, value: bytes | None, row: Row) -> None:
        offset = topic.append(0, key, value, 0)
        shown = {} if key is None else {"key": text_of(key)}
        rows.append({"metadata_partition": 0, "offset": offset, **shown, **row})

    for number in range(300):
        name = rng.choice(TOPICS)
        partition = TopicIdPartition(
            uuid.UUID(int=(TOPICS.index(name) + 1) << 90 | (1 << 127)), name, rng.randrange(3)
        )
        start, broker_leader_epoch = number * 10, rng.choice([-1, 0, 7])
        segment = RemoteLogSegmentMetadata(
            segment_id=RemoteLogSegmentId(partition, uuid.UUID(bytes=rng.randbytes(16))),
            start_offset=start,
            end_offset_inclusive=start + 9,
            max_timestamp_ms=rng.randrange(2**40),
            broker_id=rng.randrange(5),
            event_timestamp_ms=rng.randrange(2**40),
            segment_size_in_bytes=rng.randrange(2**30),
            segment_leader_epochs={0: start, 3: start + 4} if rng.random() < 0.3 else {2: start},
            custom_metadata=rng.choice([None, b"", b"\x00\xff"]),
            state=rng.choice(list(RemoteLogSegmentState)),
            txn_index_empty=rng.random() < 0.5,
        )
        update = RemoteLogSegmentMetadataUpdate(
            segment_id=segment.segment_id,
            event_timestamp_ms=segment.event_timestamp_ms,
            custom_metadata=segment.custom_metadata,
            state=segment.state,
            broker_id=2,
        )
        deletion = RemotePartitionDeleteMetadata(
            topic_id_partition=partition,
            state=RemotePartitionDeleteState.DELETE_PARTITION_STARTED,
            event_timestamp_ms=5,
            broker_id=1,
        )
        tell(None, encode_event(segment), describe_event(segment))
        tell(None, encode_event(update), describe_event(update))
        keyed = replace(segment, broker_leader_epoch=broker_leader_epoch)
        key = segment_key(partition, start + 9, broker_leader_epoch).encode()
        tell(key, encode_keyed_event(keyed), describe_event(keyed))
        place = {
            "topic": name,
            "topic_id": describe_event(segment)["topic_id"],
            "partition": partition.partition,
        }
        tell(key, None, {"type": "tombstone", **place})
        if number % 20 == 0:
            tell(None, encode_event(deletion), describe_event(deletion))
            tell(partition_key(partition).encode(), None, {"type": "tombstone", **place})
            tell(
                None,
                b"\x07" * (broker_leader_epoch + 2),
                {"type": "damaged", "value": "07" * (broker_leader_epoch + 2)},
            )
    return topic, rows


# With 1, the first read is decoded record by record and the others by columns.
BEFORE_COLUMNS = (0, 1, 10_000)


@pytest.mark.parametrize("columnar_records_min", BEFORE_COLUMNS)
def test_rows_by_columns_are_those_of_each_record(
    filled: tuple[MemoryMetadataTopic, list[Row]],
    columnar_records_min: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic, rows = filled
    monkeypatch.setattr(events, "DEFAULT_READ_MAX_BYTES", 20_000)
    damage: list[str] = []
    found = list(event_rows(topic, damage, columnar_records_min=columnar_records_min))
    assert found == rows
    assert [list(row) for row in found] == [list(row) for row in rows]
    assert len(damage) == sum(row["type"] == "damaged" for row in rows)


@pytest.mark.parametrize("columnar_records_min", BEFORE_COLUMNS)
@pytest.mark.parametrize("name", [*TOPICS, "none"])
def test_one_topic_is_picked_and_damage_is_always_reported(
    filled: tuple[MemoryMetadataTopic, list[Row]],
    name: str,
    columnar_records_min: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic, rows = filled
    monkeypatch.setattr(events, "DEFAULT_READ_MAX_BYTES", 20_000)
    damage: list[str] = []
    found = list(event_rows(topic, damage, topic=name, columnar_records_min=columnar_records_min))
    assert found == [row for row in rows if row.get("topic") == name]
    assert len(damage) == sum(row["type"] == "damaged" for row in rows)


@pytest.mark.slow
def test_first_rows_wait_for_no_kernels() -> None:
    """Loading kernels or the protocol's classes would take longer than everything else before the
    first rows."""
    script = """
import sys, isotherm.cli.remote
from isotherm.cli.remote_events import event_rows
from tests.support.memory_metadata_topic import MemoryMetadataTopic
topic = MemoryMetadataTopic(1)
topic.append(0, None, b"x", 0)
assert [row["type"] for row in event_rows(topic, [])] == ["damaged"]
print({"numba", "kio"} & {*sys.modules})
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"
