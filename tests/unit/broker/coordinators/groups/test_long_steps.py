"""Heartbeats whose steps are computed in a thread, while their groups change.

Every step is long here, and the test decides when a thread's work is done.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import struct
import uuid
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.groups import consumer_coordinator, hosted_members
from isotherm.broker.coordinators.groups.classic_protocol import (
    JoinRequest,
    Protocol,
    SyncRequest,
)
from isotherm.broker.coordinators.groups.consumer_coordinator import ConsumerGroupCoordinator
from isotherm.broker.coordinators.groups.consumer_group import (
    LOOP_STEP_THINGS_MAX,
    ConsumerGroup,
    ConsumerGroupSettings,
)
from isotherm.broker.coordinators.groups.group_coordinator import Joining
from isotherm.broker.coordinators.groups.long_steps import LongSteps
from isotherm.broker.coordinators.groups.member_heartbeat import (
    MemberHeartbeat,
    MemberRejectedError,
)
from isotherm.broker.coordinators.groups.topic_catalog import NewestCatalog, TopicCatalog
from isotherm.broker.metadata.image import MetadataImage, TopicImage
from isotherm.errors import NotCoordinatorError, PolicyViolationError
from tests.support.group_cluster import Cluster, joining, run, turns

SESSION_MS = 45_000
REBALANCE_MS = 60_000
CLASSIC_SESSION_MS = 10_000
NAMES = ("t0", "t1", "t2", "t3")


class Thread(Executor):
    """A thread whose work is done when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, function: Any, /, *arguments: Any, **_: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, lambda: function(*arguments)))
        return future

    def work(self) -> None:
        """Do the first work."""
        future, work = self.waiting.pop(0)
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(work())
            except Exception as error:
                future.set_exception(error)


class Topics:
    """The metadata. It has NAMES, with as many partitions as `counts` says."""

    def __init__(self, *counts: int) -> None:
        self.image = MetadataImage()
        self.change(*counts)

    def change(self, *counts: int) -> None:
        partitions: Any = [range(count) for count in counts]
        topics = [
            TopicImage(name, uuid.UUID(int=number + 1), partitions[number])
            for number, name in enumerate(NAMES[: len(counts)])
        ]
        self.image = MetadataImage(
            end_offset=self.image.end_offset + 1,
            topics_by_name={topic.name: topic for topic in topics},
            topics_by_id={topic.topic_id: topic for topic in topics},
        )


@pytest.fixture
def thread(monkeypatch: pytest.MonkeyPatch) -> Thread:
    monkeypatch.setattr(consumer_coordinator, "LOOP_STEP_THINGS_MAX", -1)
    return Thread()


def consumer_of(cluster: Cluster, thread: Thread, topics: Topics) -> ConsumerGroupCoordinator:
    consumer: Any = cluster.coordinators[0].consumer
    consumer._long_steps = LongSteps(thread)
    consumer._catalog = NewestCatalog(topics)
    return consumer


def beat(member_id: str, epoch: int = 0, *names: str, **fields: Any) -> MemberHeartbeat:
    return MemberHeartbeat(
        member_id,
        epoch,
        topic_names=frozenset(names or {"t0"}),
        rebalance_timeout_ms=REBALANCE_MS,
        **{"owned": frozenset(), **fields},
    )


async def settled(task: asyncio.Task[Any], thread: Thread) -> Any:
    await finish(task, thread)
    return await task


async def finish(task: asyncio.Task[Any], thread: Thread) -> None:
    while not task.done():
        await turns()
        if thread.waiting:
            thread.work()


def test_group_that_has_changed_meanwhile_gets_the_step_again(thread: Thread) -> None:
    async def scenario(cluster: Cluster) -> None:
        consumer = consumer_of(cluster, thread, Topics(4))
        await settled(asyncio.create_task(consumer.heartbeat("g", beat("a"))), thread)
        joining = asyncio.create_task(consumer.heartbeat("g", beat("b")))
        await turns()
        consumer.leave("g", "a", None, -1)
        thread.work()
        await turns()
        assert len(thread.waiting) == 1, "the result is not of the group as it is"
        assert list(consumer.find("g").members) == []
        result = await settled(joining, thread)
        assert len(result.assigned) == 4
        assert list(consumer.find("g").members) == ["b"]

    run(scenario)


