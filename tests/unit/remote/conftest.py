"""A tiered partition and hand-made segment metadata, for the tests of the remote tier."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from isotherm.config.remote import RemoteLogManagerConfig
from isotherm.log.fs import OsFileSystem
from isotherm.remote.remote_log_manager import RemoteLogManager
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from isotherm.remote.tasks.pending_deletions import PendingDeletions
from isotherm.remote.threads import SYSTEM_THREADS, Threads
from isotherm.testing.sim_clock import SimClock
from isotherm.types import TopicIdPartition
from tests.support.managed_partition import T0
from tests.support.scrubbed_buckets import scrubbed_buckets
from tests.support.tiered_partition import BROKER_ID, TieredPartition

__all__ = ["scrubbed_buckets"]


@pytest.fixture
def tiered(tmp_path: Path) -> TieredPartition:
    return TieredPartition(tmp_path / "partition")


@pytest.fixture
def partition(tmp_path: Path) -> TieredPartition:
    tiered = TieredPartition(tmp_path / "p", clock=SimClock())
    for number in range(22):
        tiered.append(b"record-%02d" % number, timestamp_ms=T0 + number)
    return tiered


@pytest.fixture
def open_manager(partition: TieredPartition) -> Iterator[Callable[..., RemoteLogManager]]:
    """A function that starts a manager with a changed configuration. All are closed at the end."""
    opened: list[RemoteLogManager] = []

    def open_manager(threads: Threads = SYSTEM_THREADS, **config: object) -> RemoteLogManager:
        manager = RemoteLogManager(
            replace(RemoteLogManagerConfig(), **config),  # type: ignore[arg-type]
            broker_id=0,
            storage=partition.store,
            metadata=partition.metadata,
            index_cache=partition.index_cache,
            pending_deletions=PendingDeletions(partition.log.directory.parent, OsFileSystem()),
            leader_epoch_of=partition.leader_epoch_of,
            is_tiered=partition.is_tiered_again,
            clock=partition.clock,
            rng=random.Random(0),
            metrics=partition.metrics,
            threads=threads,
        )
        opened.append(manager)
        return manager

    yield open_manager
    for manager in opened:
        manager.close()


@pytest.fixture
def manager(open_manager: Callable[..., RemoteLogManager]) -> RemoteLogManager:
    return open_manager()


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
