"""A follower whose leader has the history in the remote tier alone."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from isotherm.broker.partitions.replication.leader_endpoint import OffsetAndEpoch
from isotherm.broker.partitions.replication.replica_fetcher import FetcherContext, ReplicaFetcher
from isotherm.broker.partitions.replication.tier_follower import TierHistoryFollower, _epoch_before
from isotherm.config.broker import BrokerConfig
from isotherm.config.remote import RemoteLogManagerConfig
from isotherm.config.replication import ReplicationConfig
from isotherm.log.fs import OsFileSystem
from isotherm.log.log_manager import LogManager
from isotherm.log.partition_log import PartitionLog
from isotherm.protocol.fetch import EpochEndOffset
from isotherm.record.batch import build_batch
from isotherm.testing.sim_clock import SimClock
from isotherm.types import TopicIdPartition
from tests.support.model_leader import ModelLeader
from tests.support.tiered_partition import TieredPartition

BACKOFF_MS = 1000


@dataclass
class Followed:
    """A followed partition as a fetcher needs it."""

    topic_id_partition: TopicIdPartition
    log: PartitionLog
    leader_epoch: int

    def note_replicated(self, size: int) -> None:
        return


class Setup:
    """A tiered leader, and a follower with an empty log."""

    def __init__(self, root: Path) -> None:
        self.clock = SimClock()
        self.tiered = TieredPartition(root / "leader", clock=self.clock)
        self.place = self.tiered.partition
        self.tiered.log.leader_epochs.assign(0, 0)
        log_dir = root / "follower"
        config = self.tiered.log.config
        self.manager = LogManager(
            (log_dir,),
            config=BrokerConfig(
                log_dirs=(log_dir,),
                topic_defaults=config,
                remote=RemoteLogManagerConfig(remote_log_storage_system_enable=True),
            ),
            topic_config_for=lambda topic: config,
            clock=self.clock,
            fs=OsFileSystem(),
            rng=random.Random(0),
        )
        self.manager.startup()
        self.log = self.manager.create_log(self.place.topic_partition, self.place.topic_id, config)
        self.leader = ModelLeader({self.place: self.tiered.log}, {self.place: 0})

    def follow(self, *, has_metadata: bool = True, **config: Any) -> ReplicaFetcher:
        settings = ReplicationConfig(**config)
        metadata: Any = self.tiered.metadata if has_metadata else NotReady()
        tier = TierHistoryFollower(self.manager, metadata, self.tiered.store, lambda: settings)
        context = FetcherContext(self.manager, settings, 2, self.clock, tier=tier)
        fetcher = ReplicaFetcher("fetcher", self.leader, context)
        self.leader.epochs[self.place] = self.tiered.leader_epoch
        fetcher.add([Followed(self.place, self.log, self.tiered.leader_epoch)])
        return fetcher

    def append(self, count: int, *, producer_id: int = 7) -> None:
        for _ in range(count):
            known = self.tiered.log.producers.producer(producer_id)
            records = [(self.clock.now_ms(), b"k", b"v" * 40, ())]
            batch = build_batch(
                records,
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=0 if known is None else known.last_sequence + 1,
            )
            self.tiered.append_batch(batch)

    def elect(self, epoch: int) -> None:
        self.tiered.leader_epoch = epoch
        self.tiered.log.leader_epochs.assign(epoch, self.tiered.log.log_end_offset)

    def tier(self) -> None:
        """Copy every closed segment, and delete it locally."""
        self.tiered.copy_task.run()
        self.tiered.delete_local_segments()

    def check_follower(self) -> None:
        leader, follower = self.tiered.log, self.log
        assert follower.log_end_offset == leader.log_end_offset
        assert follower.log_start_offset == leader.log_start_offset
        assert follower.high_watermark == leader.high_watermark
        assert stored(leader).endswith(stored(follower)) or stored(follower).endswith(
            stored(leader)
        )
        for offset in range(leader.log_start_offset, leader.log_end_offset):
            epochs = [log.leader_epochs.epoch_for_offset(offset) for log in (leader, follower)]
            assert epochs[0] == epochs[1]
        assert follower.producers.snapshot_entries() == leader.producers.snapshot_entries()


class NotReady:
    def is_ready(self, _: TopicIdPartition) -> bool:
        return False


def stored(log: PartitionLog) -> bytes:
    return b"".join(segment.log_path.read_bytes() for segment in log.segments())


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[Setup]:
    made = Setup(tmp_path)
    yield made
    made.manager.shutdown()


def fetch(fetcher: ReplicaFetcher, times: int) -> None:
    for _ in range(times):
        fetcher._fetch_once()


def test_new_follower_begins_behind_the_tier(setup: Setup) -> None:
    setup.append(2, producer_id=9)
    for epoch in (0, 2, 3, 7):
        setup.elect(epoch)
        setup.append(7)
    setup.tier()
    setup.append(3)
    local_start = setup.tiered.log.local_log_start_offset
    assert local_start > 8
    fetch(setup.follow(), 3)
    setup.check_follower()
    assert setup.log.local_log_start_offset == local_start
    assert setup.log.log_start_offset == 0


def test_follower_far_behind_gives_up_its_log_for_the_tiers(setup: Setup) -> None:
    setup.append(4)
    fetcher = setup.follow()
    fetch(fetcher, 2)
    setup.append(30)
    setup.tier()
    fetch(fetcher, 3)
    setup.check_follower()
    assert setup.log.local_log_start_offset == setup.tiered.log.local_log_start_offset


def test_epoch_of_the_last_record_of_a_segment_is_one_of_its_epochs(setup: Setup) -> None:
    """The follower begins at the end of the segment, in the epoch of its last record. An epoch that
    begins exactly there has no record in the segment."""
    setup.append(4)
    setup.elect(2)
    setup.append(1)
    setup.tiered.log.roll()
    setup.elect(3)
    setup.append(3)
    setup.tier()
    assert setup.tiered.log.local_log_start_offset == 5
    fetch(setup.follow(), 3)
    setup.check_follower()
    assert setup.log.local_log_start_offset == 5


def test_lag_is_what_is_left_to_fetch_behind_the_tier(setup: Setup) -> None:
    setup.append(20)
    setup.tier()
    setup.append(2)
    fetcher = setup.follow()
    fetch(fetcher, 1)
    place, leader = setup.place.topic_partition, setup.tiered.log
    assert leader.local_log_start_offset < leader.log_end_offset - 1
    assert fetcher.lags() == {place: leader.log_end_offset - leader.local_log_start_offset}


def test_lag_is_what_is_left_to_fetch_where_the_tier_has_nothing(setup: Setup) -> None:
    setup.append(20)
    setup.tiered.log.maybe_increment_log_start_offset(10)
    setup.leader.pending_upload = 10
    fetcher = setup.follow(follower_fetch_last_tiered_offset_enable=True)
    fetch(fetcher, 1)
    assert fetcher.lags() == {setup.place.topic_partition: 10}
    assert setup.log.log_end_offset == 10


def test_log_start_above_zero_cuts_the_epochs(setup: Setup) -> None:
    for epoch in (0, 1, 2):
        setup.elect(epoch)
        setup.append(8)
    setup.tiered.log.maybe_increment_log_start_offset(10)
    setup.tier()
    fetch(setup.follow(), 3)
    setup.check_follower()
    assert setup.log.log_start_offset == 10


def test_metadata_that_is_still_read_is_waited_for(setup: Setup) -> None:
    setup.append(20)
    setup.tier()
    fetcher = setup.follow(has_metadata=False)
    fetch(fetcher, 2)
    assert (setup.log.log_end_offset, fetcher.failed_partitions) == (0, frozenset())
    fetch(setup.follow(), 3)
    setup.check_follower()


def test_segment_that_is_not_known_here_is_waited_for(setup: Setup) -> None:
    setup.append(20)
    setup.tier()
    known = setup.tiered.metadata.remote_log_segment_metadata
    setup.tiered.metadata.remote_log_segment_metadata = lambda *_: None  # type: ignore[method-assign]
    fetcher = setup.follow()
    fetch(fetcher, 2)
    assert setup.log.log_end_offset == 0
    setup.tiered.metadata.remote_log_segment_metadata = known  # type: ignore[method-assign]
    setup.clock.advance(BACKOFF_MS)
    fetch(fetcher, 3)
    setup.check_follower()


@pytest.mark.parametrize("enable", [False, True])
def test_new_follower_may_leave_all_that_is_uploaded(setup: Setup, enable: bool) -> None:
    """KIP-1023: the leader still has the uploaded segments locally, but the follower need not fetch
    them."""
    setup.append(20)
    setup.tier()
    setup.append(20)
    setup.tiered.copy_task.run()
    setup.append(2)
    leader = setup.tiered.log
    uploaded = setup.leader.pending_upload = leader.highest_offset_in_remote_storage + 1
    assert leader.local_log_start_offset < uploaded < leader.log_end_offset
    fetch(setup.follow(follower_fetch_last_tiered_offset_enable=enable), 10)
    setup.check_follower()
    begin = uploaded if enable else leader.local_log_start_offset
    assert setup.log.local_log_start_offset == begin


def test_leader_that_does_not_know_its_uploads_is_asked_again(setup: Setup) -> None:
    setup.append(20)
    setup.tier()
    setup.leader.pending_upload = -1
    fetcher = setup.follow(follower_fetch_last_tiered_offset_enable=True)
    fetch(fetcher, 2)
    assert (setup.log.log_end_offset, fetcher.failed_partitions) == (0, frozenset())


def test_checkpoint_of_another_history_ends_the_following(setup: Setup) -> None:
    setup.append(20)
    setup.tier()
    fetch_index = setup.tiered.store.fetch_index

    def other(metadata: Any, index_type: Any) -> bytes:
        found = fetch_index(metadata, index_type)
        return found.replace(b"0 0", b"5 0") if b"0 0" in found else found

    setup.tiered.store.fetch_index = other  # type: ignore[method-assign]
    fetcher = setup.follow()
    fetch(fetcher, 2)
    assert fetcher.failed_partitions == {setup.place.topic_partition}
    assert setup.log.log_end_offset == 0


class Epochs:
    """A leader with Kafka's example: epoch 0 from 20, 1 from 85, no 2, 3 from 90, 4 from 98."""

    def find_epoch_end(self, place: object, leader_epoch: int, epoch: int) -> EpochEndOffset:
        return {
            0: EpochEndOffset(0, 85),
            1: EpochEndOffset(1, 90),
            2: EpochEndOffset(1, 90),
            3: EpochEndOffset(3, 98),
        }[epoch]


@pytest.mark.parametrize(
    ("begin", "epoch"),
    [((90, 3), 1), ((91, 3), 3), ((85, 1), 0), ((98, 4), 3), ((30, 0), 0)],
)
def test_epoch_before_an_offset(begin: tuple[int, int], epoch: int, setup: Setup) -> None:
    leader: Any = Epochs()
    assert _epoch_before(setup.place, OffsetAndEpoch(*begin), 4, leader) == epoch
