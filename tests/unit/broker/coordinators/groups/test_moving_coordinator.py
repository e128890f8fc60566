"""Three group coordinators over a model of replicated logs, while the leader of their partition
moves.

A seed determines each step of a schedule: commits and fetches at any broker, moves that lose
uncommitted records, late notifications of leadership.
"""

from __future__ import annotations

import asyncio
import random

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.groups.classic_protocol import SyncRequest
from isotherm.broker.coordinators.groups.group_records import encode_key
from isotherm.broker.coordinators.groups.offsets import offset_key
from isotherm.broker.coordinators.groups.offsets_topic import OFFSETS_TOPIC
from isotherm.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    NotCoordinatorError,
)
from isotherm.record.batch import build_batch
from tests.support.group_cluster import BROKERS, T0, Cluster, joining, run, turns

MOVED = (NotCoordinatorError, CoordinatorLoadInProgressError, CoordinatorNotAvailableError)


def test_commit_is_answered_once_the_replicas_have_it() -> None:
    async def scenario(cluster: Cluster) -> None:
        committing = asyncio.ensure_future(cluster.commit(0, 5))
        fetching = asyncio.ensure_future(cluster.fetch(0))
        await turns()
        assert not committing.done()
        assert not fetching.done()
        cluster.partition.replicate()
        await committing
        assert await fetching == 5

    run(scenario)


def test_commit_that_a_move_loses_is_refused_and_gone() -> None:
    async def scenario(cluster: Cluster) -> None:
        await acknowledged(cluster, 0, 4)
        committing = asyncio.ensure_future(cluster.commit(0, 5))
        fetching = asyncio.ensure_future(cluster.fetch(0))
        await turns()
        cluster.move(1)
        for each in (committing, fetching):
            with pytest.raises(NotCoordinatorError):
                await each
        await cluster.coordinators[1].wait_until_loaded()
        assert await cluster.fetch(1) == 4
        with pytest.raises(NotCoordinatorError):
            await cluster.fetch(0)

    run(scenario)


async def acknowledged(cluster: Cluster, broker_id: int, offset: int) -> None:
    committing = asyncio.ensure_future(cluster.commit(broker_id, offset))
    await turns()
    cluster.partition.replicate()
    await committing


def test_new_coordinator_shows_what_survived_only_once_it_is_committed() -> None:
    async def scenario(cluster: Cluster) -> None:
        committing = asyncio.ensure_future(cluster.commit(0, 5))
        await turns()
        cluster.move(1, kept=1)
        with pytest.raises(NotCoordinatorError):
            await committing
        with pytest.raises(CoordinatorLoadInProgressError):
            await cluster.fetch(1)
        await cluster.coordinators[1].wait_until_loaded()
        fetching = asyncio.ensure_future(cluster.fetch(1))
        await turns()
        assert not fetching.done()
        cluster.partition.replicate()
        assert await fetching == 5

    run(scenario)


def test_coordinator_that_has_not_heard_of_its_new_election_appends_nothing() -> None:
    """Broker 0 leads, another broker leads, broker 0 leads again. Its shard in memory is of its
    first term."""

    async def scenario(cluster: Cluster) -> None:
        await acknowledged(cluster, 0, 4)
        cluster.move(1)
        await cluster.coordinators[1].wait_until_loaded()
        await acknowledged(cluster, 1, 6)
        cluster.move(0, is_known=False)
        # As if broker 0 had learnt of neither move: its shard is of the first election.
        cluster.coordinators[0].on_resignation(0, None)
        cluster.coordinators[0].on_election(0, 1)
        await cluster.coordinators[0].wait_until_loaded()
        with pytest.raises(NotCoordinatorError):
            await cluster.commit(0, 5)
        cluster.late.deliver_all()
        await cluster.coordinators[0].wait_until_loaded()
        assert await cluster.fetch(0) == 6

    run(scenario)


def test_election_of_the_same_leader_keeps_its_shard() -> None:
    async def scenario(cluster: Cluster) -> None:
        waiting = asyncio.ensure_future(cluster.commit(0, 5))
        await turns()
        cluster.move(0, is_known=False)
        with pytest.raises(NotCoordinatorError):
            await cluster.commit(0, 6)
        cluster.late.deliver_all()
        cluster.partition.replicate()
        await waiting
        assert await cluster.fetch(0) == 5

    run(scenario)


def test_older_news_of_leadership_change_nothing() -> None:
    async def scenario(cluster: Cluster) -> None:
        await acknowledged(cluster, 0, 4)
        coordinator = cluster.coordinators[0]
        coordinator.on_resignation(0, 1)
        coordinator.on_election(0, 1)
        assert await cluster.fetch(0) == 4
        coordinator.on_resignation(0, 2)
        with pytest.raises(NotCoordinatorError):
            await cluster.fetch(0)

    run(scenario)


def test_resignation_during_the_load_drops_it() -> None:
    async def scenario(cluster: Cluster) -> None:
        await acknowledged(cluster, 0, 4)
        cluster.move(1)
        cluster.move(2)
        assert await loaded_fetch(cluster, 2) == 4
        with pytest.raises(NotCoordinatorError):
            await loaded_fetch(cluster, 1)

    run(scenario)


async def loaded_fetch(cluster: Cluster, broker_id: int) -> int:
    await cluster.coordinators[broker_id].wait_until_loaded()
    return await cluster.fetch(broker_id)


