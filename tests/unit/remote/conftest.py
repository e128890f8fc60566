"""A tiered partition and hand-made segment metadata, for the tests of the remote tier."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from isotherm.types import TopicIdPartition
from tests.support.scrubbed_buckets import scrubbed_buckets
from tests.support.tiered_partition import BROKER_ID, TieredPartition

__all__ = ["scrubbed_buckets"]


@pytest.fixture
def tiered(tmp_path: Path) -> TieredPartition:
    return TieredPartition(tmp_path / "partition")


@pytest.fixture
def remote_segment() -> Callable[..., RemoteLogSegmentMetadata]:
    """remote_segment({epoch: start, ...}, end_inclusive): a segment, finished unless another state
    is given."""
    rng = random.Random(0)
    partition = TopicIdPartition(uuid.UUID(int=7), "flights", 0)

    def make(
        epochs: dict[int, int],
        end: int,
        *,
        size: int = 1024,
        max_timestamp_ms: int = 0,
        state: RemoteLogSegmentState = RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
        broker_id: int = BROKER_ID,
    ) -> RemoteLogSegmentMetadata:
        return RemoteLogSegmentMetadata(
            segment_id=RemoteLogSegmentId(partition, uuid.UUID(int=rng.getrandbits(128))),
            start_offset=min(epochs.values()),
            end_offset_inclusive=end,
            max_timestamp_ms=max_timestamp_ms,
            broker_id=broker_id,
            event_timestamp_ms=0,
            segment_size_in_bytes=size,
            segment_leader_epochs=epochs,
            state=state,
        )

    return make
