"""Groups segments that are rewritten into one. Pure; source: Kafka Cleaner.groupSegmentsBySize."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar

from isotherm.segment.offset_index import RELATIVE_OFFSET_MAX
from isotherm.types import Offset


class GroupedSegment(Protocol):
    """The part of `LogSegment` that grouping needs."""

    @property
    def base_offset(self) -> Offset: ...

    @property
    def size_in_bytes(self) -> int: ...

    @property
    def offset_index_size(self) -> int: ...

    @property
    def time_index_size(self) -> int: ...


Segment = TypeVar("Segment", bound=GroupedSegment)


def group_segments(
    segments: Sequence[Segment],
    *,
    segment_size_max: int,
    index_size_max: int,
    first_uncleanable_offset: Offset,
) -> list[list[Segment]]:
    """Adjacent segments that fit into one segment even if cleaning removes nothing.

    The total sizes of logs, offset indexes and time indexes are limited, and so are offsets
    relative to the first base. A segment ends at the next one's base, the last one at
    `first_uncleanable_offset`. For an empty segment the end is ignored: otherwise one empty
    segment would remain for every 2^31 offsets.
    """
    groups: list[list[Segment]] = []
    for index, segment in enumerate(segments):
        following = index + 1
        end_offset = (
            segments[following].base_offset
            if following < len(segments)
            else first_uncleanable_offset
        )
        if groups and _fits(groups[-1], segment, end_offset, segment_size_max, index_size_max):
            groups[-1].append(segment)
        else:
            groups.append([segment])
    return groups


def _fits(
    group: Sequence[GroupedSegment],
    segment: GroupedSegment,
    end_offset: Offset,
    segment_size_max: int,
    index_size_max: int,
) -> bool:
    together = [*group, segment]
    return (
        sum(each.size_in_bytes for each in together) <= segment_size_max
        and sum(each.offset_index_size for each in together) <= index_size_max
        and sum(each.time_index_size for each in together) <= index_size_max
        and (
            # As in Kafka: an empty segment adds no offset to the new one.
            segment.size_in_bytes == 0
            or end_offset - 1 - group[0].base_offset <= RELATIVE_OFFSET_MAX
        )
    )
