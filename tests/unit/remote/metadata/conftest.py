"""Segments by their epochs and offsets, for the tests of the metadata manager."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable

import pytest

from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from isotherm.types import TopicIdPartition

PARTITION = TopicIdPartition(uuid.UUID(int=7), "flights", 0)


@pytest.fixture
def partition() -> TopicIdPartition:
    return PARTITION


@pytest.fixture
def make_segment() -> Callable[..., RemoteLogSegmentMetadata]:
    """make_segment(start, end_inclusive, epochs={0: start}): a started copy with a new id."""
    rng = random.Random(0)

    def make(
        start: int,
        end: int,
        epochs: dict[int, int] | None = None,
        *,
        partition: TopicIdPartition = PARTITION,
        size: int = 1000,
        txn_index_empty: bool = False,
    ) -> RemoteLogSegmentMetadata:
        return RemoteLogSegmentMetadata(
            segment_id=RemoteLogSegmentId(partition, uuid.UUID(int=rng.getrandbits(128))),
            start_offset=start,
            end_offset_inclusive=end,
            max_timestamp_ms=1000,
            broker_id=0,
            event_timestamp_ms=2000,
            segment_size_in_bytes=size,
            segment_leader_epochs=epochs or {0: start},
            txn_index_empty=txn_index_empty,
        )

    return make


@pytest.fixture
def make_update() -> Callable[..., RemoteLogSegmentMetadataUpdate]:
    def make(
        metadata: RemoteLogSegmentMetadata,
        state: RemoteLogSegmentState,
        custom_metadata: bytes | None = None,
    ) -> RemoteLogSegmentMetadataUpdate:
        return RemoteLogSegmentMetadataUpdate(
            segment_id=metadata.segment_id,
            event_timestamp_ms=3000,
            state=state,
            broker_id=1,
            custom_metadata=custom_metadata,
        )

    return make
