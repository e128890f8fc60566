"""The markers that end a rebuilt partition's open transactions."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

import pytest

from isotherm.broker.startup.rebuilt_partitions import RebuiltPartition, abort_markers
from isotherm.record.batch import iterate_batches
from isotherm.segment.leader_epoch_checkpoint import EpochEntry
from isotherm.segment.producer_snapshot import ProducerSnapshotEntry, encode_producer_snapshot
from isotherm.types import TopicIdPartition

OWNER = TopicIdPartition(uuid.UUID(int=7), "topic", 0)


@pytest.mark.parametrize(
    ("epochs", "expected"), [([EpochEntry(0, 0), EpochEntry(3, 5)], 3), ([], -1)]
)
def test_marker_has_the_last_epoch_or_none(epochs: Sequence[EpochEntry], expected: int) -> None:
    open_transaction = ProducerSnapshotEntry(
        producer_id=9,
        producer_epoch=1,
        last_sequence=0,
        last_offset=7,
        offset_delta=0,
        timestamp_ms=1,
        coordinator_epoch=0,
        current_transaction_first_offset=7,
    )
    snapshot = encode_producer_snapshot([open_transaction])
    markers = abort_markers(RebuiltPartition(OWNER, 0, 10, epochs, snapshot), 1)
    ((_, header),) = iterate_batches(memoryview(markers))
    assert (header.base_offset, header.producer_id) == (10, 9)
    assert header.partition_leader_epoch == expected
