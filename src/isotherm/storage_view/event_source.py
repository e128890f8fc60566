"""Reads the events of remote segments from the audit topic, or without one from the metadata topic
itself, whose records at level 0 are events."""

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
"""The events that are read of a metadata partition, the newest ones. A decoder in Python takes
about a second for as many."""
NUMBERS_MAX = 64
"""The most metadata partitions whose events are kept."""


@dataclass(slots=True)
class _Followed:
    first_offset: Offset
    next_offset: Offset
    histories: dict[TopicIdPartition, SegmentHistory] = field(default_factory=dict)


class EventSource:
    """The events of one topic. Only one thread may use it at a time. A metadata partition is read
    when it is first needed, and after that only its new events are read."""

    def __init__(self, topic: MetadataTopic, name: str) -> None:
        self._topic = topic
        self.name = name
        self._followed: OrderedDict[int, _Followed] = OrderedDict()

    def histories(
        self, partitions: Iterable[TopicIdPartition], ends: Mapping[int, Offset]
    ) -> dict[TopicIdPartition, SegmentHistory]:
        """The history of each partition. `ends` has the end offsets of the topic's partitions.
        Raises what the topic's reads raise, and CorruptMetadataError."""
        count = self._topic.partition_count
        histories = {}
        for partition in partitions:
            followed = self._caught_up(metadata_partition(partition, count), ends)
            histories[partition] = followed.histories.get(partition, SegmentHistory())
        return histories

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
            # The topic was created again, or so many events are kept that the oldest are dropped.
            # Both cases read the newest EVENTS_MAX again.
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
    """Add an event to its partition's history. The deletion of a partition is ignored, because each
    of its segments has deletion events too."""
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
