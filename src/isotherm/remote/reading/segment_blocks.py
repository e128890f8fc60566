"""The bytes of a remote segment from one position on, in ranged GETs that follow one another.

For work that reads a segment once and keeps nothing: jobs, compaction, what makes an index again.
Consumers read through read_ahead.py, where ranges are shared.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor

from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.types import Offset, Position


def segment_blocks(
    storage: RemoteStorageManager,
    segment: RemoteLogSegmentMetadata,
    fetch_bytes: int,
    *,
    start: Position = 0,
) -> Iterator[memoryview]:
    """Raises what the storage manager raises."""
    for position, end in _ranges(segment, fetch_bytes, start):
        yield storage.fetch_log_segment(segment, position, end - 1)


def segment_blocks_ahead(
    storage: RemoteStorageManager,
    segment: RemoteLogSegmentMetadata,
    fetch_bytes: int,
    fetching: Executor,
) -> Iterator[memoryview]:
    """As `segment_blocks` of the whole segment; each block is fetched while the one before it is
    worked on, so that two are in memory."""
    ahead = None
    for position, end in _ranges(segment, fetch_bytes, 0):
        following = fetching.submit(storage.fetch_log_segment, segment, position, end - 1)
        if ahead is not None:
            yield ahead.result()
        ahead = following
    if ahead is not None:
        yield ahead.result()


def unreadable_records(
    segment: RemoteLogSegmentMetadata,
    start_offset: Offset,
    end_offset: Offset,
    error: Exception,
) -> str:
    """What to tell of records that are lost or damaged."""
    partition = segment.topic_id_partition
    return (
        f"records cannot be read from the tier topic={partition.topic}"
        f" partition={partition.partition} start_offset={start_offset}"
        f" end_offset={end_offset} segment={segment.segment_id} reason={str(error)!r}"
    )


def _ranges(
    segment: RemoteLogSegmentMetadata, fetch_bytes: int, start: Position
) -> Iterator[tuple[Position, Position]]:
    size = segment.segment_size_in_bytes
    for position in range(start, size, fetch_bytes):
        yield position, min(position + fetch_bytes, size)
