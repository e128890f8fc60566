"""The kinds of findings about a bucket. All jobs use the same names."""

from __future__ import annotations

import enum
from typing import NamedTuple

from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.types import Offset, uuid_to_text


class FindingKind(enum.StrEnum):
    """Reports and users' scripts use these texts, so they do not change."""

    # Objects against metadata.
    PARTIAL_UPLOAD = "partial-upload"
    FAILED_COPY = "failed-copy"
    UNFINISHED_DELETION = "unfinished-deletion"
    DELETED_BUT_PRESENT = "deleted-but-present"
    UNKNOWN_SEGMENT = "unknown-segment"
    UNKNOWN_TOPIC = "unknown-topic"
    MISPLACED_OBJECT = "misplaced-object"
    FOREIGN_OBJECT = "foreign-object"
    MISSING_OBJECT = "missing-object"
    WRONG_SIZE = "wrong-size"
    METADATA_LAGS = "metadata-lags"
    # One segment.
    DAMAGED_MANIFEST = "damaged-manifest"
    WRONG_MANIFEST = "wrong-manifest"
    DAMAGED_OBJECT = "damaged-object"
    DAMAGED_BATCH = "damaged-batch"
    WRONG_CRC = "wrong-crc"
    WRONG_HEADER = "wrong-header"
    WRONG_SEQUENCE = "wrong-sequence"
    WRONG_RECORDS = "wrong-records"
    WRONG_OFFSETS = "wrong-offsets"
    OFFSET_GAP = "offset-gap"
    WRONG_EPOCH = "wrong-epoch"
    WRONG_TIMESTAMP = "wrong-timestamp"
    WRONG_OFFSET_INDEX = "wrong-offset-index"
    WRONG_TIME_INDEX = "wrong-time-index"
    WRONG_TRANSACTION_INDEX = "wrong-transaction-index"
    WRONG_PRODUCER_SNAPSHOT = "wrong-producer-snapshot"
    WRONG_EPOCH_CHECKPOINT = "wrong-epoch-checkpoint"
    # The segments of a partition.
    HISTORY_GAP = "history-gap"
    DUPLICATE_SEGMENT = "duplicate-segment"
    CONFLICTING_SEGMENT = "conflicting-segment"
    OUTSIDE_HISTORY = "outside-history"


LEFTOVERS = frozenset({FindingKind.DUPLICATE_SEGMENT})
"""The kinds of a scrub that only take space. All others are damage."""


class Problem(NamedTuple):
    """A kind, and its details: a fact with `key=value` pairs."""

    kind: FindingKind
    detail: str


class Finding(NamedTuple):
    """A problem with its place. Fields that do not apply to its kind are None."""

    kind: str
    topic: str | None
    topic_id: str | None
    partition: int | None
    segment_id: str | None
    start_offset: Offset | None
    object: str | None
    detail: str


def segment_finding(
    segment: RemoteLogSegmentMetadata, problem: Problem, key: str | None = None
) -> Finding:
    owner = segment.topic_id_partition
    return Finding(
        problem.kind.value,
        owner.topic,
        uuid_to_text(owner.topic_id),
        owner.partition,
        uuid_to_text(segment.segment_id.id),
        segment.start_offset,
        key,
        problem.detail,
    )
