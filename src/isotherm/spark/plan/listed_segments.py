"""Segments known by their names alone: planning from a listing, without their manifests.

A listing tells where each segment begins, its size and when it was stored; not where it ends, nor
its leader epochs. Where the segments of a partition were stored in the order of their offsets and
no two begin at the same one, each is taken to reach to the next: a later leader's segments come
later, so none can have been replaced by one before it. Any other partition is planned from its
manifests.

What was taken for granted is proved where the manifest is at hand anyway: a task reads the
manifests of its own segments and of the one before (`settle`), and whatever turns out otherwise is
planned anew from the manifests of the partition.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TypeAlias

from isotherm.errors import CorruptDataError, RemoteResourceNotFoundError
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from isotherm.remote.storage.inventory import SegmentObjects
from isotherm.remote.storage.layout.segment_layout import LOG_SUFFIX
from isotherm.spark.plan.planning import Read, SegmentRead
from isotherm.types import LeaderEpoch, Offset, TopicIdPartition

# Manifests are small: a task asks for several at once.
_MANIFEST_THREADS = 8

# What the manifest of a segment says; RemoteResourceNotFoundError when it is gone.
FetchMetadata: TypeAlias = Callable[[RemoteLogSegmentMetadata], RemoteLogSegmentMetadata]
# What to read instead of a read, from the metadata as it is now (see task_reading.py).
ReadAgain: TypeAlias = Callable[[SegmentRead], "Sequence[Read] | None"]

_Fact: TypeAlias = RemoteLogSegmentMetadata | RemoteResourceNotFoundError | CorruptDataError


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedSegment(RemoteLogSegmentMetadata):
    """A segment of which only the name and the stored size are known, taken to reach to the next.

    `previous` is the one before it; None for the first of its partition.
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
        """The segment of this name that reaches to `end_offset`, as it is taken to be."""
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
    """Whether these of one partition, ascending, may be taken to follow one another."""
    return all(LOG_SUFFIX in segment.objects for segment in segments) and all(
        before.start_offset < after.start_offset
        and before.objects[LOG_SUFFIX].last_modified_ms
        <= after.objects[LOG_SUFFIX].last_modified_ms
        for before, after in itertools.pairwise(segments)
    )


def is_succeeded_by(before: RemoteLogSegmentMetadata, after: RemoteLogSegmentMetadata) -> bool:
    """Whether the manifests of two neighbours agree that the latter ends what the former began."""
    return (
        _is_led_later(before, after) and before.end_offset_inclusive <= after.end_offset_inclusive
    )


def follow_one_another(segments: Sequence[SegmentObjects]) -> Iterator[ListedSegment]:
    """All of them but the last, each to the start of the next."""
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
    """The same reads with what the manifests say; planned anew where that is not what was assumed.

    CorruptDataError when the manifest of a segment that is read is damaged.
    """
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
        except (RemoteResourceNotFoundError, CorruptDataError) as error:
            return error

    with ThreadPoolExecutor(_MANIFEST_THREADS, "isotherm-manifests") as pool:
        facts = dict(zip(named, pool.map(fetched, named.values()), strict=True))
    settled: list[Read] = []
    led_to: dict[TopicIdPartition, LeaderEpoch] = {}
    for read in reads:
        owner = read.segment.topic_id_partition
        as_it_is = _settled(read, facts, led_to.get(owner, -1))
        found = [as_it_is] if as_it_is is not None else read_again(read) or ()
        for each in found:
            if isinstance(each, SegmentRead):
                led_to[owner] = max(led_to.get(owner, -1), *each.segment.segment_leader_epochs)
        settled.extend(found)
    return settled


def _settled(
    read: SegmentRead, facts: Mapping[uuid.UUID, _Fact], led_to: LeaderEpoch
) -> SegmentRead | None:
    """None when the manifests do not agree with what was assumed of the read's segment.

    `led_to` is the highest epoch among what the same task reads before: of several late segments
    of a deposed leader in a row, only the first has a neighbour that tells.
    """
    listed = read.segment
    if not isinstance(listed, ListedSegment):
        return read
    segment = facts[listed.segment_id.id]
    if isinstance(segment, CorruptDataError):
        raise segment
    if isinstance(segment, RemoteResourceNotFoundError):
        return None
    if segment.end_offset_inclusive < listed.end_offset_inclusive:
        return None
    if min(segment.segment_leader_epochs) < led_to:
        return None
    before = facts[listed.previous.segment_uuid] if listed.previous is not None else None
    if isinstance(before, CorruptDataError):
        return None
    # A previous segment that is gone is for the task that reads it to tell.
    if isinstance(before, RemoteLogSegmentMetadata) and not _is_led_later(before, segment):
        return None
    return replace(read, segment=segment)


def _is_led_later(before: RemoteLogSegmentMetadata, after: RemoteLogSegmentMetadata) -> bool:
    return max(before.segment_leader_epochs) <= min(after.segment_leader_epochs)
