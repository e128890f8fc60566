"""Forty-five days of a small cluster's metadata topic, with an example of every finding of an
audit.

Topic `flights` has two partitions; each day each of them uploads a segment, which is deleted after
thirty days. What is planted:

    partition 0   day 10: an upload fails, is removed, and is tried again
                  day 36: a hundred offsets are missing before the segment
    partition 1   day 5: the segment's deletion is begun and never finished
                  day 38: the segment begins ten offsets before the last one ended
                  day 40: an upload is abandoned, and tried again
                  day 41: an update of a segment that was never started
                  day 42: a copy of the second half of day 41's segment
    flights, an earlier topic of that name: one segment was never deleted

Segments of partition 0 have the Aiven layout's custom metadata.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from pathlib import Path

from isotherm.remote.metadata.wire.keys import metadata_partition
from isotherm.remote.metadata.wire.serde import encode_event
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from isotherm.remote.storage.layout.aiven_custom_metadata import AivenCustomMetadata
from isotherm.types import TopicIdPartition
from tests.support.metadata_dump import write_dump

DAYS = 45
RETENTION_DAYS = 30
START_MS = 1_767_225_600_000
"""2026-01-01."""
DAY_MS = 86_400_000
END_MS = START_MS + DAYS * DAY_MS
OFFSETS = 1000
METADATA_PARTITIONS = 3
TOPIC = "flights"
TOPIC_ID = uuid.UUID(int=0xF1 << 96)
EARLIER_TOPIC_ID = uuid.UUID(int=0xF0 << 96)

STARTED, FINISHED, DELETE_STARTED, DELETE_FINISHED = RemoteLogSegmentState
Event = RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate


def write_flights_history(directory: Path, end_ms: int = END_MS) -> None:
    """Write log files of the metadata topic under `directory`, with the events before `end_ms`."""
    events = sorted(_events(), key=lambda event: event.event_timestamp_ms)
    happened = [event for event in events if event.event_timestamp_ms < end_ms]
    for number in range(METADATA_PARTITIONS):
        chosen = [
            event
            for event in happened
            if metadata_partition(_owner(event), METADATA_PARTITIONS) == number
        ]
        records = [(None, encode_event(event)) for event in chosen]
        times = [event.event_timestamp_ms for event in chosen]
        write_dump(directory, number, records, timestamps_ms=times)
    (directory / "meta.properties").write_text("version=1\ncluster.id=flights-cluster\n")


def _owner(event: Event) -> TopicIdPartition:
    return event.segment_id.topic_id_partition


def _events() -> Iterator[Event]:
    ids = random.Random(7)
    earlier = TopicIdPartition(EARLIER_TOPIC_ID, TOPIC, 0)
    yield from _life(_segment(ids, earlier, range(OFFSETS), START_MS + 1000))
    for partition in range(2):
        owner = TopicIdPartition(TOPIC_ID, TOPIC, partition)
        shift = 0
        for day in range(DAYS):
            at_ms = START_MS + day * DAY_MS + 3_600_000 * (1 + partition)
            shift += 100 if (partition, day) == (0, 36) else 0
            start = day * OFFSETS + shift
            offsets = range(start - (10 if (partition, day) == (1, 38) else 0), start + OFFSETS)
            yield from _planted(ids, owner, offsets, day, at_ms)
            segment = _segment(ids, owner, offsets, at_ms)
            deletion_ms = at_ms + RETENTION_DAYS * DAY_MS if day + RETENTION_DAYS < DAYS else None
            is_stuck = (partition, day) == (1, 5)
            yield from _life(segment, deletion_ms, is_stuck=is_stuck)


def _planted(
    ids: random.Random, owner: TopicIdPartition, offsets: range, day: int, at_ms: int
) -> Iterator[Event]:
    before_ms = at_ms - 600_000
    match owner.partition, day:
        case 0, 10:
            failed = _segment(ids, owner, offsets, before_ms)
            yield failed
            yield _update(failed, DELETE_STARTED, before_ms + 60_000)
            yield _update(failed, DELETE_FINISHED, before_ms + 61_000)
        case 1, 40:
            yield _segment(ids, owner, offsets, before_ms)
        case 1, 41:
            yield _update(_segment(ids, owner, offsets, before_ms), FINISHED, before_ms)
        case 1, 42:
            half = range(offsets.start - OFFSETS // 2, offsets.start)
            yield from _life(_segment(ids, owner, half, before_ms))


def _life(
    segment: RemoteLogSegmentMetadata, deletion_ms: int | None = None, *, is_stuck: bool = False
) -> Iterator[Event]:
    at_ms = segment.event_timestamp_ms
    yield segment
    yield _update(segment, FINISHED, at_ms + 20_000 + at_ms // DAY_MS % 7 * 1000)
    if deletion_ms is not None:
        yield _update(segment, DELETE_STARTED, deletion_ms)
        if not is_stuck:
            yield _update(segment, DELETE_FINISHED, deletion_ms + 2000)


def _segment(
    ids: random.Random, owner: TopicIdPartition, offsets: range, at_ms: int
) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(owner, uuid.UUID(int=ids.getrandbits(128))),
        start_offset=offsets.start,
        end_offset_inclusive=offsets.stop - 1,
        max_timestamp_ms=at_ms - 1000,
        broker_id=1,
        event_timestamp_ms=at_ms,
        segment_size_in_bytes=1_000_000 + 1000 * (offsets.start // OFFSETS),
        segment_leader_epochs={3: offsets.start},
        txn_index_empty=True,
    )


def _update(
    segment: RemoteLogSegmentMetadata, state: RemoteLogSegmentState, at_ms: int
) -> RemoteLogSegmentMetadataUpdate:
    has_custom = segment.topic_id_partition.partition == 0
    custom = AivenCustomMetadata(remote_size=segment.segment_size_in_bytes * 2 // 5)
    return RemoteLogSegmentMetadataUpdate(
        segment_id=segment.segment_id,
        event_timestamp_ms=at_ms,
        state=state,
        broker_id=1,
        custom_metadata=custom.encode() if has_custom else None,
    )
