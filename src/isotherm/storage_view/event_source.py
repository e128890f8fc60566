"""The events of remote segments, from the topic that keeps them: the audit topic where there is one, else the
metadata topic itself, whose records at level 0 are events."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from isotherm.remote.metadata.api import MetadataTopic
from isotherm.remote.metadata.wire.events import iterate_records
from isotherm.remote.metadata.wire.keys import metadata_partition
from isotherm.remote.metadata.wire.serde import decode_event
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
)
from isotherm.storage_view.segment_history import SegmentExtent, SegmentHistory
from isotherm.types import Offset, TopicIdPartition

EVENTS_MAX = 50_000
"""The last ones of a metadata partition: what a decoder in Python reads within a second."""
NUMBERS_MAX = 64
"""Metadata partitions that are kept."""


@dataclass(slots=True)
class _Followed:
    first_offset: Offset
    next_offset: Offset
    histories: dict[TopicIdPartition, SegmentHistory] = field(default_factory=dict)


class EventSource:
    """One thread at a time. A metadata partition is read when it is asked for, and followed from there."""

    def __init__(self, topic: MetadataTopic, name: str) -> None:
        self._topic = topic
        self.name = name
        self._followed: OrderedDict[int, _Followed] = OrderedDict()

    def histories(
        self, partitions: Iterable[TopicIdPartition], ends: Mapping[int, Offset]
    ) -> dict[TopicIdPartition, SegmentHistory]:
        """`ends` are the ends of the topic's partitions. Raises what the topic's reads raise, and
        CorruptMetadataError."""
        count = self._topic.partition_count
        found = {}
        for partition in partitions:
            followed = self._caught_up(metadata_partition(partition, count), ends)
            found[partition] = followed.histories.get(partition, SegmentHistory())
        return found

    def _caught_up(self, number: int, ends: Mapping[int, Offset]) -> _Followed:
        end = ends.get(number)
        followed = self._followed.get(number)
        if followed is not None and (end is None or end == followed.next_offset):
            self._followed.move_to_end(number)
            return followed
        if followed is not None and (
            end is None
            or end < followed.next_offset
            or end - followed.first_offset > 2 * EVENTS_MAX
        ):
            # Made anew, or grown: the oldest events are let go.
            followed = None
        if followed is None:
            first, last = self._topic.offsets(number)
            first = max(first, last - EVENTS_MAX)
            followed = _Followed(first, first)
            self._followed[number] = followed
            if len(self._followed) > NUMBERS_MAX:
                self._followed.popitem(last=False)
        self._read(number, followed)
        return followed

    def _read(self, number: int, followed: _Followed) -> None:
        records = iterate_records(self._topic, number, start_offset=followed.next_offset)
        for record in records:
            if record.value is not None:
                _note(followed.histories, decode_event(record.value))
            followed.next_offset = record.offset + 1


def _note(histories: dict[TopicIdPartition, SegmentHistory], event: object) -> None:
    """A partition's deletion says nothing of its segments: each of them is deleted as well."""
    extent = None
    match event:
        case RemoteLogSegmentMetadata():
            extent = SegmentExtent(
                event.start_offset,
                event.end_offset_inclusive,
                event.segment_size_in_bytes,
                event.max_timestamp_ms,
            )
        case RemoteLogSegmentMetadataUpdate():
            pass
        case _:
            return
    segment = event.segment_id
    history = histories.setdefault(segment.topic_id_partition, SegmentHistory())
    history.note(segment.id.bytes, event.state, event.event_timestamp_ms, extent)
