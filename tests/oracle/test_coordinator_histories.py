"""Both brokers' coordinators get the same random requests, and must give the same answers.

Requests are raw and many of them wrong: old epochs, members that left, mixed protocols. Ids and
epochs from a broker are used with that broker alone. Requests are repeated while the code says "try
again": Kafka ends transactions and loads coordinators asynchronously.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.errors import ErrorCode

from isotherm.protocol.api_keys import ApiKey
from isotherm.record.batch import build_batch
from isotherm.testing.embedded_broker import EmbeddedBroker
from oracle.kafka import EAGER_SETTINGS, running_kafka
from oracle.raw_requests import ask, outcomes, read_answer, request_frame
from tests.support.conditions import go_on_for

E = ErrorCode
STEPS = 60
# Divisible by any number of members up to five, so that all shares are equal.
PARTITIONS = 60
AGAIN_MAX, AGAIN_AFTER_S = 100, 0.05
COME_AGAIN = {
    E.coordinator_load_in_progress,
    E.coordinator_not_available,
    E.not_coordinator,
    E.concurrent_transactions,
    E.not_enough_replicas,
}
# What runs out on one broker before the other, on a slow machine, would be a difference.
LONGEST_MS = 1_800_000
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "group.consumer.max.session.timeout.ms": str(LONGEST_MS),
    "group.consumer.session.timeout.ms": str(LONGEST_MS),
    "transaction.max.timeout.ms": str(LONGEST_MS),
}
AT_ONCE = {
    **SETTINGS,
    "group.consumer.min.assignment.interval.ms": "0",
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.assignor.offload.enable": "false",
}


class Server:
    """One of the two brokers, with small numbers in place of its producer ids."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        admin = AdminClient({"bootstrap.servers": bootstrap_servers})
        admin.create_topics([NewTopic("t", PARTITIONS)])["t"].result(300)
        for key_type in (0, 1):
            self.call("FIND_COORDINATOR", 4, key_type=key_type, coordinator_keys=["x"])
        asked = {"topic_id": str(uuid.UUID(int=0)), "name": "t"}
        self.topic_id = str(self.call("METADATA", 12, topics=[asked]).topics[0].topic_id)
        self._producer_ids: dict[int, int] = {}

    def call(self, api: str, version: int, **fields: Any) -> Any:
        for attempt in range(AGAIN_MAX):
            if attempt:
                go_on_for(AGAIN_AFTER_S)
            payload = ask(self.bootstrap_servers, request_frame(ApiKey[api], version, fields))
            assert isinstance(payload, bytes), payload
            answer = read_answer(ApiKey[api], version, payload)
            if not COME_AGAIN & set(codes(answer)):
                break
        return answer

    def number_of(self, producer_id: int) -> int | None:
        if producer_id < 0:
            return None
        return self._producer_ids.setdefault(producer_id, len(self._producer_ids))


def codes(answer: Any) -> list[E]:
    """Every error code of a response."""
    return sorted({E(outcome.error_code) for outcome in outcomes(answer).values()})


@pytest.fixture(scope="module")
def servers(
    kafka_tools: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, Server]]:
    """Kafka's broker and ours."""
    kafka_directory = tmp_path_factory.mktemp("kafka")
    with (
        running_kafka(kafka_directory, {**EAGER_SETTINGS, **AT_ONCE}) as kafka,
        EmbeddedBroker(tmp_path_factory.mktemp("isotherm"), SETTINGS) as isotherm,
    ):
        yield Server(kafka.bootstrap_server), Server(isotherm.bootstrap_servers)


# ---- transactions


class ProducerState(NamedTuple):
    producer_id: int = -1
    epoch: int = -1


