"""The coordinator of share groups over a model of replicated logs: what is stored and read again,
timers, and steps in a thread.

The event loop only notes its timers, and a thread's work is done when the test says so.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.groups import share_group_coordinator
from isotherm.broker.coordinators.groups.long_steps import LongSteps
from isotherm.broker.coordinators.groups.member_heartbeat import MemberRejectedError
from isotherm.broker.coordinators.groups.share_group_coordinator import (
    EXPIRY_RETRY_MS,
    ShareGroupCoordinator,
)
from isotherm.broker.coordinators.groups.share_member import ShareHeartbeat
from isotherm.broker.metadata.image import MetadataImage, TopicImage
from isotherm.errors import CoordinatorNotAvailableError, NotCoordinatorError, PolicyViolationError
from tests.support.group_cluster import Cluster, joining, turns
from tests.support.group_cluster import run as run_cluster

E = ErrorCode
SESSION_MS = 45_000
TOPIC = uuid.UUID(int=1)
PARTITIONS = {TOPIC: range(4)}


class Thread(Executor):
    def __init__(self) -> None:
        self.waiting: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, function: Any, /, *arguments: Any, **_: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, lambda: function(*arguments)))
        return future

    def work(self) -> None:
        """Do the first work."""
        future, work = self.waiting.pop(0)
        try:
            future.set_result(work())
        except MemberRejectedError as error:
            future.set_exception(error)

    async def finish(self, task: asyncio.Task[Any]) -> Any:
        while not task.done():
            await turns()
            if self.waiting:
                self.work()
        return await task


class Timer:
    def __init__(self, delay_s: float, fire: Callable[[], None]) -> None:
        self.delay_s = delay_s
        self.fire = fire
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class Shares:
    """Coordinators of share groups on the brokers of a cluster, with topic `t`."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.thread = Thread()
        self.timers: list[Timer] = []
        partitions: Any = range(4)
        topic = TopicImage("t", TOPIC, partitions)
        self.image = MetadataImage(
            end_offset=1, topics_by_name={"t": topic}, topics_by_id={TOPIC: topic}
        )
        self.coordinators = [self._coordinator(coordinator) for coordinator in cluster.coordinators]

    def _coordinator(self, groups: Any) -> ShareGroupCoordinator:
        stands_in: Any = self
        coordinator = ShareGroupCoordinator(groups.shards, stands_in, stands_in)
        made: Any = coordinator
        made._long_steps = LongSteps(self.thread)
        groups.share = coordinator
        return coordinator

    def call_later(self, delay_s: float, callback: Callable[..., None], *arguments: Any) -> Timer:
        self.timers.append(Timer(delay_s, lambda: callback(*arguments)))
        return self.timers[-1]

    def __getitem__(self, broker_id: int) -> ShareGroupCoordinator:
        return self.coordinators[broker_id]


def run(scenario: Callable[[Shares], Awaitable[None]], **settings: Any) -> None:
    async def with_shares(cluster: Cluster) -> None:
        await scenario(Shares(cluster))

    run_cluster(with_shares, group_share_assignment_interval_ms=0, **settings)


