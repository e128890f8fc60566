"""The leader's view of its ISR, tested with a model of the controller and the followers.

Messages may be lost, late or refused. No replica that the controller may elect lacks an
acknowledged record, and the high watermark never falls.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.image import BrokerImage, PartitionImage
from isotherm.broker.partitions.replication.in_sync_replicas import (
    InSyncReplicas,
    IsrAnswer,
    IsrChange,
)

LEADER = 1
FOLLOWERS = (2, 3)
LAG_MS = 100


class IsrModel(RuleBasedStateMachine):
    """The whole cluster of one partition: the leader's `InSyncReplicas`, the logs of its followers,
    the controller's ISR, and the requests, answers and images in flight between them."""

    def __init__(self) -> None:
        super().__init__()
        self.end = 0
        self.logs = dict.fromkeys(FOLLOWERS, 0)
        self.now_ms = 1000
        self.high_watermark = 0
        self.isr: tuple[int, ...] = (LEADER, *FOLLOWERS)
        self.partition_epoch = 0
        self.fenced: set[int] = set()
        self.unsent: IsrChange | None = None
        self.unanswered: tuple[IsrChange, IsrAnswer] | None = None
        self.unpublished: list[PartitionImage] = []
        self.min_isr = 1
        self.replicas = InSyncReplicas(LEADER)

    @initialize(followers=st.sets(st.sampled_from(FOLLOWERS)), min_isr=st.integers(1, 2))
    def elect(self, followers: set[int], min_isr: int) -> None:
        self.isr = (LEADER, *sorted(followers))
        self.min_isr = min_isr
        self.write_metadata()
        self.publish(1)

    # ---- steps of the leader

    def find_broker(self, broker: int) -> BrokerImage:
        return BrokerImage(broker, 10, None, None, fenced=broker in self.fenced)

    def raise_high_watermark(self) -> None:
        found = self.replicas.high_watermark(
            log_end_offset=self.end,
            min_insync_replicas=self.min_isr,
            lag_time_max_ms=LAG_MS,
            now_ms=self.now_ms,
            find_broker=self.find_broker,
        )
        if found is not None and found > self.high_watermark:
            assert len(self.replicas.committed) >= self.min_isr
            self.high_watermark = found

    @rule(count=st.integers(1, 5))
    def append(self, count: int) -> None:
        self.end += count
        self.raise_high_watermark()

    @rule(follower=st.sampled_from(FOLLOWERS), count=st.integers(0, 8))
    def fetch(self, follower: int, count: int) -> None:
        offset = self.logs[follower]
        state = self.replicas.followers[follower].fetched(
            fetch_offset=offset,
            log_start_offset=0,
            broker_epoch=10,
            leader_end_offset=self.end,
            now_ms=self.now_ms,
        )
        self.replicas.note_fetch(follower, state)
        change = self.replicas.expand(
            follower,
            high_watermark=self.high_watermark,
            broker_epoch=10,
            find_broker=self.find_broker,
        )
        self.unsent = change or self.unsent
        self.raise_high_watermark()
        self.logs[follower] = min(self.end, offset + count)

    @rule(passed_ms=st.integers(1, 150))
    def time_passes(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        change = self.replicas.shrink(
            log_end_offset=self.end,
            lag_time_max_ms=LAG_MS,
            now_ms=self.now_ms,
            broker_epoch=10,
        )
        self.unsent = change or self.unsent
        self.raise_high_watermark()

    # ---- steps of the controller

    @precondition(lambda self: self.unsent is not None and self.unanswered is None)
    @rule()
    def controller_decides(self) -> None:
        change = self.unsent
        assert change is not None
        self.unsent = None
        answer = self.controllers_answer(change)
        self.unanswered = (change, answer)

    def change_isr(self, isr: tuple[int, ...]) -> None:
        self.isr = isr
        self.partition_epoch += 1
        self.write_metadata()

    def write_metadata(self) -> None:
        self.unpublished.append(
            PartitionImage(0, (LEADER, *FOLLOWERS), self.isr, LEADER, 0, self.partition_epoch)
        )

    def controllers_answer(self, change: IsrChange) -> IsrAnswer:
        if change.partition_epoch != self.partition_epoch:
            return IsrAnswer(ErrorCode.invalid_update_version)
        if self.fenced.intersection(change.isr):
            return IsrAnswer(ErrorCode.ineligible_replica)
        self.change_isr(change.isr)
        return IsrAnswer(ErrorCode.none, self.isr, 0, self.partition_epoch)

    @precondition(lambda self: self.unanswered is not None)
    @rule(is_lost=st.booleans())
    def answer_arrives(self, is_lost: bool) -> None:
        assert self.unanswered is not None
        change, answer = self.unanswered
        self.unanswered = None
        if is_lost:
            answer = IsrAnswer(ErrorCode.unknown_server_error)
        effect = self.replicas.on_answer(change, answer)
        if effect.name == "RETRY":
            self.unsent = change
        self.raise_high_watermark()

    @rule(broker=st.sampled_from(FOLLOWERS))
    def fence(self, broker: int) -> None:
        self.fenced.add(broker)
        if broker in self.isr and len(self.isr) > 1:
            self.change_isr(tuple(each for each in self.isr if each != broker))

    @rule(broker=st.sampled_from(FOLLOWERS))
    def unfence(self, broker: int) -> None:
        self.fenced.discard(broker)

    @precondition(lambda self: self.unpublished)
    @rule(count=st.integers(1, 3))
    def publish(self, count: int) -> None:
        """Deliver the next records of the metadata log to the leader as one image. As in
        `Partition`, an image that is older than the last answer changes nothing, and an equal one
        is applied."""
        image = self.unpublished[:count][-1]
        del self.unpublished[:count]
        if image.partition_epoch >= self.replicas.partition_epoch:
            self.replicas.lead(
                image, log_end_offset=self.end, now_ms=self.now_ms, is_new_leader=False
            )
            self.raise_high_watermark()

    # ---- invariants

    @invariant()
    def every_electable_replica_has_what_is_committed(self) -> None:
        electable = [self.logs[each] for each in self.isr if each != LEADER]
        assert self.high_watermark <= min([self.end, *electable])

    @invariant()
    def leader_never_leaves_its_own_isr(self) -> None:
        assert LEADER in self.replicas.committed


TestIsrModel = IsrModel.TestCase
