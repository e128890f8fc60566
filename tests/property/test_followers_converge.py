"""Replicas that lead in turn, after clean and unclean elections: every follower ends with the log
of the last leader."""

from __future__ import annotations

import random
import shutil
import tempfile
import uuid
from dataclasses import dataclass
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from isotherm.broker.partitions.replication.replica_fetcher import FetcherContext, ReplicaFetcher
from isotherm.config.broker import BrokerConfig
from isotherm.config.replication import ReplicationConfig
from isotherm.config.topic import TopicConfig
from isotherm.log.fs import OsFileSystem
from isotherm.log.log_manager import LogManager
from isotherm.log.partition_log import PartitionLog
from isotherm.record.batch import build_batch
from isotherm.testing.sim_clock import SimClock
from isotherm.types import TopicIdPartition
from tests.support.model_leader import ModelLeader

T0 = 1_700_000_000_000
PLACE = TopicIdPartition(uuid.UUID(int=7), "topic", 0)
CONFIG = TopicConfig(
    internal_segment_bytes=400, segment_index_bytes=240, retention_ms=-1, file_delete_delay_ms=0
)
FETCHER = ReplicationConfig(replica_fetch_max_bytes=200, replica_fetch_backoff_ms=1)
REPLICAS = range(3)


@dataclass
class Replica:
    """One broker's replica, with a fetcher while it follows."""

    topic_id_partition: TopicIdPartition
    manager: LogManager
    log: PartitionLog
    fetcher: ReplicaFetcher | None = None
    leader_epoch: int = 0

    def note_replicated(self, size: int) -> None:
        return


class ReplicasMachine(RuleBasedStateMachine):
    """Replicas of one partition, of which one leads and the others fetch from it."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.clock = SimClock(T0)
        self.epoch = 0
        self.written = 0
        self.replicas: list[Replica] = []

    def teardown(self) -> None:
        for replica in self.replicas:
            replica.manager.shutdown()
        shutil.rmtree(self.root)

    @initialize()
    def start(self) -> None:
        for number in REPLICAS:
            path = self.root / str(number)
            manager = LogManager(
                (path,),
                config=BrokerConfig(log_dirs=(path,), topic_defaults=CONFIG),
                topic_config_for=lambda topic: CONFIG,
                clock=self.clock,
                fs=OsFileSystem(),
                rng=random.Random(0),
            )
            manager.startup()
            log = manager.create_log(PLACE.topic_partition, PLACE.topic_id, CONFIG)
            self.replicas.append(Replica(PLACE, manager, log))
        self._lead(0)

    def _lead(self, leader: int) -> None:
        self.leader = leader
        log = self.replicas[leader].log
        log.leader_epochs.assign(self.epoch, log.log_end_offset)
        for number, replica in enumerate(self.replicas):
            replica.fetcher = None
            replica.leader_epoch = self.epoch
            if number != leader:
                replica.fetcher = ReplicaFetcher(
                    "fetcher",
                    ModelLeader({PLACE: log}, {PLACE: self.epoch}),
                    FetcherContext(replica.manager, FETCHER, number, self.clock),
                )
                replica.fetcher.add([replica])

    @rule(leader=st.sampled_from(REPLICAS), skipped=st.integers(0, 1))
    def elect(self, leader: int, skipped: int) -> None:
        """Elect any replica, also one that lacks records or has records that no other replica
        has."""
        self.epoch += 1 + skipped
        self._lead(leader)

    @rule(count=st.integers(1, 4), size=st.integers(0, 60))
    def append(self, count: int, size: int) -> None:
        self.written += 1
        value = b"%d" % self.written + b"v" * size
        batch = build_batch([(T0, None, value, ())] * count)
        self.replicas[self.leader].log.append_as_leader(batch, self.epoch, now_ms=T0)

    @rule(number=st.sampled_from(REPLICAS), times=st.integers(1, 3))
    def fetch(self, number: int, times: int) -> None:
        fetcher = self.replicas[number].fetcher
        for _ in range(times):
            if fetcher is not None:
                fetcher._fetch_once()

    @rule(number=st.sampled_from(REPLICAS))
    def stop_and_start(self, number: int) -> None:
        """Restart a follower. Its high watermark is the one that was checkpointed."""
        replica = self.replicas[number]
        if replica.fetcher is None:
            return
        replica.manager.shutdown()
        path = self.root / str(number)
        manager = LogManager(
            (path,),
            config=BrokerConfig(log_dirs=(path,), topic_defaults=CONFIG),
            topic_config_for=lambda topic: CONFIG,
            clock=self.clock,
            fs=OsFileSystem(),
            rng=random.Random(0),
        )
        manager.startup()
        replica.manager = manager
        replica.log = manager.create_log(PLACE.topic_partition, PLACE.topic_id, CONFIG)
        self._lead(self.leader)

    @rule(number=st.sampled_from(REPLICAS))
    def catch_up(self, number: int) -> None:
        replica, leader = self.replicas[number], self.replicas[self.leader].log
        if replica.fetcher is None:
            return
        leader.update_high_watermark(leader.log_end_offset)
        for _ in range(200):
            replica.fetcher._fetch_once()
            self.clock.advance(5)
        assert replica.fetcher.failed_partitions == frozenset()
        assert stored(replica.log) == stored(leader)
        assert replica.log.log_end_offset == leader.log_end_offset
        assert replica.log.high_watermark == leader.high_watermark
        for offset in range(leader.log_end_offset):
            epochs = [log.leader_epochs.epoch_for_offset(offset) for log in (replica.log, leader)]
            assert epochs[0] == epochs[1]


def stored(log: PartitionLog) -> bytes:
    return b"".join(segment.log_path.read_bytes() for segment in log.segments())


TestReplicas = ReplicasMachine.TestCase
TestReplicas.settings = settings(max_examples=40, stateful_step_count=30)
