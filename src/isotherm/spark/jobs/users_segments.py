"""Lists the segments of a user's RemoteStorageManager in the form that a sweep compares.

A segment is one object here. Its key is made of the partition and the segment's id. The suffix says
whether the manager has the whole copy (`whole`) or part of it (`part`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata, RemoteLogSegmentState
from isotherm.spark.jobs.bucket_listing import IN_PLACE, LISTING_ARROW
from isotherm.spark.tier.storage import open_users_storage
from isotherm.types import uuid_to_text

if TYPE_CHECKING:
    from isotherm.spark.options import SourceOptions

WHOLE = "whole"
PART = "part"


class UsersLayout:
    """The part of a layout (isotherm.remote.storage.layout) that a sweep uses."""

    commit_suffix: str | None = WHOLE

    def object_keys(self, metadata: RemoteLogSegmentMetadata) -> Sequence[str]:
        return [_key(metadata, WHOLE), _key(metadata, PART)]


def listed_key(segment: RemoteLogSegmentMetadata) -> str:
    """The key for a segment that the storage manager lists."""
    is_whole = segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
    return _key(segment, WHOLE if is_whole else PART)


def list_users_segments(options: SourceOptions) -> pa.Table:
    """The storage manager's segments as a listing (bucket_listing). The age of a segment is that of
    its metadata. Raises UnsupportedVersionError if the manager cannot list its segments."""
    segments = open_users_storage(options).list_log_segments()
    return pa.Table.from_pylist([_row(segment) for segment in segments], LISTING_ARROW)


def absent_keys(keys: Iterable[str], options: SourceOptions) -> list[bool]:
    """For each key, whether the storage manager lacks the segment now."""
    stored = {listed_key(segment) for segment in open_users_storage(options).list_log_segments()}
    return [key not in stored for key in keys]


def _key(segment: RemoteLogSegmentMetadata, suffix: str) -> str:
    owner = segment.topic_id_partition
    return f"{owner.topic}-{owner.partition}/{uuid_to_text(segment.segment_id.id)}.{suffix}"


def _row(segment: RemoteLogSegmentMetadata) -> dict[str, Any]:
    owner, key = segment.topic_id_partition, listed_key(segment)
    return {
        "key": key,
        "size": segment.segment_size_in_bytes,
        "modified_ms": segment.event_timestamp_ms,
        "place": IN_PLACE,
        "topic": owner.topic,
        "topic_id": uuid_to_text(owner.topic_id),
        "partition": owner.partition,
        "segment_id": uuid_to_text(segment.segment_id.id),
        "start_offset": segment.start_offset,
        "suffix": key.rpartition(".")[2],
    }