def test_heartbeats_that_change_a_group_wait_for_each_other(thread: Thread) -> None:
    async def scenario(cluster: Cluster) -> None:
        consumer = consumer_of(cluster, thread, Topics(4))
        joins = [asyncio.create_task(consumer.heartbeat("g", beat(each))) for each in "abc"]
        other = asyncio.create_task(consumer.heartbeat("other", beat("d")))
        await turns()
        assert len(thread.waiting) == 2, "one step of a group at once"
        for each in (*joins, other):
            await settled(each, thread)
        assert set(consumer.find("g").members) == set("abc")
        assert set(consumer.find("other").members) == {"d"}

    run(scenario)


def test_heartbeat_that_changes_nothing_waits_for_no_step_and_keeps_its_session(
    thread: Thread,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        topics = Topics(4)
        consumer = consumer_of(cluster, thread, topics)
        first = await settled(asyncio.create_task(consumer.heartbeat("g", beat("a"))), thread)
        joining = asyncio.create_task(consumer.heartbeat("g", beat("b")))
        await turns()
        cluster.clock.advance(SESSION_MS - 1)
        again = await consumer.heartbeat("g", beat("a", first.epoch, owned=None))
        assert (again.epoch, again.assigned) == (first.epoch, None)
        await settled(joining, thread)
        group = consumer.find("g")
        now_ms = consumer._shards.now_ms()
        assert group.session_deadlines["a"] == now_ms + SESSION_MS
        assert group.session_deadlines["b"] == now_ms + 1
        assert set(group.members) == {"a", "b"}

    run(scenario)


def test_step_of_a_coordinator_that_has_moved_is_not_applied(thread: Thread) -> None:
    async def scenario(cluster: Cluster) -> None:
        consumer = consumer_of(cluster, thread, Topics(4))
        joining = asyncio.create_task(consumer.heartbeat("g", beat("a")))
        await turns()
        cluster.move(1)
        with pytest.raises(NotCoordinatorError):
            await settled(joining, thread)
        await cluster.coordinators[1].wait_until_loaded()
        assert list(cluster.coordinators[1].all_groups()) == []

    run(scenario)


def test_client_that_disconnects_leaves_the_group_to_others(thread: Thread) -> None:
    async def scenario(cluster: Cluster) -> None:
        consumer = consumer_of(cluster, thread, Topics(4))
        gone = asyncio.create_task(consumer.heartbeat("g", beat("a")))
        joining = asyncio.create_task(consumer.heartbeat("g", beat("b")))
        await turns()
        gone.cancel()
        await settled(joining, thread)
        assert set(consumer.find("g").members) == {"b"}

    run(scenario)


def test_groups_of_a_coordinator_are_bounded_though_they_are_made_at_once(thread: Thread) -> None:
    async def scenario(cluster: Cluster) -> None:
        consumer = consumer_of(cluster, thread, Topics(4))
        joins = [asyncio.create_task(consumer.heartbeat(each, beat("a"))) for each in ("g", "h")]
        await settled(joins[0], thread)
        with pytest.raises(PolicyViolationError):
            await settled(joins[1], thread)

    run(scenario, group_coordinator_groups_max=1)


def classic_joining(*names: str) -> Joining:
    subscription = struct.pack(">hi", 0, len(names))
    for name in names:
        subscription += struct.pack(">h", len(name)) + name.encode()
    subscription += struct.pack(">i", -1)
    protocols = (Protocol("cooperative-sticky", subscription),)
    return joining()._replace(protocols=protocols)


async def joined(task: asyncio.Task[Any], thread: Thread, cluster: Cluster) -> Any:
    """A join is answered once its records are replicated."""
    while not task.done():
        await turns()
        if thread.waiting:
            thread.work()
        cluster.partition.replicate()
    return await task


def test_classic_join_of_a_group_that_has_changed_is_made_again(thread: Thread) -> None:
    async def scenario(cluster: Cluster) -> None:
        coordinator, consumer = cluster.coordinators[0], consumer_of(cluster, thread, Topics(4))
        for each in "ab":
            await settled(asyncio.create_task(consumer.heartbeat("g", beat(each))), thread)
        join = asyncio.create_task(coordinator.join(classic_joining("t0")))
        await turns()
        consumer.leave("g", "a", None, -1)
        thread.work()
        await turns()
        assert len(thread.waiting) == 1, "the result is not of the group as it is"
        assert list(consumer.find("g").members) == ["b"]
        result = await joined(join, thread, cluster)
        assert result.error is ErrorCode.none
        assert set(consumer.find("g").members) == {"b", result.member_id}

    run(scenario)


def test_classic_joins_and_heartbeats_wait_for_each_other(thread: Thread) -> None:
    async def scenario(cluster: Cluster) -> None:
        coordinator, consumer = cluster.coordinators[0], consumer_of(cluster, thread, Topics(4))
        await settled(asyncio.create_task(consumer.heartbeat("g", beat("a"))), thread)
        joins = [asyncio.create_task(coordinator.join(classic_joining("t0"))) for _ in range(2)]
        other = asyncio.create_task(consumer.heartbeat("g", beat("b")))
        await turns()
        assert len(thread.waiting) == 1, "one step of a group at once"
        ids = {(await joined(join, thread, cluster)).member_id for join in joins}
        await settled(other, thread)
        assert set(consumer.find("g").members) == {"a", "b", *ids}

    run(scenario)


def test_classic_join_of_a_group_that_all_have_left_makes_it_a_classic_one(thread: Thread) -> None:
    async def scenario(cluster: Cluster) -> None:
        coordinator, consumer = cluster.coordinators[0], consumer_of(cluster, thread, Topics(4))
        await settled(asyncio.create_task(consumer.heartbeat("g", beat("a"))), thread)
        join = asyncio.create_task(coordinator.join(classic_joining("t0")))
        await turns()
        consumer.leave("g", "a", None, -1)
        thread.work()
        await turns()
        shard = coordinator.shards.of_group("g")
        assert "g" not in shard.consumer_groups
        assert len(shard.groups["g"].members) == 1
        join.cancel()

    run(scenario)


def test_classic_join_that_is_refused_in_the_thread_changes_nothing(thread: Thread) -> None:
    async def scenario(cluster: Cluster) -> None:
        coordinator, consumer = cluster.coordinators[0], consumer_of(cluster, thread, Topics(4))
        await settled(asyncio.create_task(consumer.heartbeat("g", beat("a"))), thread)
        before = consumer.find("g")
        refused = classic_joining("t0")._replace(protocol_type="connect")
        result = await joined(asyncio.create_task(coordinator.join(refused)), thread, cluster)
        assert result.error is ErrorCode.inconsistent_group_protocol
        assert consumer.find("g") is before

    run(scenario)


async def classic_group(cluster: Cluster, thread: Thread) -> str:
    """A stable classic group with one member, whose id is returned."""
    coordinator = cluster.coordinators[0]
    join = asyncio.create_task(coordinator.join(classic_joining("t0")))
    result = await joined(join, thread, cluster)
    request = SyncRequest(
        result.member_id, None, result.generation_id, "consumer", "cooperative-sticky", {}, None
    )
    sync = asyncio.create_task(coordinator.sync("g", request))
    assert (await joined(sync, thread, cluster)).error is ErrorCode.none
    member_id: str = result.member_id
    return member_id


def test_upgrade_is_computed_in_the_thread_while_the_classic_group_is_served(
    thread: Thread,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        coordinator, consumer = cluster.coordinators[0], consumer_of(cluster, thread, Topics(4))
        classic_id = await classic_group(cluster, thread)
        upgrade = asyncio.create_task(consumer.heartbeat("g", beat("b")))
        other = asyncio.create_task(consumer.heartbeat("g", beat("c")))
        await turns()
        assert len(thread.waiting) == 1, "one step of a group at once"
        cluster.clock.advance(CLASSIC_SESSION_MS - 1)
        assert coordinator.heartbeat("g", classic_id, None, 1) is ErrorCode.none
        await settled(upgrade, thread)
        await settled(other, thread)
        group = consumer.find("g")
        assert set(group.members) == {classic_id, "b", "c"}
        # The thread's time is not taken from the sessions.
        deadline_ms = consumer._shards.now_ms() + CLASSIC_SESSION_MS
        assert group.session_deadlines[classic_id] == deadline_ms

    run(scenario)


def test_upgrade_of_a_group_that_has_changed_is_made_again(thread: Thread) -> None:
    async def scenario(cluster: Cluster) -> None:
        coordinator, consumer = cluster.coordinators[0], consumer_of(cluster, thread, Topics(4))
        classic_id = await classic_group(cluster, thread)
        upgrade = asyncio.create_task(consumer.heartbeat("g", beat("b")))
        await turns()
        again = classic_joining("t0", "t1")._replace(member_id=classic_id)
        join = asyncio.create_task(coordinator.join(again))
        await turns()
        thread.work()
        await turns()
        assert len(thread.waiting) == 1, "the result is not of the group as it is"
        await settled(upgrade, thread)
        await joined(join, thread, cluster)
        assert consumer.find("g").members[classic_id].topic_names == {"t0", "t1"}

    run(scenario)


def test_upgrade_of_a_group_that_all_have_left_makes_a_new_one(thread: Thread) -> None:
    async def scenario(cluster: Cluster) -> None:
        coordinator, consumer = cluster.coordinators[0], consumer_of(cluster, thread, Topics(4))
        classic_id = await classic_group(cluster, thread)
        upgrade = asyncio.create_task(consumer.heartbeat("g", beat("b")))
        await turns()
        assert coordinator.leave("g", [(classic_id, None)]) == [ErrorCode.none]
        await settled(upgrade, thread)
        assert set(consumer.find("g").members) == {"b"}

    run(scenario)


def test_things_of_a_classic_join_are_counted() -> None:
    def things(*names: str) -> int:
        group = ConsumerGroup("g", ConsumerGroupSettings(SESSION_MS, 5000, 100))
        request = JoinRequest(None, *classic_joining(*names)[1:], "id")
        return hosted_members.things_of_join(group, request, TopicCatalog(Topics(10, 20).image))

    assert things("t0", "t1", "absent") == 3 + 30
    # Not read: each name has some bytes.
    assert things(*(f"n{number}" for number in range(500))) > LOOP_STEP_THINGS_MAX


def test_things_of_a_step_are_counted() -> None:
    counted = Topics(10, 20)

    def things(members: int, *names: str) -> int:
        group = ConsumerGroup("g", ConsumerGroupSettings(SESSION_MS, 5000, 100))
        catalog = TopicCatalog(counted.image)
        for number in range(members):
            group.heartbeat(beat(f"m{number}", 0, "t0"), catalog, 0, 0)
        return group.things_of(beat("x", 0, *names), catalog)

    # Topics of each member, and partitions for each member.
    assert things(0, "t0") == 1 + 10
    assert things(2, "t0", "t1") == 2 + 2 + 30 * 3
    assert things(3, "absent") == 3 + 1 + 10 * 4
    many = [f"n{number}" for number in range(LOOP_STEP_THINGS_MAX + 1)]
    assert things(0, *many) > LOOP_STEP_THINGS_MAX


class Client:
    """A member that obeys: it owns what its last answer assigned."""

    def __init__(self, member_id: str, rng: random.Random) -> None:
        self.member_id = member_id
        self._rng = rng
        self.rejoin()
        self.running: asyncio.Task[Any] | None = None

    def rejoin(self) -> None:
        self.epoch = 0
        self.owned: frozenset[Any] = frozenset()
        self.names = frozenset(self._rng.sample(NAMES, self._rng.randint(1, len(NAMES))))

    def beat(self, consumer: ConsumerGroupCoordinator) -> None:
        is_full = self.epoch == 0 or self._rng.random() < 0.5
        names = self.names if is_full else None
        sent = MemberHeartbeat(
            self.member_id,
            self.epoch,
            topic_names=names,
            rebalance_timeout_ms=REBALANCE_MS,
            owned=self.owned,
        )
        self.running = asyncio.create_task(consumer.heartbeat("g", sent))

    def take(self) -> None:
        """Take the answer if there is one."""
        if self.running is None or not self.running.done():
            return
        task, self.running = self.running, None
        try:
            result = task.result()
        except MemberRejectedError:
            self.rejoin()
            return
        self.epoch = result.epoch
        if result.assigned is not None:
            self.owned = result.assigned


class History:
    """What happens to a group, in an order that `rng` determines."""

    def __init__(self, cluster: Cluster, thread: Thread, rng: random.Random) -> None:
        self._cluster = cluster
        self._thread = thread
        self._rng = rng
        self.topics = Topics(3, 3, 2)
        self.consumer = consumer_of(cluster, thread, self.topics)
        self.clients = [Client(each, rng) for each in "abcd"]

    async def step(self) -> None:
        client, act = self._rng.choice(self.clients), self._rng.random()
        if act < 0.45:
            if client.running is None:
                client.beat(self.consumer)
        elif act < 0.8:
            if self._thread.waiting:
                self._thread.work()
        elif act < 0.85:
            counts = self._rng.choices(range(1, 6), k=self._rng.randint(1, len(NAMES)))
            self.topics.change(*counts)
        elif act < 0.9:
            self._leave(client)
        elif act < 0.93:
            self._cluster.clock.advance(self._rng.choice((1000, 20_000)))
            self._expire()
        await turns(self._rng.randint(0, 3))
        self._look()

    def _leave(self, client: Client) -> None:
        if client.running is None and client.epoch > 0:
            with contextlib.suppress(MemberRejectedError):  # It has expired.
                self.consumer.leave("g", client.member_id, None, -1)
            client.rejoin()

    def _expire(self) -> None:
        for shard in self.consumer._shards.loaded():
            if "g" in shard.consumer_timers:
                shard.consumer_timers["g"].handle.cancel()
                self.consumer._expire(shard, "g")

    def _look(self) -> None:
        for client in self.clients:
            client.take()
        for shard in self.consumer._shards.loaded():
            if "g" in shard.consumer_groups:
                check(shard.consumer_groups["g"])

    async def settle(self) -> None:
        """Everybody goes on until nothing changes."""
        for client in self.clients * 40:
            if client.running is None:
                client.beat(self.consumer)
            assert client.running is not None
            await finish(client.running, self._thread)
            self._look()


def check(group: ConsumerGroup) -> None:
    held = [partition for member in group.members.values() for partition in member.held]
    assert len(held) == len(set(held)), "a partition has two owners"
    assert set(group.owners) == set(held)
    assert group.target_epoch <= group.group_epoch


@pytest.mark.parametrize("seed", range(40))
def test_groups_stay_whole_in_any_order_of_steps(thread: Thread, seed: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        history = History(cluster, thread, random.Random(seed))
        for _ in range(150):
            await history.step()
        await history.settle()
        group = history.consumer.find("g")
        assert group.shown_state == "Stable"
        for client in history.clients:
            assert client.owned == group.members[client.member_id].assigned
        wanted = frozenset().union(*(client.names for client in history.clients))
        assert set(group.owners) == {
            (topic.topic_id, index)
            for topic in history.topics.image.topics_by_name.values()
            if topic.name in wanted
            for index in topic.partitions
        }
        cluster.move(1, kept=1_000_000)
        await cluster.coordinators[1].wait_until_loaded()
        loaded = cluster.coordinators[1].consumer.find("g")
        for name in ("group_epoch", "target_epoch", "metadata_hash", "members", "target", "owners"):
            assert getattr(loaded, name) == getattr(group, name), name

    run(scenario)