class Transactions:
    """Producers of one server.

    Each step is a method, and its result must be the same for both servers.
    """

    def __init__(self, server: Server, prefix: str) -> None:
        self._server = server
        self._prefix = prefix
        self._producers: dict[str, ProducerState] = {}
        self._sequences: dict[tuple[int, int, int], int] = {}

    def _producer(self, name: str, delta: int) -> dict[str, int]:
        producer_id, epoch = self._producers.get(name, ProducerState())
        return {"producer_id": producer_id, "producer_epoch": epoch + delta}

    def init(self, name: str, named: str) -> Any:
        producer_id, epoch = self._producers.get(name, ProducerState())
        expected = {
            "nothing": ProducerState(),
            "current": ProducerState(producer_id, epoch),
            "epoch before": ProducerState(producer_id, epoch - 1),
            "another": ProducerState(producer_id + 1000, 0),
        }[named]
        if min(expected) < 0:
            expected = ProducerState()
        answer = self._server.call(
            "INIT_PRODUCER_ID",
            5,
            transactional_id=self._prefix + name,
            transaction_timeout=LONGEST_MS,
            producer_id=expected.producer_id,
            producer_epoch=expected.epoch,
        )
        return self._given(name, answer)

    def _given(self, name: str, answer: Any) -> Any:
        if answer.error_code is not E.none:
            return answer.error_code
        self._producers[name] = ProducerState(answer.producer_id, answer.producer_epoch)
        return self._server.number_of(answer.producer_id), answer.producer_epoch

    def add(self, name: str, version: int, partitions: list[int], delta: int) -> Any:
        fields = self._producer(name, delta) | {"transactional_id": self._prefix + name}
        fields |= {"topics": [{"name": "t", "partitions": partitions}]}
        legacy = {f"v3_and_below_{key}": value for key, value in fields.items()}
        return codes(self._server.call("ADD_PARTITIONS_TO_TXN", version, **legacy))

    def add_offsets(self, name: str, version: int, delta: int) -> Any:
        fields = self._producer(name, delta) | {"transactional_id": self._prefix + name}
        answer = self._server.call(
            "ADD_OFFSETS_TO_TXN", version, group_id=f"{self._prefix}g", **fields
        )
        return answer.error_code

    def commit_offsets(self, name: str, version: int, member_id: str, delta: int) -> Any:
        offset = {"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}
        fields = self._producer(name, delta) | {"transactional_id": self._prefix + name}
        answer = self._server.call(
            "TXN_OFFSET_COMMIT",
            version,
            group_id=f"{self._prefix}g",
            generation_id=3 if member_id else -1,
            member_id=member_id,
            topics=[{"name": "t", "partitions": [offset]}],
            **fields,
        )
        return codes(answer)

    def produce(self, name: str, version: int, partition: int, delta: int, ahead: int) -> Any:
        producer = self._producer(name, delta)
        if min(producer.values()) < 0:
            return None
        key = (*producer.values(), partition)
        sequence = max(0, self._sequences.get(key, 0) + ahead)
        batch = build_batch(
            [(1_700_000_000_000, b"k", b"v", ())],
            base_sequence=sequence,
            is_transactional=True,
            **producer,
        )
        produced = {"index": partition, "records": batch.hex()}
        answer = self._server.call(
            "PRODUCE",
            version,
            transactional_id=self._prefix + name,
            acks=-1,
            timeout=5000,
            topic_data=[{"name": "t", "partition_data": [produced]}],
        )
        if codes(answer) == [E.none] and ahead == 0:
            self._sequences[key] = sequence + 1
        return codes(answer)

    def end(self, name: str, version: int, committed: bool, delta: int) -> Any:
        fields = self._producer(name, delta) | {"transactional_id": self._prefix + name}
        answer = self._server.call("END_TXN", version, committed=committed, **fields)
        return answer.error_code if version < 5 else self._given(name, answer)


def transaction_step(rng: random.Random) -> tuple[Any, ...]:
    name, delta = rng.choice("xy"), rng.choice([0] * 8 + [-1, 1])
    steps: list[tuple[Any, ...]] = [
        ("init", name, rng.choice(["nothing"] * 3 + ["current"] * 2 + ["epoch before", "another"])),
        *[("add", name, rng.choice([0, 3]), rng.choice([[0], [0, 1], [0, 99]]), delta)] * 2,
        ("add_offsets", name, rng.choice([0, 3, 4]), delta),
        ("commit_offsets", name, rng.choice([3, 4, 5]), rng.choice(["", "", "nobody"]), delta),
        *[("end", name, rng.choice([1, 4, 5, 5]), rng.random() < 0.6, delta)] * 2,
        *[("produce", name, rng.choice([9, 11, 12, 12]), rng.choice([0, 1]), delta,
           rng.choice([0] * 7 + [1]))] * 2,
    ]  # fmt: skip
    return rng.choice(steps)


@pytest.mark.parametrize("seed", range(5))
def test_transactions_are_answered_as_kafka_answers(
    servers: tuple[Server, Server], seed: int
) -> None:
    rng = random.Random(seed)
    kafka, isotherm = (Transactions(server, f"seed-{seed}-") for server in servers)
    history = []
    for _ in range(STEPS):
        method, *arguments = transaction_step(rng)
        expected = getattr(kafka, method)(*arguments)
        history.append((method, *arguments, expected))
        assert getattr(isotherm, method)(*arguments) == expected, "\n".join(map(str, history[-25:]))


# ---- groups of both protocols


class Member:
    """A member as its server knows it; a classic member gets its id from the join."""

    def __init__(self, member_id: str) -> None:
        self.member_id = member_id
        self.epoch = 0
        self.assigned: frozenset[int] = frozenset()


class Group:
    """A group of one server. `z` is always a member, by the consumer protocol."""

    def __init__(self, server: Server, group_id: str, *, is_static: bool) -> None:
        self._server = server
        self._group_id = group_id
        self._is_static = is_static
        self._modern: dict[str, Member] = {}
        self._classic: dict[str, Member] = {}

    def _instance(self, name: str) -> str | None:
        return name if self._is_static and name != "z" else None

    def _member(self, name: str) -> Member:
        member_id = str(uuid.uuid5(uuid.NAMESPACE_DNS, name))
        return self._modern.setdefault(name, Member(member_id))

    def beat(self, name: str, delta: int | None, owned: str) -> Any:
        """Send a heartbeat; a join if `delta` is None."""
        member = self._member(name)
        epoch = 0 if delta is None else member.epoch + delta
        is_full = epoch == 0
        has = {"current": member.assigned, "nothing": frozenset()}.get(owned)
        if is_full:
            has = frozenset()
        topics = [{"topic_id": self._server.topic_id, "partitions": sorted(has)}] if has else []
        answer = self._server.call(
            "CONSUMER_GROUP_HEARTBEAT",
            1,
            group_id=self._group_id,
            member_id=member.member_id,
            member_epoch=epoch,
            instance_id=self._instance(name) if is_full else None,
            rebalance_timeout=LONGEST_MS if is_full else -1,
            subscribed_topic_names=["t"] if is_full else None,
            topic_partitions=None if has is None else topics,
        )
        if answer.error_code is not E.none:
            return answer.error_code
        member.epoch = answer.member_epoch
        if answer.assignment is not None:
            member.assigned = frozenset(
                index for topic in answer.assignment.topic_partitions for index in topic.partitions
            )
        return member.epoch

    def leave(self, name: str, epoch: int) -> Any:
        answer = self._server.call(
            "CONSUMER_GROUP_HEARTBEAT",
            1,
            group_id=self._group_id,
            member_id=self._member(name).member_id,
            member_epoch=epoch,
            instance_id=self._instance(name),
            rebalance_timeout=-1,
            topic_partitions=None,
        )
        if answer.error_code is E.none:
            del self._modern[name]
        return answer.error_code

    def join_classic(self, name: str, version: int, protocol: str) -> Any:
        known = self._classic.get(name, Member(""))
        fields: dict[str, Any] = {"member_id": known.member_id}
        if version >= 5:
            fields["group_instance_id"] = self._instance(name)
        # Version 0 of the subscription: it owns nothing when it joins.
        offered = {"name": protocol, "metadata": "000000000001000174ffffffff"}
        for _ in range(2):
            answer = self._server.call(
                "JOIN_GROUP",
                version,
                group_id=self._group_id,
                session_timeout=LONGEST_MS,
                rebalance_timeout=LONGEST_MS,
                protocol_type="consumer",
                protocols=[offered],
                **fields,
            )
            if answer.error_code is not E.member_id_required:
                break
            fields["member_id"] = answer.member_id
        if answer.error_code is not E.none:
            return answer.error_code
        joined = self._classic[name] = Member(answer.member_id)
        joined.epoch = answer.generation_id
        return answer.generation_id, answer.protocol_name, bool(answer.leader), answer.members

    def _asking(self, name: str, delta: int) -> dict[str, Any]:
        member = self._classic.get(name, Member("nobody"))
        return {
            "group_id": self._group_id,
            "member_id": member.member_id,
            "generation_id": member.epoch + delta,
            "group_instance_id": self._instance(name),
        }

    def sync(self, name: str, delta: int, protocol_type: str, protocol_name: str) -> Any:
        answer = self._server.call(
            "SYNC_GROUP",
            5,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            **self._asking(name, delta),
        )
        return answer.error_code

    def heartbeat(self, name: str, delta: int) -> Any:
        return self._server.call("HEARTBEAT", 4, **self._asking(name, delta)).error_code

    def leave_classic(self, name: str) -> Any:
        asking = self._asking(name, 0)
        member = {key: asking[key] for key in ("member_id", "group_instance_id")}
        answer = self._server.call("LEAVE_GROUP", 5, group_id=self._group_id, members=[member])
        if codes(answer) == [E.none]:
            self._classic.pop(name, None)
        return codes(answer)

    def remove(self, name: str, version: int, named: str) -> Any:
        """As an operator does: members of either protocol, by what is known of them."""
        member = self._modern.get(name) or self._classic.get(name) or Member("nobody")
        identity = {
            "member id": (member.member_id, None),
            "instance id": ("", self._instance(name)),
            "both": (member.member_id, self._instance(name)),
            "of another": (member.member_id, "z"),
        }[named]
        member_id, instance_id = identity
        asked = {"member_id": member_id, "group_instance_id": instance_id}
        fields = {"members": [asked]} if version >= 3 else {"member_id": member_id}
        return codes(self._server.call("LEAVE_GROUP", version, group_id=self._group_id, **fields))

    def commit(self, name: str, version: int, delta: int, *, is_classic: bool) -> Any:
        members = self._classic if is_classic else self._modern
        member = members.get(name, Member("nobody"))
        offset = {"partition_index": 0, "committed_offset": 3, "committed_metadata": ""}
        topic = {"topic_id": self._server.topic_id} if version >= 10 else {"name": "t"}
        answer = self._server.call(
            "OFFSET_COMMIT",
            version,
            group_id=self._group_id,
            member_id=member.member_id,
            generation_id_or_member_epoch=member.epoch + delta,
            topics=[{**topic, "partitions": [offset]}],
        )
        return codes(answer)

    def fetch(self, name: str, version: int, delta: int) -> Any:
        member = self._modern.get(name, Member("nobody"))
        asked: dict[str, Any] = {"group_id": self._group_id, "topics": None}
        if version >= 9:
            asked |= {"member_id": member.member_id, "member_epoch": member.epoch + delta}
        return codes(self._server.call("OFFSET_FETCH", version, groups=[asked]))


def group_step(rng: random.Random) -> tuple[Any, ...]:
    name, delta, version = rng.choice("ab"), rng.choice([0] * 7 + [-1, 1]), rng.choice([8, 9, 10])
    owned = rng.choice(["current", "current", "nothing", "absent"])
    protocol = rng.choice(["range"] * 6 + ["roundrobin"])
    steps: list[tuple[Any, ...]] = [
        *[("beat", "z", 0, "current")] * 2,
        *[("beat", name, delta, owned)] * 4,
        *[("beat", name, None, "nothing")] * 2,
        ("leave", name, rng.choice([-1, -1, -2])),
        *[("join_classic", name, rng.choice([4, 5, 9]), protocol)] * 3,
        *[("sync", name, delta, rng.choice(["consumer"] * 5 + ["connect"]), protocol)] * 2,
        *[("heartbeat", name, delta)] * 2,
        ("leave_classic", name),
        (
            "remove",
            name,
            rng.choice([0, 2, 3, 5, 5, 5]),
            rng.choice(["member id", "instance id", "both", "of another"]),
        ),
        ("fetch", name, version, delta),
    ]
    return rng.choice(steps)


@pytest.mark.parametrize("is_static", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_groups_of_both_protocols_are_answered_as_kafka_answers(
    servers: tuple[Server, Server],
    seed: int,
    is_static: bool,
) -> None:
    """The comparison ends when the assignors give equal shares of different partitions: from then
    on members revoke at different times.
    """
    rng = random.Random(seed)
    group_id = f"seed-{seed}-{is_static}"
    kafka, isotherm = (Group(server, group_id, is_static=is_static) for server in servers)
    history: list[tuple[Any, ...]] = []
    for number in range(STEPS):
        method, *arguments = group_step(rng) if number else ("beat", "z", None, "nothing")
        expected = getattr(kafka, method)(*arguments)
        found = getattr(isotherm, method)(*arguments)
        history.append((method, *arguments, expected))
        if found != expected and _depends_on_shares(expected) and _depends_on_shares(found):
            break
        assert found == expected, "\n".join(map(str, history[-25:]))
        for version, is_classic in ((8, False), (9, False), (10, True)):
            asked = {"is_classic": is_classic}
            committed = [each.commit("a", version, 0, **asked) for each in (kafka, isotherm)]
            assert committed[0] == committed[1], (version, is_classic, history[-25:])
    assert len(history) >= 5


# ---- what an operator asks of groups in every state


class Groups:
    """Makes groups of one server, and asks about them.

    `fill_*` leave a group in the state of that name.
    """

    def __init__(self, server: Server) -> None:
        self._server = server

    def fill_nothing(self, group_id: str) -> None:
        pass

    def fill_simple(self, group_id: str) -> None:
        self.commit(group_id, "t", 0)

    def fill_classic_joining(self, group_id: str) -> None:
        Group(self._server, group_id, is_static=True).join_classic("i", 5, "range")

    def fill_classic_stable(self, group_id: str) -> None:
        group = Group(self._server, group_id, is_static=True)
        group.join_classic("i", 5, "range")
        group.sync("i", 0, "consumer", "range")

    def fill_classic_empty(self, group_id: str) -> None:
        self.fill_classic_stable(group_id)
        self.leave(group_id, 5, "", "i")

    def fill_consumer_stable(self, group_id: str) -> None:
        Group(self._server, group_id, is_static=True).beat("i", None, "nothing")

    def fill_consumer_away(self, group_id: str) -> None:
        group = Group(self._server, group_id, is_static=True)
        group.beat("i", None, "nothing")
        group.leave("i", -2)

    def fill_consumer_empty(self, group_id: str) -> None:
        group = Group(self._server, group_id, is_static=False)
        group.beat("i", None, "nothing")
        group.leave("i", -1)

    def fill_mixed(self, group_id: str) -> None:
        group = Group(self._server, group_id, is_static=True)
        group.beat("i", None, "nothing")
        group.join_classic("j", 5, "range")

    def commit(self, group_id: str, topic: str, partition: int) -> Any:
        offset = {"partition_index": partition, "committed_offset": 3, "committed_metadata": ""}
        topics = [{"name": topic, "partitions": [offset]}]
        asked = {"group_id": group_id, "generation_id_or_member_epoch": -1, "member_id": ""}
        return codes(self._server.call("OFFSET_COMMIT", 9, **asked, topics=topics))

    def leave(self, group_id: str, version: int, member_id: str, instance_id: str | None) -> Any:
        asked = {"member_id": member_id, "group_instance_id": instance_id}
        fields = {"members": [asked]} if version >= 3 else {"member_id": member_id}
        answer = self._server.call("LEAVE_GROUP", version, group_id=group_id, **fields)
        each = [member.error_code for member in answer.members] if version >= 3 else []
        return answer.error_code, each

    def describe(self, group_id: str) -> Any:
        classic = self._server.call("DESCRIBE_GROUPS", 6, groups=[group_id]).groups[0]
        asked = {"group_ids": [group_id]}
        consumer = self._server.call("CONSUMER_GROUP_DESCRIBE", 1, **asked).groups[0]
        return (
            (classic.error_code, classic.group_state, classic.protocol_type, classic.protocol_data),
            sorted(
                (member.group_instance_id or "", bool(member.member_assignment))
                for member in classic.members
            ),
            (consumer.error_code, consumer.group_state, consumer.assignor_name),
            # Kafka's order is that of a hash map of the members' ids, which are random.
            sorted((member.instance_id or "", member.member_type) for member in consumer.members),
        )

    def list(self, group_id: str, states: list[str], types: list[str]) -> Any:
        answer = self._server.call("LIST_GROUPS", 5, states_filter=states, types_filter=types)
        return answer.error_code, [
            (group.protocol_type, group.group_state.lower(), group.group_type.lower())
            for group in answer.groups
            if group.group_id == group_id
        ]

    def fetch(self, group_id: str, version: int) -> Any:
        asked: dict[str, Any] = {"group_id": group_id, "topics": None}
        if version >= 9:
            asked |= {"member_id": None, "member_epoch": -1}
        (group,) = self._server.call("OFFSET_FETCH", version, groups=[asked]).groups
        offsets = [
            (topic.name, partition.partition_index, partition.committed_offset)
            for topic in group.topics
            for partition in topic.partitions
        ]
        return group.error_code, offsets

    def delete_offsets(self, group_id: str) -> Any:
        topics = [
            {
                "name": name,
                "partitions": [{"partition_index": partition} for partition in partitions],
            }
            for name, partitions in (("t", (0, 99)), ("none", (0,)))
        ]
        answer = self._server.call("OFFSET_DELETE", 0, group_id=group_id, topics=topics)
        return answer.error_code, sorted(
            (topic.name, partition.partition_index, partition.error_code)
            for topic in answer.topics
            for partition in topic.partitions
        )

    def delete(self, group_id: str) -> Any:
        answer = self._server.call("DELETE_GROUPS", 2, groups_names=[group_id, group_id + "-none"])
        return sorted((result.group_id, result.error_code) for result in answer.results)


# In this order; the later ones change the group.
ADMIN_CALLS: list[tuple[Any, ...]] = [
    ("describe",),
    ("list", [], []),
    *[("list", [each], []) for each in (
        "Stable", "empty", "Dead", "preparingRebalance", "CompletingRebalance", "Assigning",
        "reconciling", "none")],
    *[("list", [], [each]) for each in ("classic", "Consumer", "share", "streams", "none")],
    ("list", ["Stable", "Empty"], ["consumer"]),
    ("fetch", 8),
    ("fetch", 9),
    ("leave", 5, "", None),
    ("leave", 5, "nobody", None),
    ("leave", 5, "", "nobody"),
    ("leave", 3, "nobody", "i"),
    *[("leave", version, "nobody", None) for version in range(5)],
    ("delete_offsets",),
    ("commit", "t", 0),
    ("commit", "t", 99),
    ("commit", "none", 0),
    ("delete",),
    ("leave", 4, "", "i"),
    ("leave", 4, "", "i"),
    ("describe",),
    ("commit", "t", 1),
    ("fetch", 9),
    ("delete_offsets",),
    ("delete",),
    ("delete",),
    ("describe",),
    ("list", [], []),
    ("fetch", 9),
]  # fmt: skip
FILLED = ("nothing", "simple", "classic_joining", "classic_stable", "classic_empty",
          "consumer_stable", "consumer_away", "consumer_empty", "mixed")  # fmt: skip


@pytest.mark.parametrize("state", FILLED)
def test_operators_calls_on_groups_are_answered_as_kafka_answers(
    servers: tuple[Server, Server], state: str
) -> None:
    kafka, isotherm = map(Groups, servers)
    for each in (kafka, isotherm):
        getattr(each, f"fill_{state}")(f"in-{state}")
    for method, *arguments in ADMIN_CALLS:
        expected, found = (
            getattr(each, method)(f"in-{state}", *arguments) for each in (kafka, isotherm)
        )
        assert found == expected, (method, *arguments)


def _depends_on_shares(result: Any) -> bool:
    """Whether the result depends on the assignment: an epoch, or a code that tells whether to
    rejoin.
    """
    return isinstance(result, int | tuple) and (
        not isinstance(result, E) or result in (E.none, E.rebalance_in_progress)
    )