@pytest.fixture
def long_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step is long."""
    monkeypatch.setattr(share_group_coordinator, "LOOP_STEP_THINGS_MAX", -1)


def beat(member_id: str, epoch: int = 0, *names: str) -> ShareHeartbeat:
    names = names or (("t",) if epoch == 0 else ())
    return ShareHeartbeat(member_id, epoch, None, "c", "/h", frozenset(names) or None)


async def code_of(request: Awaitable[Any]) -> ErrorCode:
    with pytest.raises(MemberRejectedError) as refused:
        await request
    return refused.value.code


def test_members_get_partitions_and_leave_and_another_broker_goes_on() -> None:
    async def scenario(shares: Shares) -> None:
        joined = await shares[0].heartbeat("g", beat("a"))
        assert joined.uninitialized[TOPIC].partitions == set(range(4))
        shares[0].note_initialized("g", PARTITIONS)
        assert len((await shares[0].heartbeat("g", beat("a", joined.epoch))).assigned or ()) == 4
        second = await shares[0].heartbeat("g", beat("b"))
        assert len(second.assigned or ()) == 2
        shares.cluster.partition.replicate()
        shares.cluster.move(1, kept=shares.cluster.partition.end_offset)
        await shares.cluster.coordinators[1].wait_until_loaded()
        with pytest.raises(NotCoordinatorError):
            await shares[0].heartbeat("g", beat("b", second.epoch))
        found = shares[1].find("g")
        assert (found.members.keys(), found.group_epoch) == ({"a", "b"}, second.epoch)
        # The other hash of the metadata would be another epoch.
        assert (await shares[1].heartbeat("g", beat("b", second.epoch))).epoch == second.epoch
        shares[1].leave("g", "a")
        again = await shares[1].heartbeat("g", beat("b", second.epoch))
        assert len(again.assigned or ()) == 4

    run(scenario)


def test_failed_initializations_are_begun_again() -> None:
    async def scenario(shares: Shares) -> None:
        joined = await shares[0].heartbeat("g", beat("a"))
        assert not (await shares[0].heartbeat("g", beat("a", joined.epoch))).uninitialized
        shares[0].note_failed("g", {TOPIC: [1]})
        again = await shares[0].heartbeat("g", beat("a", joined.epoch))
        assert again.uninitialized[TOPIC].partitions == {1}

    run(scenario)


def test_ids_of_other_groups_and_unknown_groups_are_refused() -> None:
    async def scenario(shares: Shares) -> None:
        waiting = asyncio.ensure_future(shares.cluster.coordinators[0].join(joining()))
        await turns()
        assert await code_of(shares[0].heartbeat("g", beat("a"))) is E.group_id_not_found
        assert await code_of(shares[0].heartbeat("h", beat("a", 3))) is E.group_id_not_found
        for act in (
            lambda: shares[0].leave("h", "a"),
            lambda: shares[0].note_initialized("h", PARTITIONS),
            lambda: shares[0].note_failed("h", PARTITIONS),
        ):
            with pytest.raises(MemberRejectedError):
                act()
        shares.cluster.partition.replicate()
        waiting.cancel()

    run(scenario)


def test_groups_are_bounded() -> None:
    async def scenario(shares: Shares) -> None:
        await shares[0].heartbeat("g", beat("a"))
        with pytest.raises(PolicyViolationError):
            await shares[0].heartbeat("h", beat("a"))
        await shares[0].heartbeat("g", beat("b"))

    run(scenario, group_coordinator_groups_max=1)


def test_what_the_log_refuses_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(shares: Shares) -> None:
        await shares[0].heartbeat("g", beat("a"))
        before = shares[0].find("g")

        def refuse(*_: Any) -> None:
            raise CoordinatorNotAvailableError("the log is full")

        monkeypatch.setattr(shares.cluster.coordinators[0].shards, "append_encoded", refuse)
        with pytest.raises(CoordinatorNotAvailableError):
            await shares[0].heartbeat("g", beat("b"))
        assert shares[0].find("g") is before

    run(scenario)


def test_silent_members_are_removed_and_a_refused_removal_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(shares: Shares) -> None:
        caplog.set_level(logging.INFO)
        epoch = (await shares[0].heartbeat("g", beat("a"))).epoch
        (timer,) = shares.timers
        assert timer.delay_s == (SESSION_MS + 1) / 1000
        shares.cluster.clock.advance(1000)
        await shares[0].heartbeat("g", beat("a", epoch))
        assert shares.timers == [timer]
        # It fires before the member's new deadline, and is set again.
        shares.cluster.clock.advance(SESSION_MS - 999)
        timer.fire()
        assert not shares[0].find("g").is_empty
        assert shares.timers[1].delay_s == 1.0
        shares.cluster.clock.advance(1000)
        with monkeypatch.context() as patch:

            def refuse(*_: Any) -> None:
                raise CoordinatorNotAvailableError("the log is full")

            patch.setattr(shares.cluster.coordinators[0].shards, "append_encoded", refuse)
            shares.timers[1].fire()
        assert not shares[0].find("g").is_empty
        assert "expired members are not removed yet group_id=g" in caplog.text
        assert shares.timers[2].delay_s == (EXPIRY_RETRY_MS + 1) / 1000
        shares.timers[2].fire()
        assert shares[0].find("g").is_empty

    run(scenario)


def test_members_that_are_silent_at_once_are_removed_in_turns() -> None:
    async def scenario(shares: Shares) -> None:
        for member_id in "ab":
            await shares[0].heartbeat("g", beat(member_id))
        shares.cluster.clock.advance(SESSION_MS)
        shares.timers[0].fire()
        assert shares[0].find("g").members.keys() == {"b"}
        assert shares.timers[1].delay_s == 0.001
        shares.timers[1].fire()
        assert shares[0].find("g").is_empty
        assert len(shares.timers) == 2

    run(scenario)


def test_sessions_go_on_at_the_broker_that_loads_the_group() -> None:
    async def scenario(shares: Shares) -> None:
        await shares[0].heartbeat("g", beat("a"))
        shares.cluster.partition.replicate()
        shares.cluster.move(1, kept=shares.cluster.partition.end_offset)
        await shares.cluster.coordinators[1].wait_until_loaded()
        before, after = shares.timers
        assert before.is_cancelled
        shares.cluster.clock.advance(SESSION_MS)
        after.fire()
        assert shares[1].find("g").is_empty

    run(scenario)


@pytest.mark.usefixtures("long_steps")
def test_a_group_that_has_changed_meanwhile_gets_the_step_again() -> None:
    async def scenario(shares: Shares) -> None:
        thread = shares.thread
        await thread.finish(asyncio.create_task(shares[0].heartbeat("g", beat("a"))))
        fenced = asyncio.create_task(shares[0].heartbeat("g", beat("a", 99)))
        assert await code_of(thread.finish(fenced)) is E.fenced_member_epoch
        joins = asyncio.create_task(shares[0].heartbeat("g", beat("b")))
        await turns()
        shares[0].leave("g", "a")
        thread.work()
        await turns()
        assert len(thread.waiting) == 1, "the result is not of the group as it is"
        await thread.finish(joins)
        assert shares[0].find("g").members.keys() == {"b"}

    run(scenario)


@pytest.mark.usefixtures("long_steps")
def test_heartbeats_that_change_a_group_wait_for_each_other() -> None:
    async def scenario(shares: Shares) -> None:
        joins = [asyncio.create_task(shares[0].heartbeat("g", beat(each))) for each in "abc"]
        other = asyncio.create_task(shares[0].heartbeat("h", beat("d")))
        await turns()
        assert len(shares.thread.waiting) == 2, "one step of a group at once"
        for each in (*joins, other):
            await shares.thread.finish(each)
        assert shares[0].find("g").members.keys() == set("abc")
        assert shares[0].find("h").members.keys() == {"d"}

    run(scenario)


@pytest.mark.usefixtures("long_steps")
def test_a_heartbeat_without_news_waits_for_no_step_and_keeps_its_session() -> None:
    async def scenario(shares: Shares) -> None:
        thread, coordinator = shares.thread, shares[0]
        first = asyncio.create_task(coordinator.heartbeat("g", beat("a")))
        epoch = (await thread.finish(first)).epoch
        coordinator.note_initialized("g", PARTITIONS)
        for _ in range(2):
            same = asyncio.create_task(coordinator.heartbeat("g", beat("a", epoch)))
            epoch = (await thread.finish(same)).epoch
        joins = asyncio.create_task(coordinator.heartbeat("g", beat("b")))
        await turns()
        shares.cluster.clock.advance(SESSION_MS - 1)
        assert (await coordinator.heartbeat("g", beat("a", epoch))).epoch == epoch
        await thread.finish(joins)
        now_ms = shares.cluster.coordinators[0].shards.now_ms()
        deadlines = coordinator.find("g").session_deadlines
        assert deadlines == {"a": now_ms + SESSION_MS, "b": now_ms + 1}

    run(scenario)


@pytest.mark.usefixtures("long_steps")
def test_a_step_whose_group_moved_or_whose_id_was_taken_is_refused() -> None:
    async def scenario(shares: Shares) -> None:
        joins = asyncio.create_task(shares[0].heartbeat("g", beat("a")))
        await turns()
        other = asyncio.ensure_future(shares.cluster.coordinators[0].join(joining()))
        await turns()
        assert await code_of(shares.thread.finish(joins)) is E.group_id_not_found
        shares.cluster.partition.replicate()
        other.cancel()
        joins = asyncio.create_task(shares[0].heartbeat("h", beat("a")))
        await turns()
        shares.cluster.move(1)
        with pytest.raises(NotCoordinatorError):
            await shares.thread.finish(joins)

    run(scenario)


@pytest.mark.usefixtures("long_steps")
def test_a_step_begins_again_if_the_group_has_moved_away_and_back() -> None:
    async def scenario(shares: Shares) -> None:
        joins = asyncio.create_task(shares[0].heartbeat("g", beat("a")))
        await turns()
        shares.cluster.move(1)
        shares.cluster.move(0)
        await shares.cluster.coordinators[0].wait_until_loaded()
        shares.thread.work()
        await turns()
        assert len(shares.thread.waiting) == 1, "the result is not of the shard as it is"
        await shares.thread.finish(joins)
        assert shares[0].find("g").members.keys() == {"a"}

    run(scenario)


def test_a_changed_setting_holds_from_the_next_heartbeat_on() -> None:
    async def scenario(shares: Shares) -> None:
        epoch = (await shares[0].heartbeat("g", beat("a"))).epoch
        shares.cluster.group_texts["share.session.timeout.ms"] = "50000"
        await shares[0].heartbeat("g", beat("a", epoch))
        now_ms = shares.cluster.coordinators[0].shards.now_ms()
        assert shares[0].find("g").next_deadline_ms() == now_ms + 50_000

    run(scenario)


def test_a_changed_assignment_interval_of_the_broker_holds_while_it_runs() -> None:
    async def scenario(shares: Shares) -> None:
        cluster = shares.cluster
        groups = replace(cluster.broker_config.groups, group_share_assignment_interval_ms=70)
        cluster.broker_config = SimpleNamespace(groups=groups)
        shards = cluster.coordinators[0].shards
        assert shards.share_settings("g").assignment_interval_ms == 70
        cluster.group_texts["share.assignment.interval.ms"] = "90"
        assert shards.share_settings("g").assignment_interval_ms == 90

    run(scenario)


def test_joins_and_epochs_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(shares: Shares) -> None:
        with caplog.at_level(logging.INFO):
            await shares[0].heartbeat("g", beat("a"))
            shares[0].leave("g", "a")
        texts = [record.getMessage() for record in caplog.records]
        assert "[GroupId g] Member a joins the share group using the share protocol." in texts
        assert "[GroupId g] Member a left the share group." in texts
        assert "[GroupId g] Bumped group epoch to 2." in texts
        assert (
            "[GroupId g] Computed a new target assignment for epoch 2 with 'simple' assignor."
            in texts
        )

    run(scenario)
