"""Members of a share group at a leader, with real logs and a share coordinator that may fail, be
slow, or write and not say so."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client import CollectorRegistry

from isotherm.broker.coordinators.shares.share_state import (
    ShareState,
    initialized,
    read_by_leader,
    replayed,
)
from isotherm.broker.coordinators.shares.share_state import (
    written as record_of,
)
from isotherm.broker.coordinators.shares.share_state_records import SharePartitionKey
from isotherm.broker.metadata.cluster_metadata import MetadataChange
from isotherm.broker.share_partitions.acknowledgement import Acknowledgement, AcknowledgeType
from isotherm.broker.share_partitions.share_fetch import (
    FetchBounds,
    FetchedPartition,
    RemoteTierReads,
    ShareFetch,
)
from isotherm.broker.share_partitions.share_metrics import ShareMetrics
from isotherm.broker.share_partitions.share_partition import READ_SIZE_MIN, Member
from isotherm.broker.share_partitions.share_partition_manager import (
    ResetLookUp,
    SharePartitionManager,
)
from isotherm.broker.share_partitions.share_sessions import MemberKey, ShareSessionCache
from isotherm.broker.share_partitions.state_requests import ReadByLeader, ReadState, WriteState
from isotherm.config.groups import GroupLevelConfig
from isotherm.errors import (
    CoordinatorNotAvailableError,
    FencedStateEpochError,
    InvalidRecordStateError,
    IsothermError,
    NotLeaderOrFollowerError,
    UnknownTopicOrPartitionError,
)
from isotherm.log.fs import OsFile
from tests.support.conditions import until
from tests.support.led_topic import delete_topic, led_topic
from tests.unit.broker.conftest import TOPIC_ID, Parts

KEY = SharePartitionKey("g", TOPIC_ID, 0)
OTHER_KEY = SharePartitionKey("g", TOPIC_ID, 1)
LOCK_MS = 30_000
DELIVERY_COUNT_MAX = 5
COUNT = 60


class States:
    """The persister and the share coordinator behind it, whose rules are the real ones."""

    def __init__(self) -> None:
        self.states: dict[SharePartitionKey, ShareState] = {}
        self.rng: random.Random | None = None
        self.error: IsothermError | None = None
        self.held: asyncio.Event | None = None

    def begin(self, key: SharePartitionKey, start_offset: int = 0) -> None:
        self.states[key] = replayed(None, initialized(None, 0, start_offset, 0), 500)

    async def read(
        self, requests: Sequence[ReadByLeader]
    ) -> dict[SharePartitionKey, ReadState | IsothermError]:
        await self._turns()
        ((key, leader_epoch),) = [(request.key, request.leader_epoch) for request in requests]
        state, fence = read_by_leader(self.states.get(key), leader_epoch, 0, 500)
        if fence is not None:
            self.states[key] = replayed(self.states[key], fence, 500)
        return {key: ReadState(state.state_epoch, state.start_offset, state.batches)}

    def write_at_once(self, request: WriteState) -> bool:
        is_alone = self.rng is not None and self.error is None and self.held is None
        if not (is_alone and self.rng.random() < 0.3):
            return False
        self._write(request)
        return True

    async def write(
        self, requests: Sequence[WriteState]
    ) -> dict[SharePartitionKey, IsothermError | None]:
        await self._turns()
        (request,) = requests
        key = request.key
        lost = CoordinatorNotAvailableError("away")
        roll = 1.0 if self.rng is None else self.rng.random()
        if self.error is not None or roll < 0.1:
            return {key: self.error or lost}
        self._write(request)
        return {key: lost if roll < 0.2 else None}

    def _write(self, request: WriteState) -> None:
        state = self.states[request.key]
        self.states[request.key] = replayed(state, record_of(state, request.write, 0, 500), 500)

    async def _turns(self) -> None:
        if self.held is not None:
            await self.held.wait()
        for _ in range(0 if self.rng is None else self.rng.randrange(4)):
            await asyncio.sleep(0)


class Leader:
    """A manager and its members, over the partitions of `Parts`."""

    def __init__(self, parts: Parts, states: States, **texts: str) -> None:
        self.parts = parts
        self.texts = {key.replace("_", "."): value for key, value in texts.items()}
        metadata = SimpleNamespace(
            group_config=lambda _: GroupLevelConfig.parse(self.texts, parts.config.groups),
            broker_config=parts.config,
            image=None,
        )
        self.sessions = ShareSessionCache(sessions_max=10, partitions_max=100)
        self.manager = SharePartitionManager(
            parts.replica_manager,
            cast("Any", states),
            cast("Any", metadata),
            self.sessions,
            ResetLookUp(cast("Any", parts.remote), parts.control, 10.0),
            parts.clock,
        )

    def begin_fetch(
        self,
        member: str,
        keys: Sequence[SharePartitionKey] = (KEY,),
        *,
        wait_s: float = 0.0,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        record_count_max: int = 500,
        is_record_limit: bool = False,
        batch_size: int = 500,
    ) -> ShareFetch:
        return ShareFetch(
            Member(member, batch_size, is_record_limit),
            [self.manager.get_or_begin(key) for key in keys],
            FetchBounds(max_bytes, min_bytes, wait_s, record_count_max),
            self.manager.settings_of("g"),
            self.parts.replica_manager.purgatory,
            RemoteTierReads(cast("Any", self.parts.remote), 60.0),
        )

    async def fetch(
        self, member: str, *keys: SharePartitionKey, **bounds: Any
    ) -> Mapping[SharePartitionKey, FetchedPartition]:
        await self.load(*keys or (KEY,))
        return await self.begin_fetch(member, keys or (KEY,), **bounds).run()

    async def load(self, *keys: SharePartitionKey) -> None:
        await until(lambda: not any(self.manager.get_or_begin(key).is_loading for key in keys))

    def acknowledge(self, member: str, *ranges: tuple[int, int, int]) -> Awaitable[None]:
        named = [Acknowledgement(first, last, (kind,)) for first, last, kind in ranges]
        settings = self.manager.settings_of("g")
        begun = self.manager.begin_acknowledgement(MemberKey("g", member), KEY, named, settings)
        return written(self.manager.write(begun))


async def written(write: Awaitable[None] | None) -> None:
    if write is not None:
        await write


ACCEPT, RELEASE = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE


def run(parts: Parts, scenario: Callable[[Leader, States], Awaitable[None]], **texts: str) -> None:
    async def main() -> None:
        states = States()
        for key in (KEY, OTHER_KEY):
            states.begin(key)
        leader = Leader(parts, states, **texts)
        await scenario(leader, states)
        await leader.manager.stop()

    parts.run(main)


def acquired(answers: Mapping[SharePartitionKey, FetchedPartition]) -> list[tuple[int, int, int]]:
    return [tuple(each) for each in answers[KEY].acquired] if KEY in answers else []


def test_records_are_acquired_once_and_accepted(parts: Parts) -> None:
    async def scenario(leader: Leader, states: States) -> None:
        parts.append(b"a", b"b", b"c")
        assert acquired(await leader.fetch("m")) == [(0, 2, 1)]
        assert acquired(await leader.fetch("n")) == []
        with pytest.raises(InvalidRecordStateError):
            leader.acknowledge("n", (1, 2, ACCEPT))
        await leader.acknowledge("m", (1, 2, ACCEPT))
        assert states.states[KEY].snapshot.batches == ((1, 2, 1, 2),)
        with pytest.raises(InvalidRecordStateError):
            leader.acknowledge("m", (1, 2, ACCEPT))
        await leader.acknowledge("m", (0, 0, ACCEPT))
        assert leader.manager.get(KEY).window.start_offset == 3

    run(parts, scenario)


def test_records_are_delivered_again_when_their_lock_ends(parts: Parts) -> None:
    async def scenario(leader: Leader, states: States) -> None:
        parts.append(b"a", b"b")
        await leader.fetch("m")
        parts.clock.advance(LOCK_MS - 1)
        leader.manager.expire_locks()
        assert acquired(await leader.fetch("n")) == []
        parts.clock.advance(1)
        leader.manager.expire_locks()
        assert acquired(await leader.fetch("n")) == [(0, 1, 2)]
        await leader.manager.get(KEY).written()
        assert states.states[KEY].snapshot.batches == ((0, 1, 1, 0),)

    run(parts, scenario)


def test_metrics_count_what_is_written_in_flight_and_timed_out(parts: Parts) -> None:
    async def scenario(leader: Leader, states: States) -> None:
        registry = CollectorRegistry()
        registry.register(ShareMetrics(leader.manager))

        def value(name: str, **labels: str) -> float | None:
            return registry.get_sample_value(f"kafka_server_{name}", labels)

        def acknowledged() -> list[float | None]:
            name = "sharegroupmetrics_recordacknowledgements_total"
            return [value(name, ackType=each) for each in ("Accept", "Release", "Reject", "Renew")]

        place = {"group": "g", "topic": "t", "partition": "0"}
        parts.append(*(b"a" for _ in range(6)))
        await leader.fetch("m")
        assert value("sharegroupmetrics_partitionloadtimems_count") == 1
        assert value("sharepartitionmetrics_inflightmessagecount", **place) == 6
        assert value("sharepartitionmetrics_inflightbatchcount", **place) == 1
        states.error = CoordinatorNotAvailableError("away")
        with pytest.raises(CoordinatorNotAvailableError):
            await leader.acknowledge("m", (0, 0, ACCEPT))
        assert acknowledged() == [0, 0, 0, 0]
        states.error = None
        types = (ACCEPT, RELEASE, AcknowledgeType.REJECT, ACCEPT)
        member, several = MemberKey("g", "m"), Acknowledgement(0, 3, types)
        settings = leader.manager.settings_of("g")
        begun = leader.manager.begin_acknowledgement(member, KEY, [several], settings)
        await written(leader.manager.write(begun))
        assert acknowledged() == [2, 1, 1, 0]
        parts.clock.advance(LOCK_MS)
        leader.manager.expire_locks()
        timeouts = "sharepartitionmetrics_acquisitionlocktimeout_total"
        assert value(timeouts, **place) == 2

    run(parts, scenario)


def test_fetch_waits_for_records_and_for_released_ones(parts: Parts) -> None:
    async def scenario(leader: Leader, _: States) -> None:
        await leader.load(KEY)
        waiting = asyncio.ensure_future(leader.begin_fetch("m", wait_s=600).run())
        await asyncio.sleep(0)
        parts.append(b"a", b"b")
        assert acquired(await waiting) == [(0, 1, 1)]
        waiting = asyncio.ensure_future(leader.begin_fetch("n", wait_s=600).run())
        await asyncio.sleep(0)
        await leader.acknowledge("m", (1, 1, RELEASE))
        assert acquired(await waiting) == [(1, 1, 2)]

    run(parts, scenario)


def test_fetch_that_waits_has_what_is_there_in_the_end(parts: Parts) -> None:
    async def scenario(leader: Leader, _: States) -> None:
        parts.append(b"a")
        answers = await leader.fetch("m", min_bytes=1 << 20, wait_s=0.001)
        assert acquired(answers) == [(0, 0, 1)]
        assert acquired(await leader.fetch("m", wait_s=0.001)) == []

    run(parts, scenario)


def test_one_fetch_at_a_time_reads_a_partition(parts: Parts) -> None:
    async def scenario(leader: Leader, _: States) -> None:
        parts.append(b"a", b"b")
        parts.tier_everything()
        await leader.load(KEY)
        first = asyncio.ensure_future(leader.begin_fetch("m").run())
        await asyncio.sleep(0)
        second = asyncio.ensure_future(leader.begin_fetch("n", wait_s=600).run())
        await asyncio.sleep(0)
        assert len(parts.remote.reads) == 1
        parts.append(b"c", index=1)  # not one of theirs
        ((offset, _, answer),) = parts.remote.reads
        assert offset == 0
        answer.set_exception(CoordinatorNotAvailableError("stands for the store"))
        assert (await first)[KEY].error_code != 0
        await until(lambda: len(parts.remote.reads) == 2)
        second.cancel()

    run(parts, scenario)


def test_history_is_waited_for_off_the_event_loop(parts: Parts) -> None:
    """While the remote tier does not answer, other partitions and sessions are served."""

    async def scenario(leader: Leader, _: States) -> None:
        parts.append(b"a", b"b")
        parts.tier_everything()
        parts.append(b"c", index=1)
        await leader.load(KEY, OTHER_KEY)
        begun = leader.begin_fetch("m", wait_s=600)
        assert begun.answers_at_once() is None
        history = asyncio.ensure_future(begun.run())
        await until(lambda: len(parts.remote.reads) == 1)
        tail = leader.begin_fetch("n", [OTHER_KEY]).answers_at_once()
        assert tail is not None
        assert [tuple(each) for each in tail[OTHER_KEY].acquired] == [(0, 0, 1)]
        assert not history.done()
        # What is read at a time is bounded by the member's request, whatever the tier has.
        ((_, size_max, _),) = parts.remote.reads
        assert size_max <= 1 << 20
        history.cancel()

    run(parts, scenario)


def test_fetch_reads_little_more_than_the_member_takes(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    read_at = OsFile.read_at

    def noted(file: OsFile, position: int, size: int) -> Any:
        content = read_at(file, position, size)
        sizes.append(len(content))
        return content

    monkeypatch.setattr(OsFile, "read_at", noted)

    async def scenario(leader: Leader, _: States) -> None:
        for _ in range(300):
            parts.append(*[b"v" * 1000] * 10)
        await leader.fetch("m", record_count_max=10, batch_size=10, max_bytes=1 << 30)
        sizes.clear()
        again = await leader.fetch("n", record_count_max=10, batch_size=10, max_bytes=1 << 30)
        assert acquired(again) == [(10, 19, 1)]
        assert sum(sizes) < 2 * READ_SIZE_MIN
        # More is read where the client waits for more.
        fetch = leader.begin_fetch(
            "o",
            record_count_max=10,
            batch_size=10,
            min_bytes=4 * READ_SIZE_MIN,
            max_bytes=8 * READ_SIZE_MIN,
            wait_s=600,
        )
        running = asyncio.ensure_future(fetch.run())
        await asyncio.sleep(0)
        assert running.done()
        assert acquired(running.result()) == [(20, 29, 1)]

    run(parts, scenario)


def test_release_at_the_end_of_a_session(parts: Parts) -> None:
    async def scenario(leader: Leader, states: States) -> None:
        parts.append(b"a", b"b")
        member = MemberKey("g", "m")
        leader.sessions.fetch(member, 0, {KEY: "t"}, (), "c", has_acknowledgements=False)
        await leader.fetch("m")
        leader.manager.connection_closed("c")
        await leader.manager.get(KEY).written()
        assert states.states[KEY].snapshot.batches == ((0, 1, 1, 0),)
        # Without a member here, the group has no share partition here.
        await until(lambda: len(leader.manager) == 0)
        assert acquired(await leader.fetch("n")) == [(0, 1, 2)]

    run(parts, scenario)


def test_failed_write_gives_records_back_to_the_member(parts: Parts) -> None:
    async def scenario(leader: Leader, states: States) -> None:
        parts.append(b"a")
        await leader.fetch("m")
        states.error = CoordinatorNotAvailableError("away")
        with pytest.raises(CoordinatorNotAvailableError):
            await leader.acknowledge("m", (0, 0, ACCEPT))
        states.error = None
        await leader.acknowledge("m", (0, 0, ACCEPT))
        assert states.states[KEY].snapshot.batches == ((0, 0, 1, 2),)

    run(parts, scenario)


def test_fenced_state_ends_the_share_partition(parts: Parts) -> None:
    async def scenario(leader: Leader, states: States) -> None:
        parts.append(b"a")
        await leader.fetch("m")
        waiting = asyncio.ensure_future(leader.begin_fetch("n", wait_s=600).run())
        await asyncio.sleep(0)
        states.error = FencedStateEpochError("a newer state")
        with pytest.raises(NotLeaderOrFollowerError):
            await leader.acknowledge("m", (0, 0, ACCEPT))
        assert (await waiting)[KEY].error_code == 6
        with pytest.raises(UnknownTopicOrPartitionError):
            leader.acknowledge("m", (0, 0, ACCEPT))

    run(parts, scenario)


def test_deleted_topic_ends_its_share_partitions(parts: Parts) -> None:
    async def scenario(leader: Leader, _: States) -> None:
        parts.append(b"a")
        await leader.fetch("m")
        waiting = asyncio.ensure_future(leader.begin_fetch("n", wait_s=600).run())
        await asyncio.sleep(0)
        delete_topic(parts.replica_manager, "t")
        leader.manager.follow(
            MetadataChange(cast("Any", None), deleted=(led_topic("t", TOPIC_ID, {0: 3}),))
        )
        assert (await waiting)[KEY].error_code != 0
        await asyncio.sleep(0)
        assert len(leader.manager) == 0
        with pytest.raises(UnknownTopicOrPartitionError):
            leader.manager.get(KEY)

    run(parts, scenario)


@pytest.mark.parametrize(
    ("reset", "offset"),
    [("earliest", 0), ("latest", 3), ("by_duration:PT60S", 2), ("by_duration:PT1S", 3)],
)
def test_group_without_a_state_begins_where_its_configuration_says(
    parts: Parts, reset: str, offset: int
) -> None:
    async def scenario(leader: Leader, states: States) -> None:
        states.begin(KEY, -1)
        now_ms = parts.clock.now_ms()
        for age_ms, value in ((300_000, b"a"), (200_000, b"b"), (50_000, b"c")):
            parts.append(value, timestamp_ms=now_ms - age_ms)
        await leader.load(KEY)
        parts.append(b"d")
        assert acquired(await leader.fetch("m"))[0][0] == offset

    run(parts, scenario, share_auto_offset_reset=reset)


class Work:
    """Random members at random leaders, and what was promised to them."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.accepted: set[int] = set()
        self.perhaps_accepted: set[int] = set()
        self.deliveries: Counter[int] = Counter()
        self.held: dict[str, list[tuple[int, int]]] = {}
        self.locks: dict[int, tuple[str, int]] = {}

    async def fetch(self, leader: Leader, member: str) -> None:
        rng = self.rng
        answers = await leader.fetch(
            member,
            record_count_max=rng.choice([1, 3, 10, 500]),
            batch_size=rng.choice([1, 5, 500]),
            is_record_limit=rng.random() < 0.3,
        )
        now_ms = leader.parts.clock.now_ms()
        for first, last, count in acquired(answers):
            assert count <= DELIVERY_COUNT_MAX
            self.held.setdefault(member, []).append((first, last))
            for offset in range(first, last + 1):
                assert offset not in self.accepted, "an accepted record was delivered again"
                holder, end_ms = self.locks.get(offset, ("", 0))
                assert end_ms <= now_ms, (offset, holder)
                self.locks[offset] = member, now_ms + LOCK_MS
                self.deliveries[offset] += 1

    async def acknowledge(self, leader: Leader, member: str, kind: int) -> None:
        held = self.held.get(member, [])
        if not held:
            return
        first, last = held.pop(self.rng.randrange(len(held)))
        try:
            await leader.acknowledge(member, (first, last, kind))
        except (InvalidRecordStateError, UnknownTopicOrPartitionError):
            return  # the lock has ended, or the leader is another one
        except CoordinatorNotAvailableError:
            held.append((first, last))
            if kind == ACCEPT:
                # It may be written all the same; the next leader knows.
                self.perhaps_accepted |= set(range(first, last + 1))
            return
        for offset in range(first, last + 1):
            self.locks.pop(offset, None)
        if kind == ACCEPT:
            self.accepted |= set(range(first, last + 1))


