"""Timers of the group coordinator: when they are set, what happens when they fire, and when the log
refuses the result.

The event loop only notes its timers. The test fires them.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.groups.classic_protocol import SyncRequest
from isotherm.broker.coordinators.groups.group_shard import GroupShard
from isotherm.broker.coordinators.groups.member_heartbeat import (
    MemberHeartbeat,
    MemberRejectedError,
)
from isotherm.broker.coordinators.groups.offset_coordinator import Committer
from isotherm.broker.coordinators.groups.offsets import OffsetAndMetadata
from isotherm.broker.coordinators.groups.offsets_topic import NO_PRODUCER, Producer
from isotherm.broker.metadata.image import TopicImage
from isotherm.errors import NotCoordinatorError
from isotherm.types import TopicPartition
from tests.support.group_cluster import T0, Cluster, joining, run, turns

E = ErrorCode
# offsets.retention.check.interval.ms: each broker has this timer from the start.
CHECK_S = 600.0
SESSION_MS = 45_000


class Timer:
    def __init__(self, delay_s: float, act: Callable[[], None]) -> None:
        self.delay_s = delay_s
        self.is_cancelled = False
        self._act = act

    def cancel(self) -> None:
        self.is_cancelled = True

    def fire(self) -> None:
        assert not self.is_cancelled
        self._act()


class NotedTimers:
    """Stands in for the event loop's timers. Futures are the running loop's."""

    def __init__(self) -> None:
        self.timers: list[Timer] = []

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.get_running_loop().create_future()

    def call_later(self, delay_s: float, callback: Callable[..., None], *arguments: Any) -> Timer:
        self.timers.append(Timer(delay_s, lambda: callback(*arguments)))
        return self.timers[-1]

    def of_groups(self) -> list[Timer]:
        return [timer for timer in self.timers if timer.delay_s != CHECK_S]


@pytest.fixture
def noted() -> NotedTimers:
    return NotedTimers()


def topic(name: str, number: int = 1) -> TopicImage:
    return TopicImage(name, uuid.UUID(int=number), ())


def beat(member_id: str, epoch: int = 0) -> MemberHeartbeat:
    return MemberHeartbeat(
        member_id,
        epoch,
        topic_names=frozenset({"t"}),
        rebalance_timeout_ms=1000,
        owned=frozenset(),
    )


# Groups of the consumer protocol


def test_timer_of_a_consumer_group_is_kept_while_it_does_not_fire_too_late(
    noted: NotedTimers,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        consumer = cluster.coordinators[0].consumer
        epoch = (await consumer.heartbeat("g", beat("a"))).epoch
        (timer,) = noted.of_groups()
        assert timer.delay_s == (SESSION_MS + 1) / 1000
        cluster.clock.advance(1000)
        await consumer.heartbeat("g", beat("a", epoch))
        assert noted.of_groups() == [timer]
        # It fires before the member's new deadline, and is set again.
        cluster.clock.advance(SESSION_MS - 999)
        timer.fire()
        assert list(consumer.find("g").members) == ["a"]
        _, again = noted.of_groups()
        assert again.delay_s == 1.0
        cluster.clock.advance(1000)
        again.fire()
        assert consumer.find("g").is_empty
        assert len(noted.of_groups()) == 2, "an empty group waits for nothing"

    run(scenario, noted)


def test_timer_that_would_fire_too_late_is_replaced(noted: NotedTimers) -> None:
    async def scenario(cluster: Cluster) -> None:
        consumer = cluster.coordinators[0].consumer
        cluster.group_texts["consumer.session.timeout.ms"] = "60000"
        await consumer.heartbeat("g", beat("a"))
        cluster.group_texts["consumer.session.timeout.ms"] = "45000"
        await consumer.heartbeat("g", beat("b"))
        first, second = noted.of_groups()
        assert (first.is_cancelled, second.is_cancelled) == (True, False)
        assert (first.delay_s, second.delay_s) == (60.001, 45.001)

    run(scenario, noted)


def test_members_stay_until_the_log_takes_their_removal(
    noted: NotedTimers, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(cluster: Cluster) -> None:
        caplog.set_level(logging.INFO)
        consumer = cluster.coordinators[0].consumer
        await consumer.heartbeat("g", beat("a"))
        cluster.move(1, is_known=False)
        with pytest.raises(NotCoordinatorError):
            await consumer.heartbeat("g", beat("b"))
        assert list(consumer.find("g").members) == ["a"]
        cluster.clock.advance(SESSION_MS)
        noted.of_groups()[0].fire()
        assert list(consumer.find("g").members) == ["a"]
        assert "expired members are not removed yet group_id=g" in caplog.text
        assert noted.of_groups()[1].delay_s == 1.001

    run(scenario, noted)


def test_missing_consumer_group_is_reported(noted: NotedTimers) -> None:
    async def scenario(cluster: Cluster) -> None:
        consumer = cluster.coordinators[0].consumer
        for request in (
            lambda: consumer.find("g"),
            lambda: consumer.leave("g", "a", None, -1),
        ):
            with pytest.raises(MemberRejectedError) as refused:
                request()
            assert refused.value.code is E.group_id_not_found
        with pytest.raises(MemberRejectedError) as refused:
            await consumer.heartbeat("g", beat("a", 1))
        assert refused.value.code is E.group_id_not_found
        assert noted.of_groups() == []

    run(scenario, noted)


# Groups of the classic protocol


def test_timer_of_a_classic_group_follows_its_earliest_deadline(noted: NotedTimers) -> None:
    async def scenario(cluster: Cluster) -> None:
        coordinator = cluster.coordinators[0]
        request = joining()._replace(rebalance_timeout_ms=60_000)
        join = asyncio.ensure_future(coordinator.join(request))
        await turns()
        (delay,) = noted.of_groups()
        assert delay.delay_s == 0.001, "the initial delay is 0 here"
        cluster.clock.advance(1)
        delay.fire()
        member_id = (await join).member_id
        _, session = noted.of_groups()
        assert session.delay_s == 10.001
        assert coordinator.leave("g", [("nobody", None)]) == [E.unknown_member_id]
        cluster.clock.advance(9_000)
        assert coordinator.heartbeat("g", member_id, None, 1) is E.none
        assert noted.of_groups() == [delay, session]
        cluster.clock.advance(1_001)
        session.fire()
        assert coordinator.find("g").state.value == "CompletingRebalance"
        assert noted.of_groups()[2].delay_s == 9.0
        cluster.clock.advance(9_000)
        noted.of_groups()[2].fire()
        assert coordinator.find("g").is_empty
        assert len(noted.of_groups()) == 3

    run(scenario, noted)


def test_timer_is_moved_when_its_deadline_is(noted: NotedTimers) -> None:
    async def scenario(cluster: Cluster) -> None:
        coordinator = cluster.coordinators[0]
        join = asyncio.ensure_future(coordinator.join(joining()))
        await turns()
        noted.of_groups()[0].fire()
        member_id = (await join).member_id
        session = noted.of_groups()[-1]
        assert coordinator.leave("g", [(member_id, None)]) == [E.none]
        assert session.is_cancelled
        assert len(noted.of_groups()) == 2

    run(scenario, noted)


@pytest.mark.parametrize("producer", [NO_PRODUCER, Producer(7, 0)])
def test_commit_in_a_transaction_is_no_heartbeat(noted: NotedTimers, producer: Producer) -> None:
    """Kafka: only validateOffsetCommit goes on with the session."""

    async def scenario(cluster: Cluster) -> None:
        coordinator = cluster.coordinators[0]
        join = asyncio.ensure_future(coordinator.join(joining()))
        await turns()
        cluster.clock.advance(1)
        noted.of_groups()[0].fire()
        member_id = (await join).member_id
        request = SyncRequest(member_id, None, 1, None, None, {member_id: b"x"})
        sync = asyncio.ensure_future(coordinator.sync("g", request))
        await turns()
        cluster.partition.replicate()
        assert (await sync).error is E.none
        cluster.clock.advance(9_999)
        member = Committer(1, member_id)
        codes = coordinator.offsets.commit("g", member, {T0: OffsetAndMetadata(5)}, producer)
        assert codes == {T0: E.none}
        cluster.clock.advance(2)
        noted.of_groups()[-1].fire()
        assert coordinator.find("g").is_empty is (producer is not NO_PRODUCER)

    run(scenario, noted)


def test_coordinator_that_resigns_removes_nobody_afterwards(noted: NotedTimers) -> None:
    async def scenario(cluster: Cluster) -> None:
        coordinator = cluster.coordinators[0]
        join = asyncio.ensure_future(coordinator.join(joining()))
        await turns()
        await coordinator.consumer.heartbeat("modern", beat("a"))
        timers = noted.of_groups()
        assert [timer.is_cancelled for timer in timers] == [False, False]
        cluster.partition.replicate()
        cluster.move(1)
        assert [timer.is_cancelled for timer in timers] == [True, True]
        assert (await join).error is E.not_coordinator

    run(scenario, noted)


# Offsets


def test_offsets_are_expired_again_and_again(
    noted: NotedTimers, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(cluster: Cluster) -> None:
        caplog.set_level(logging.INFO)
        coordinator = cluster.coordinators[0]
        assert [timer.delay_s for timer in noted.timers] == [CHECK_S] * 3
        old = {T0: OffsetAndMetadata(5, commit_timestamp_ms=1)}
        coordinator.offsets.commit("g", Committer(), old)
        noted.timers[0].fire()
        assert coordinator.offsets.fetch("g", None) == {}
        assert [timer.delay_s for timer in noted.timers] == [CHECK_S] * 4
        coordinator.offsets.commit("g", Committer(), old)
        cluster.move(1, is_known=False)
        noted.timers[3].fire()
        assert "offsets are not expired partition=0" in caplog.text
        assert len(coordinator.offsets.fetch("g", None)) == 1
        assert len(noted.timers) == 5

    run(scenario, noted)
    assert [timer.is_cancelled for timer in noted.timers] == [False, True, True, False, True]


def test_offsets_of_deleted_topics_go(noted: NotedTimers) -> None:
    async def scenario(cluster: Cluster) -> None:
        coordinator = cluster.coordinators[0]
        other = TopicPartition("u", 0)
        offsets = {T0: OffsetAndMetadata(5), other: OffsetAndMetadata(6)}
        for group_id in ("g", "h"):
            coordinator.offsets.commit(group_id, Committer(), offsets)
        coordinator.topics_deleted([topic("t"), topic("v")])
        for group_id in ("g", "h"):
            assert list(coordinator.offsets.fetch(group_id, None)) == [other]

    run(scenario, noted)


def test_offsets_of_a_topic_that_was_made_again_stay(noted: NotedTimers) -> None:
    """The deletion may be seen after commits to the new topic of the same name."""

    async def scenario(cluster: Cluster) -> None:
        coordinator = cluster.coordinators[0]
        old, new = topic("t", 1), topic("t", 2)
        offsets = {
            TopicPartition("t", 0): OffsetAndMetadata(5, topic_id=old.topic_id),
            TopicPartition("t", 1): OffsetAndMetadata(6, topic_id=new.topic_id),
            TopicPartition("t", 2): OffsetAndMetadata(7),  # by an older version, which stored no id
        }
        coordinator.offsets.commit("g", Committer(), offsets)
        pending = {TopicPartition("t", 3): OffsetAndMetadata(8, topic_id=old.topic_id)}
        coordinator.offsets.commit("g", Committer(), pending, Producer(9, 0))
        coordinator.topics_deleted([old])
        coordinator.complete_transaction(0, 9, committed=True, appended=None)
        assert list(coordinator.offsets.fetch("g", None)) == [TopicPartition("t", 1)]

    run(scenario, noted)


def test_offsets_of_deleted_topics_go_although_one_partition_has_moved(
    noted: NotedTimers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(cluster: Cluster) -> None:
        caplog.set_level(logging.INFO)
        coordinator = cluster.coordinators[0]
        coordinator.offsets.commit("g", Committer(), {T0: OffsetAndMetadata(5)})
        (shard,) = coordinator.shards.loaded()
        moved = GroupShard(shard.index)  # under an epoch that is over
        moved.offsets.update(shard.offsets)
        monkeypatch.setattr(coordinator.shards, "loaded", lambda: iter([moved, shard]))
        coordinator.topics_deleted([topic("t")])
        assert "offsets are not deleted topics=t partition=0" in caplog.text
        assert coordinator.offsets.fetch("g", None) == {}

    run(scenario, noted)