def test_load_that_a_move_overtakes_shows_nothing_of_what_was_lost() -> None:
    """The log is truncated after it was read, and the broker leads again, before it learns of
    either."""

    async def scenario(cluster: Cluster) -> None:
        await acknowledged(cluster, 0, 4)
        committing = asyncio.ensure_future(cluster.commit(0, 5))
        await turns()
        partition = cluster.partition
        read = partition.read

        def read_and_move(offset: int) -> memoryview:
            found = read(offset)
            partition.read = read  # type: ignore[method-assign]
            partition.move(0, kept=0)
            partition.move(1, kept=0)
            return found

        partition.read = read_and_move  # type: ignore[method-assign]
        cluster.move(1, kept=1)
        with pytest.raises(NotCoordinatorError):
            await committing
        with pytest.raises(NotCoordinatorError):
            await loaded_fetch(cluster, 1)
        cluster.coordinators[1].on_resignation(0, partition.leader_epoch - 1)
        cluster.coordinators[1].on_election(0, partition.leader_epoch)
        assert await loaded_fetch(cluster, 1) == 4

    run(scenario)


def test_requests_that_wait_for_a_rebalance_hear_of_the_move() -> None:
    async def scenario(cluster: Cluster) -> None:
        coordinator = cluster.coordinators[0]
        first = await coordinator.join(joining())
        assert first.error is ErrorCode.none
        # The second member's join waits until the first member joins again.
        second = asyncio.ensure_future(coordinator.join(joining()))
        await turns()
        assert not second.done()
        cluster.move(1)
        assert (await second).error is ErrorCode.not_coordinator

    run(scenario)


def test_assignment_is_given_out_once_it_is_committed_and_not_if_it_is_lost() -> None:
    async def scenario(cluster: Cluster) -> None:
        coordinator = cluster.coordinators[0]
        joined = await coordinator.join(joining())
        request = SyncRequest(
            joined.member_id, None, 1, "consumer", "range", {joined.member_id: b"mine"}
        )
        syncing = asyncio.ensure_future(coordinator.sync("g", request))
        await turns()
        assert not syncing.done()
        cluster.move(1)
        with pytest.raises(NotCoordinatorError):
            await syncing
        await cluster.coordinators[1].wait_until_loaded()
        again = await cluster.coordinators[1].sync("g", request)
        assert again.error is ErrorCode.unknown_member_id

    run(scenario)


def test_log_that_cannot_be_read_has_no_coordinator_until_it_moves(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        await acknowledged(cluster, 0, 4)
        read = cluster.partition.read
        unknown = build_batch([(0, encode_key(offset_key("g", T0)), b"\0\x09", ())])
        cluster.partition.read = lambda _: memoryview(unknown)  # type: ignore[method-assign]
        cluster.move(1)
        with pytest.raises(NotCoordinatorError):
            await loaded_fetch(cluster, 1)
        assert "cannot be loaded" in caplog.text
        assert f"{OFFSETS_TOPIC}-0" in caplog.text
        cluster.partition.read = read  # type: ignore[method-assign]
        cluster.move(1)
        assert await loaded_fetch(cluster, 1) == 4

    run(scenario)


class Schedule:
    """Draws the next steps. `floor` is the lowest offset that a fetch may show from now on."""

    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        self.cluster = cluster
        self.rng = rng
        self.floor = -1
        self.running: set[asyncio.Future[None]] = set()
        self._offset = 0

    async def step(self) -> None:
        cluster, rng = self.cluster, self.rng
        action = rng.random()
        anyone = rng.randrange(BROKERS)
        asked = cluster.partition.leader if rng.random() < 0.7 else anyone
        if action < 0.22:
            self._offset += 1
            self.running.add(asyncio.ensure_future(self._commit(asked, self._offset)))
        elif action < 0.36:
            self.running.add(asyncio.ensure_future(self._fetch(asked)))
        elif action < 0.5:
            cluster.partition.replicate()
        elif action < 0.56:
            cluster.move(anyone, kept=rng.randrange(3), is_known=False)
        elif action < 0.94:
            cluster.late.deliver(anyone)
        else:
            await cluster.coordinators[anyone].wait_until_loaded()
        await turns(rng.randrange(3))

    async def _commit(self, broker_id: int, value: int) -> None:
        try:
            await self.cluster.commit(broker_id, value)
        except MOVED:
            return
        self.floor = max(self.floor, value)

    async def _fetch(self, broker_id: int) -> None:
        shard = self.cluster.coordinators[broker_id].shards.find("g")
        # A coordinator that does not know its successor yet answers from its old state, as Kafka's
        # does.
        is_late = shard is None or shard.epoch != self.cluster.partition.leader_epoch
        at_least = -1 if is_late else self.floor
        try:
            found = await self.cluster.fetch(broker_id)
        except MOVED:
            return
        assert found >= at_least
        self.floor = max(self.floor, found)


@pytest.mark.parametrize("seed", range(12))
def test_acknowledged_offsets_survive_every_schedule(seed: int) -> None:
    """A fetch shows at least what was acknowledged, and what an earlier fetch showed."""

    async def scenario(cluster: Cluster) -> None:
        schedule = Schedule(cluster, random.Random(seed))
        for _ in range(200):
            await schedule.step()
        cluster.late.deliver_all()
        leader = cluster.partition.leader
        await cluster.coordinators[leader].wait_until_loaded()
        cluster.partition.replicate()
        await asyncio.gather(*schedule.running)
        assert schedule.floor > 0
        assert await cluster.fetch(leader) >= schedule.floor

    run(scenario)