class RandomWork:
    """Steps of members, and changes of the leader."""

    def __init__(self, parts: Parts, states: States, leader: Leader, work: Work) -> None:
        self._parts = parts
        self._states = states
        self.leader = leader
        self._work = work
        self._rng = states.rng = work.rng
        self._left = COUNT

    async def step(self) -> None:
        rng, work, leader = self._rng, self._work, self.leader
        roll, member = rng.random(), rng.choice("abc")
        if roll < 0.15:
            self.append(rng.randrange(1, 9))
        elif roll < 0.5:
            await work.fetch(leader, member)
        elif roll < 0.85:
            kind = rng.choice([ACCEPT, ACCEPT, RELEASE])
            await asyncio.gather(
                work.acknowledge(leader, member, kind), work.acknowledge(leader, "a", ACCEPT)
            )
        elif roll < 0.93:
            self._parts.clock.advance(rng.choice([1000, 10_000, 31_000]))
            leader.manager.expire_locks()
        elif roll < 0.97:
            # Another leader knows what is written, and no lock.
            await leader.manager.stop()
            self.leader = Leader(self._parts, self._states)
            work.held.clear()
            work.locks.clear()

    def append(self, size: int) -> None:
        size = min(size, self._left)
        self._left -= size
        if size:
            self._parts.append(*[b"v"] * size)

    async def finish(self) -> None:
        """One member takes all that is left, one lock after the other."""
        self.append(COUNT)
        self._states.rng = None
        for _ in range(COUNT * DELIVERY_COUNT_MAX):
            self._parts.clock.advance(31_000)
            self.leader.manager.expire_locks()
            await self.leader.manager.get_or_begin(KEY).written()
            self._work.held.clear()
            await self._work.fetch(self.leader, "a")
            for _ in tuple(self._work.held.get("a", ())):
                await self._work.acknowledge(self.leader, "a", ACCEPT)


@pytest.mark.parametrize("seed", range(12))
def test_every_record_is_processed_and_none_again_after_its_answer(parts: Parts, seed: int) -> None:
    async def scenario(leader: Leader, states: States) -> None:
        work = Work(seed)
        random_work = RandomWork(parts, states, leader, work)
        for _ in range(150):
            await random_work.step()
        await random_work.finish()
        manager = random_work.leader.manager
        window = manager.get(KEY).window
        assert (window.start_offset, window.batch_count) == (COUNT, 0)
        tried_to_the_end = {
            offset for offset, times in work.deliveries.items() if times >= DELIVERY_COUNT_MAX
        }
        assert work.accepted | work.perhaps_accepted | tried_to_the_end >= set(range(COUNT))
        await manager.stop()

    run(parts, scenario)
