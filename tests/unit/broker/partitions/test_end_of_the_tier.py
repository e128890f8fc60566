"""What a read replica answers at the end of the remote tier, and behind it."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.image import NO_LEADER
from isotherm.broker.partitions.fetch_reads import FetchReader, PartitionRead
from isotherm.broker.partitions.fetch_target import FetchTarget, PartitionKey
from isotherm.broker.partitions.partition import Partition
from isotherm.broker.partitions.replication.cluster_view import ClusterView
from isotherm.config.topic import TopicConfig
from isotherm.log.log_read import FetchIsolation
from isotherm.protocol.fetch import NO_REPLICA, FetchPartition
from isotherm.segment.leader_epoch_checkpoint import EpochEntry
from isotherm.segment.producer_snapshot import ProducerSnapshotEntry
from isotherm.testing.sim_clock import SimClock
from isotherm.types import BrokerId, TopicIdPartition
from tests.support.led_topic import BROKER_ID, led
from tests.support.local_log import open_local_log

LEADER = 7
END, FIRST_OPEN = 100, 90
READERS = {
    isolation: FetchReader(isolation)
    for isolation in (FetchIsolation.HIGH_WATERMARK, FetchIsolation.TXN_COMMITTED)
}


class View(ClusterView):
    def __init__(self, leader: BrokerId | None, *, passes_tail_on: bool) -> None:
        super().__init__(BROKER_ID, SimClock())
        self._leader = leader
        self.passes_tail_on = passes_tail_on

    def goes_on_at(self, place: TopicIdPartition) -> BrokerId | None:
        return self._leader


class _NothingWaits:
    watched: frozenset[object] = frozenset()

    def notify(self, key: object) -> None:
        raise AssertionError(key)


def history(folder: Path, view: View) -> Partition:
    """A partition whose tier ends at END, with a transaction that is open from FIRST_OPEN on."""
    log = open_local_log(folder / "t-0", config=TopicConfig(remote_storage_enable=True))
    place = TopicIdPartition(uuid.UUID(int=1), "topic", 0)
    partition = Partition(place, log, view, _NothingWaits())
    partition.make_leader(led())
    producer = ProducerSnapshotEntry(
        producer_id=1,
        producer_epoch=0,
        last_sequence=0,
        last_offset=FIRST_OPEN,
        offset_delta=0,
        timestamp_ms=0,
        coordinator_epoch=0,
        current_transaction_first_offset=FIRST_OPEN,
    )
    log.truncate_fully_and_start_at(
        END, log_start_offset=0, leader_epochs=[EpochEntry(0, 0)], producers=[producer]
    )
    return partition


def read(partition: Partition, offset: int, reader: FetchReader) -> PartitionRead:
    target = FetchTarget(PartitionKey("topic", None, 0), FetchPartition(0, offset, 1000))
    target.partition = partition
    (found,) = reader.read_partitions([target], 1000).reads
    return found


@pytest.mark.parametrize("leader", [LEADER, NO_LEADER])
@pytest.mark.parametrize(
    ("isolation", "offset", "is_tail"),
    [
        (FetchIsolation.HIGH_WATERMARK, FIRST_OPEN, False),
        (FetchIsolation.HIGH_WATERMARK, END - 1, False),
        (FetchIsolation.HIGH_WATERMARK, END, True),
        (FetchIsolation.HIGH_WATERMARK, END + 1000, True),
        (FetchIsolation.TXN_COMMITTED, FIRST_OPEN - 1, False),
        (FetchIsolation.TXN_COMMITTED, FIRST_OPEN, True),
        (FetchIsolation.TXN_COMMITTED, END + 1000, True),
    ],
)
def test_tail_is_passed_on_and_the_tier_is_read(
    tmp_path: Path, leader: BrokerId, isolation: FetchIsolation, offset: int, is_tail: bool
) -> None:
    partition = history(tmp_path, View(leader, passes_tail_on=True))
    found = read(partition, offset, READERS[isolation])
    assert found.response.error_code == ErrorCode.none
    assert found.is_tail == is_tail
    assert (found.remote is not None) == (not is_tail)


def test_consumer_is_sent_to_the_leader_if_it_can_go(tmp_path: Path) -> None:
    partition = history(tmp_path, View(LEADER, passes_tail_on=False))
    reader = READERS[FetchIsolation.HIGH_WATERMARK]
    assert read(partition, END - 1, reader).response.preferred_read_replica == NO_REPLICA
    for offset in (END, END + 1000):
        assert read(partition, offset, reader).response.preferred_read_replica == LEADER
    old = read(partition, END, reader._replace(leader_only=True)).response
    assert old.error_code == ErrorCode.not_leader_or_follower
    partition.goes_on_at = NO_LEADER
    away = read(partition, END + 1000, reader).response
    assert away.error_code == ErrorCode.not_leader_or_follower


def test_log_that_ends_at_the_tier_says_so(tmp_path: Path) -> None:
    partition = history(tmp_path, View(None, passes_tail_on=False))
    reader = READERS[FetchIsolation.HIGH_WATERMARK]
    at_end = read(partition, END, reader)
    assert at_end.is_at_end
    assert at_end.response.error_code == ErrorCode.none
    assert read(partition, END + 1, reader).response.error_code == ErrorCode.offset_out_of_range
    # Whether the open transaction was committed, only the records behind the tier would tell.
    hidden = read(partition, FIRST_OPEN, READERS[FetchIsolation.TXN_COMMITTED])
    assert (hidden.remote, hidden.size, hidden.response.error_code) == (None, 0, ErrorCode.none)
