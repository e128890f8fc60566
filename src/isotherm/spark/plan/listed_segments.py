"""Plans from the names of segments in a listing, without their manifests.

A listing shows the start offset, size and time of each segment, but neither its end offset nor its
leader epochs. If the segments of a partition were stored in offset order and have different start
offsets, each is assumed to end at the start of the next: a later leader stores its segments later,
so no segment was replaced by an earlier one. Any other partition is planned from its manifests.

Tasks verify the assumption: a task reads the manifests of its own segments and of the one before
(`settle`). If they contradict it, the partition is planned again from its manifests.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeAlias

from isotherm.errors import RemoteResourceNotFoundError, UnreadableDataError
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from isotherm.remote.storage.inventory import SegmentObjects
from isotherm.remote.storage.layout.segment_layout import LOG_SUFFIX
from isotherm.spark.plan.planning import Read, SegmentRead
from isotherm.types import LeaderEpoch, Offset, TopicIdPartition

# Manifests are small: a task fetches several in parallel.
_MANIFEST_THREADS = 8

# Reads the manifest of a segment; raises UnreadableDataError.
FetchMetadata: TypeAlias = Callable[[RemoteLogSegmentMetadata], RemoteLogSegmentMetadata]
# Plans a read again, from the present metadata (see task_reading.py).
ReadAgain: TypeAlias = Callable[[SegmentRead], "Sequence[Read] | None"]

_Fact: TypeAlias = RemoteLogSegmentMetadata | UnreadableDataError


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedSegment(RemoteLogSegmentMetadata):
    """A segment known by name and stored size only, assumed to end at the start of the next.

    `previous` is the segment before it; None for the first of its partition.
    """

    previous: SegmentName | None


@dataclass(frozen=True, slots=True)
class SegmentName:
    start_offset: Offset
    segment_uuid: uuid.UUID

    def in_partition(
        self,
        owner: TopicIdPartition,
        end_offset: Offset,
        size: int,
        previous: SegmentName | None = None,
    ) -> ListedSegment:
        """The segment of this name, with the assumed `end_offset`."""
        return ListedSegment(
            segment_id=RemoteLogSegmentId(owner, self.segment_uuid),
            start_offset=self.start_offset,
            end_offset_inclusive=end_offset - 1,
            max_timestamp_ms=-1,
            broker_id=-1,
            event_timestamp_ms=0,
            segment_size_in_bytes=size,
            segment_leader_epochs={0: self.start_offset},
            state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
            previous=previous,
        )


def is_in_order(segments: Sequence[SegmentObjects]) -> bool:
    """Whether these segments of one partition, ascending by start offset, allow the assumption."""
    return all(LOG_SUFFIX in segment.objects for segment in segments) and all(
        before.start_offset < after.start_offset
        # Equal times do not contradict: stores may count whole seconds.
        and before.objects[LOG_SUFFIX].last_modified_ms
        <= after.objects[LOG_SUFFIX].last_modified_ms
        for before, after in itertools.pairwise(segments)
    )


def is_succeeded_by(before: RemoteLogSegmentMetadata, after: RemoteLogSegmentMetadata) -> bool:
    """Whether the manifests of two adjacent segments confirm that the second follows the first."""
    return (
        _is_led_later(before, after) and before.end_offset_inclusive <= after.end_offset_inclusive
    )


def follow_one_another(segments: Sequence[SegmentObjects]) -> Iterator[ListedSegment]:
    """Yield all segments but the last, each up to the start of the next. The listing does not show
    where the last one ends."""
    previous: SegmentName | None = None
    for listed, after in itertools.pairwise(segments):
        owner = listed.segment_id.topic_id_partition
        name = SegmentName(listed.start_offset, listed.segment_id.id)
        size = listed.objects[LOG_SUFFIX].size
        yield name.in_partition(owner, after.start_offset, size, previous)
        previous = name


def settle(
    reads: Sequence[SegmentRead], fetch_metadata: FetchMetadata, read_again: ReadAgain
) -> list[Read]:
    """The same reads with the metadata of the manifests. Reads that the manifests contradict, or
    whose manifest cannot be read, are planned again."""
    named: dict[uuid.UUID, ListedSegment] = {}
    for read in reads:
        segment = read.segment
        if isinstance(segment, ListedSegment):
            if (before := segment.previous) is not None:
                owner, end = segment.topic_id_partition, segment.start_offset
                named.setdefault(before.segment_uuid, before.in_partition(owner, end, 0))
            named[segment.segment_id.id] = segment
    if not named:
        return list(reads)

    def fetched(segment: ListedSegment) -> _Fact:
        try:
            return fetch_metadata(segment)
        except UnreadableDataError as error:
            return error

    with ThreadPoolExecutor(_MANIFEST_THREADS, "isotherm-manifests") as pool:
        facts = dict(zip(named, pool.map(fetched, named.values()), strict=True))
    settled: list[Read] = []
    led_to: dict[TopicIdPartition, LeaderEpoch] = {}
    for read in reads:
        owner = read.segment.topic_id_partition
        as_it_is = _settled(read, facts, led_to.get(owner, -1))
        segments = [as_it_is] if as_it_is is not None else read_again(read) or ()
        for part in segments:
            if isinstance(part, SegmentRead):
                led_to[owner] = max(led_to.get(owner, -1), *part.segment.segment_leader_epochs)
        settled.extend(segments)
    return settled


def _settled(
    read: SegmentRead, facts: Mapping[uuid.UUID, _Fact], led_to: LeaderEpoch
) -> SegmentRead | None:
    """The read with its manifest's metadata, or None if the manifests contradict the assumption.

    `led_to` is the highest epoch among earlier reads of the same task. It is needed because, of
    several late segments of a deposed leader in a row, only the first has a neighbour with a higher
    epoch.
    """
    listed = read.segment
    if not isinstance(listed, ListedSegment):
        return read
    segment = facts[listed.segment_id.id]
    # Planned again from all manifests: others may hold its offsets, and a plan reports the rest.
    if isinstance(segment, UnreadableDataError):
        return None
    # `<`: a segment may reach into the next one, which is read from its start on.
    if segment.end_offset_inclusive < listed.end_offset_inclusive:
        return None
    if min(segment.segment_leader_epochs) < led_to:
        return None
    before = facts[listed.previous.segment_uuid] if listed.previous is not None else None
    # If the previous segment is deleted, the task that reads it reports that.
    if isinstance(before, UnreadableDataError) and not isinstance(
        before, RemoteResourceNotFoundError
    ):
        return None
    if isinstance(before, RemoteLogSegmentMetadata) and not _is_led_later(before, segment):
        return None
    return replace(read, segment=segment)


def _is_led_later(before: RemoteLogSegmentMetadata, after: RemoteLogSegmentMetadata) -> bool:
    return max(before.segment_leader_epochs) <= min(after.segment_leader_epochs)
