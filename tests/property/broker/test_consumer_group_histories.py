"""Random histories of a consumer group: no partition has two owners, and every partition has one
once all members have followed their assignments. A replay of the group's records restores the
group."""

from __future__ import annotations

import uuid
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from isotherm.broker.coordinators.groups import consumer_replay
from isotherm.broker.coordinators.groups.consumer_group import ConsumerGroup, ConsumerGroupSettings
from isotherm.broker.coordinators.groups.group_records import (
    decode_record,
    encode_key,
    encode_value,
)
from isotherm.broker.coordinators.groups.member_heartbeat import (
    MemberHeartbeat,
    MemberRejectedError,
)
from isotherm.broker.coordinators.groups.topic_catalog import TopicCatalog

SETTINGS = ConsumerGroupSettings(session_timeout_ms=1000, heartbeat_interval_ms=100, max_size=4)
TOPIC_IDS = {"a": uuid.UUID(int=1), "b": uuid.UUID(int=2), "c": uuid.UUID(int=3)}

SLOT = st.integers(0, 4)
NAMES = st.frozensets(st.sampled_from("abc"), min_size=1)
STEPS = st.one_of(
    st.tuples(st.just("join"), SLOT, NAMES, st.sampled_from([None, "uniform", "range"])),
    st.tuples(st.just("beat"), SLOT, st.booleans()),
    st.tuples(st.just("beat"), SLOT, st.booleans()),
    st.tuples(st.just("subscribe"), SLOT, NAMES),
    st.tuples(st.just("leave"), SLOT, st.booleans()),
    st.tuples(st.just("time"), st.integers(0, 600)),
    st.tuples(st.just("topics"), st.fixed_dictionaries(dict.fromkeys("abc", st.integers(0, 5)))),
)


class Client:
    """The state that a well-behaved client keeps. Slots 3 and 4 are static members."""

    def __init__(self, slot: int, life: int) -> None:
        self.member_id = f"m{slot}.{life}"
        self.instance_id = f"i{slot}" if slot >= 3 else None
        self.epoch = 0
        self.owned: frozenset[Any] = frozenset()


class History:
    """Steps of clients and of time on one group, the records that they wrote, and the
    invariants."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.group = ConsumerGroup("g", SETTINGS)
        self.clients: dict[int, Client] = {}
        self.log: list[Any] = []
        self.lives = 0
        self.version = 0
        self.topics({"a": 2, "b": 3, "c": 0})

    def topics(self, counts: dict[str, int]) -> None:
        self.version += 1
        self.counts = {name: count for name, count in counts.items() if count}
        topics = {
            name: SimpleNamespace(topic_id=TOPIC_IDS[name], partitions=range(count))
            for name, count in self.counts.items()
        }
        image: Any = SimpleNamespace(end_offset=self.version, topics_by_name=topics)
        self.catalog = TopicCatalog(image)

    def join(self, slot: int, names: frozenset[str], assignor: str | None) -> None:
        self.lives += 1
        client = Client(slot, self.lives)
        if self._beat(client, names, assignor=assignor, timeout_ms=500):
            self.clients[slot] = client

    def subscribe(self, slot: int, names: frozenset[str]) -> None:
        if slot in self.clients:
            self._beat(self.clients[slot], names)

    def beat(self, slot: int, says_owned: bool) -> None:
        client = self.clients.get(slot)
        if client is not None and not self._beat(client, None, says_owned=says_owned):
            del self.clients[slot]

    def _beat(
        self,
        client: Client,
        names: frozenset[str] | None,
        *,
        says_owned: bool = True,
        assignor: str | None = None,
        timeout_ms: int = -1,
    ) -> bool:
        beat = MemberHeartbeat(
            client.member_id,
            client.epoch,
            instance_id=client.instance_id,
            rebalance_timeout_ms=timeout_ms,
            topic_names=names,
            server_assignor=assignor,
            owned=client.owned if says_owned else None,
        )
        changed = self.group.copy()
        try:
            result, records = changed.heartbeat(beat, self.catalog, self.now_ms, 7)
        except MemberRejectedError:
            return False
        assert result.epoch >= client.epoch
        client.epoch = result.epoch
        if result.assigned is not None:
            client.owned = result.assigned
        self._became(changed, records)
        return True

    def leave(self, slot: int, for_good: bool) -> None:
        client = self.clients.pop(slot, None)
        if client is None:
            return
        epoch = -1 if for_good or client.instance_id is None else -2
        changed = self.group.copy()
        try:
            _, records = changed.leave(client.member_id, client.instance_id, epoch)
        except MemberRejectedError:
            return
        self._became(changed, records)

    def time(self, ms: int) -> None:
        self.now_ms += ms
        changed = self.group.copy()
        self._became(changed, changed.expire(self.now_ms))
        due_ms = self.group.next_deadline_ms()
        assert due_ms is None or due_ms > self.now_ms

    def _became(self, changed: ConsumerGroup, records: list[Any]) -> None:
        self.log += [(encode_key(key), encode_value(value)) for key, value in records]
        self.group = changed
        self.check()

    def check(self) -> None:
        group = self.group
        held = [
            (partition, member.member_id)
            for member in group.members.values()
            for partition in member.held
        ]
        assert len(held) == len(dict(held))
        assert group.owners == dict(held)
        assert group.target_epoch <= group.group_epoch
        assert all(member.epoch <= group.target_epoch for member in group.members.values())
        targeted = [partition for assigned in group.target.values() for partition in assigned]
        assert len(targeted) == len(set(targeted))
        assert len(group.members) <= SETTINGS.max_size

    def settle(self) -> None:
        for _ in range(8):
            for slot in list(self.clients):
                self.beat(slot, True)


@settings(max_examples=100)
@given(st.lists(STEPS, max_size=50))
def test_partitions_have_one_holder_and_settle_with_subscribers(
    steps: list[tuple[Any, ...]],
) -> None:
    history = History()
    for step in steps:
        getattr(history, step[0])(*step[1:])
    # Let the sessions of members that stopped without leaving expire.
    for _ in range(12):
        history.time(100)
        history.settle()
    group = history.group
    assert set(group.members) == {client.member_id for client in history.clients.values()}
    assert group.shown_state == ("Stable" if history.clients else "Empty")
    subscribed = {name for member in group.members.values() for name in member.topic_names}
    assert set(group.owners) == {
        (TOPIC_IDS[name], index)
        for name in subscribed
        for index in range(history.counts.get(name, 0))
    }
    for client in history.clients.values():
        assert group.members[client.member_id].assigned == client.owned


@settings(max_examples=60)
@given(st.lists(STEPS, max_size=50))
def test_replayed_records_give_the_group_again(steps: list[tuple[Any, ...]]) -> None:
    history = History()
    for step in steps:
        getattr(history, step[0])(*step[1:])
    compacted: dict[bytes, bytes | None] = {}
    for key, value in history.log:
        # Compaction keeps the last record of each key, at its own place.
        compacted.pop(key, None)
        compacted[key] = value
    for log in (history.log, list(compacted.items())):
        replayed = ConsumerGroup("g", SETTINGS)
        for key, value in log:
            record = decode_record(key, value)
            assert record is not None
            consumer_replay.replay(replayed, record)
        replayed.resume(history.now_ms)
        for name in ("group_epoch", "target_epoch", "metadata_hash", "members", "owners"):
            assert getattr(replayed, name) == getattr(history.group, name), name
        targets = {id_: each for id_, each in history.group.target.items() if each}
        assert {id_: each for id_, each in replayed.target.items() if each} == targets
