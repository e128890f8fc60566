"""Requests of groups and transactions in any order, with ids and epochs that are right, old or made
up.

A few clients at once walk at random over both group protocols and the transactions of a broker. A
seed determines a walk, but not how the clients' requests interleave. The broker answers every
request in time and with an expected error; generations and epochs in its answers never go back; and
it keeps nothing once the clients are gone.
"""

from __future__ import annotations

import asyncio
import logging
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.apis.api_register import SERVED
from isotherm.broker.metadata.controller.topic_rules import NewTopic
from isotherm.errors import CoordinatorLoadInProgressError
from isotherm.protocol.api_keys import ApiKey
from isotherm.record.batch import build_batch
from isotherm.testing.embedded_broker import EmbeddedBroker
from oracle.raw_requests import read_answer, request_frame
from tests.support.conditions import loop_goes_on_for, wait_until

SETTINGS = {
    "group.initial.rebalance.delay.ms": "20",
    "group.min.session.timeout.ms": "50",
    "group.consumer.session.timeout.ms": "300",
    "group.consumer.min.session.timeout.ms": "300",
    "group.consumer.heartbeat.interval.ms": "50",
    "group.consumer.min.heartbeat.interval.ms": "50",
}
CLIENTS = 6
STEPS = 300
# The machine decides how the clients' requests interleave: one walk may find what another missed.
WALKS_MAX = 5
ANSWER_TIMEOUT_S = 300
GONE_TIMEOUT_S = 300
SESSION_MS, REBALANCE_MS, TRANSACTION_MS = 300, 200, 500
TOPICS = ("left", "right")
GROUPS = ("g1", "g2", "g3")
TRANSACTIONS = ("t1", "t2", "t3")
MADE_UP = ("", "nobody", "x" * 300)


@dataclass
class Known:
    """The ids, epochs and error codes of all answers so far, shared by all clients."""

    rng: random.Random
    # Group, member and its generation or epoch; transactional id, producer id and epoch.
    members: list[tuple[str, str, int]] = field(default_factory=lambda: [("g1", "nobody", 1)])
    producers: list[tuple[str, int, int]] = field(default_factory=lambda: [("t1", 4711, 0)])
    codes: dict[str, set[int]] = field(default_factory=dict)

    def never_went_well(self) -> set[str]:
        """The required APIs without a single success: a walk must get members of both protocols
        and producer ids.
        """
        apis = {"JOIN_GROUP", "CONSUMER_GROUP_HEARTBEAT", "INIT_PRODUCER_ID", "END_TXN"}
        return {api for api in apis if ErrorCode.none not in self.codes.get(api, ())}

    def member(self) -> tuple[str, str, int]:
        """A recent member, or a mixture of several members' ids and epochs with invented ones."""
        rng, recent = self.rng, self.members[-6:]
        if rng.random() < 0.6:
            return rng.choice(recent)
        group = rng.choice([*GROUPS, *MADE_UP])
        member_id = rng.choice([rng.choice(recent)[1], *MADE_UP])
        return group, member_id, rng.choice([rng.choice(recent)[2], -2, -1, 0, 1])

    def producer(self) -> dict[str, Any]:
        rng, recent = self.rng, self.producers[-6:]
        transactional_id, producer_id, epoch = rng.choice(recent)
        if rng.random() < 0.3:
            transactional_id = rng.choice([*TRANSACTIONS, *MADE_UP])
            producer_id = rng.choice([producer_id, -1, 4711])
            epoch = rng.choice([epoch, epoch + 1, max(epoch - 1, -1)])
        return {
            "transactional_id": transactional_id,
            "producer_id": producer_id,
            "producer_epoch": epoch,
        }

    def any_of(self, right: tuple[str, ...]) -> str:
        return self.rng.choice(right) if self.rng.random() < 0.95 else self.rng.choice(MADE_UP)


def partitions(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "partitions": [{"partition_index": 0, **fields}]}


OFFSET = {"committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}


def join_group(known: Known) -> dict[str, Any]:
    names = known.rng.choice([["range"], ["range", "sticky"], ["range"], []])
    group, member_id, _ = known.member()
    return {
        "group_id": group,
        "session_timeout": SESSION_MS,
        "rebalance_timeout": REBALANCE_MS,
        "member_id": known.rng.choice(["", member_id, member_id]),
        "group_instance_id": known.rng.choice([None, None, None, "i1"]),
        "protocol_type": known.rng.choice(["consumer"] * 8 + ["other", ""]),
        "protocols": [{"name": name, "metadata": ""} for name in names],
    }


def sync_group(known: Known) -> dict[str, Any]:
    group, member_id, generation = known.member()
    return {
        "group_id": group,
        "generation_id": generation,
        "member_id": member_id,
        "protocol_type": known.rng.choice(["consumer"] * 8 + ["other", None]),
        "protocol_name": known.rng.choice(["range"] * 8 + ["sticky", None]),
        "assignments": [{"member_id": known.member()[1], "assignment": "0000"}],
    }


def heartbeat(known: Known) -> dict[str, Any]:
    group, member_id, generation = known.member()
    return {
        "group_id": group,
        "generation_id": generation,
        "member_id": member_id,
        "group_instance_id": known.rng.choice([None, None, "i1"]),
    }


def leave_group(known: Known) -> dict[str, Any]:
    group, member_id, _ = known.member()
    others = [known.member()[1] for _ in range(known.rng.randint(0, 2))]
    return {"group_id": group, "members": [{"member_id": each} for each in (member_id, *others)]}


def consumer_group_heartbeat(known: Known) -> dict[str, Any]:
    rng = known.rng
    group, member_id, epoch = known.member()
    joins = rng.random() < 0.5
    return {
        "group_id": group,
        "member_id": member_id,
        "member_epoch": 0 if joins else epoch,
        "instance_id": rng.choice([None, None, None, "i1"]),
        "rebalance_timeout": REBALANCE_MS if joins else -1,
        "subscribed_topic_names": rng.choice([["left"], ["left", "right"], ["absent"], None]),
        "subscribed_topic_regex": rng.choice([None] * 6 + ["l.*", "("]),
        "server_assignor": rng.choice([None, "uniform", "range", "wish"]),
        "topic_partitions": rng.choice([[], [], None]),
    }


def offset_commit(known: Known) -> dict[str, Any]:
    group, member_id, epoch = known.member()
    return {
        "group_id": group,
        "generation_id_or_member_epoch": epoch,
        "member_id": member_id,
        "topics": [partitions(known.any_of(TOPICS), **OFFSET)],
    }


def offset_fetch(known: Known) -> dict[str, Any]:
    topics = known.rng.choice([None, [{"name": "left", "partition_indexes": [0, 9]}]])
    group = {"group_id": known.any_of(GROUPS), "member_id": None, "member_epoch": -1}
    return {"groups": [{**group, "topics": topics}], "require_stable": known.rng.random() < 0.5}


def init_producer_id(known: Known) -> dict[str, Any]:
    producer = {**known.producer(), "transaction_timeout": TRANSACTION_MS}
    if known.rng.random() < 0.6:
        producer |= {"producer_id": -1, "producer_epoch": -1}
    return {**producer, "transactional_id": known.any_of(TRANSACTIONS)}


def add_partitions(known: Known) -> dict[str, Any]:
    topics = [{"name": known.any_of(TOPICS), "partitions": [0]}]
    producer = {f"v3_and_below_{name}": value for name, value in known.producer().items()}
    return {**producer, "v3_and_below_topics": topics}


def add_offsets(known: Known) -> dict[str, Any]:
    return {**known.producer(), "group_id": known.any_of(GROUPS)}


def end_txn(known: Known) -> dict[str, Any]:
    return {**known.producer(), "committed": known.rng.random() < 0.5}


def txn_offset_commit(known: Known) -> dict[str, Any]:
    group, member_id, generation = known.rng.choice([known.member(), ("g1", "", -1)])
    return {
        **known.producer(),
        "group_id": group,
        "generation_id": generation,
        "member_id": member_id,
        "topics": [partitions("left", **OFFSET)],
    }


def produce(known: Known) -> dict[str, Any]:
    producer = known.producer()
    has_id = producer["producer_id"] >= 0
    batch = build_batch(
        [(1_700_000_000_000, b"k", b"v", ())],
        producer_id=producer["producer_id"],
        producer_epoch=producer["producer_epoch"] if has_id else -1,
        base_sequence=known.rng.choice([0, 0, 1, 2]) if has_id else -1,
        is_transactional=has_id and known.rng.random() < 0.8,
    )
    record = {"index": 0, "records": bytes(batch).hex()}
    return {
        "transactional_id": known.rng.choice([None, producer["transactional_id"]]),
        "acks": -1,
        "timeout": 1000,
        "topic_data": [{"name": known.any_of(TOPICS), "partition_data": [record]}],
    }


def groups_of(name: str) -> Callable[[Known], dict[str, Any]]:
    return lambda known: {name: [known.any_of(GROUPS) for _ in range(2)]}


# API -> first and last version that has these fields, the weight, and the fields.
REQUESTS: list[tuple[ApiKey, int, int, int, Callable[[Known], dict[str, Any]]]] = [
    (ApiKey.JOIN_GROUP, 5, 9, 6, join_group),
    (ApiKey.SYNC_GROUP, 5, 5, 6, sync_group),
    (ApiKey.HEARTBEAT, 3, 4, 4, heartbeat),
    (ApiKey.LEAVE_GROUP, 3, 5, 2, leave_group),
    (ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, 1, 10, consumer_group_heartbeat),
    (ApiKey.OFFSET_COMMIT, 8, 9, 4, offset_commit),
    (ApiKey.OFFSET_FETCH, 9, 9, 2, offset_fetch),
    (ApiKey.DELETE_GROUPS, 2, 2, 1, groups_of("groups_names")),
    (ApiKey.DESCRIBE_GROUPS, 5, 6, 1, groups_of("groups")),
    (ApiKey.CONSUMER_GROUP_DESCRIBE, 0, 1, 1, groups_of("group_ids")),
    (ApiKey.INIT_PRODUCER_ID, 3, 5, 6, init_producer_id),
    (ApiKey.ADD_PARTITIONS_TO_TXN, 0, 3, 6, add_partitions),
    (ApiKey.ADD_OFFSETS_TO_TXN, 0, 4, 3, add_offsets),
    (ApiKey.TXN_OFFSET_COMMIT, 3, 5, 3, txn_offset_commit),
    (ApiKey.END_TXN, 0, 5, 6, end_txn),
    (ApiKey.PRODUCE, 9, 12, 6, produce),
]

(SYNC,) = [request for request in REQUESTS if request[0] is ApiKey.SYNC_GROUP]


class Client:
    def __init__(self, known: Known, host: str, port: int) -> None:
        self._known = known
        self._address = (host, port)
        # The fields of the next SyncGroup, after a successful JoinGroup.
        self._joined: dict[str, Any] = {}

    async def walk(self) -> None:
        reader, writer = await asyncio.open_connection(*self._address)
        weights = [weight for *_, weight, _ in REQUESTS]
        for _ in range(STEPS):
            ((key, low, high, _, make),) = self._known.rng.choices(REQUESTS, weights)
            if self._joined and self._known.rng.random() < 0.7:
                key, low, high, _, make = SYNC
            version = self._known.rng.randint(low, min(high, SERVED[key].max))
            fields = make(self._known)
            if key is ApiKey.SYNC_GROUP:
                fields |= self._joined
            frame = request_frame(key, version, fields)
            writer.write(struct.pack(">i", len(frame)) + frame)
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                answer = read_answer(key, version, await reader.readexactly(size))
            self._learn(key, fields, answer)
        writer.close()
        await writer.wait_closed()

    def _learn(self, key: ApiKey, fields: dict[str, Any], answer: Any) -> None:
        known = self._known
        code = getattr(answer, "error_code", None)
        self._joined = {}
        if key is ApiKey.JOIN_GROUP and code is ErrorCode.none:
            self._joined = {
                "group_id": fields["group_id"],
                "member_id": answer.member_id,
                "generation_id": answer.generation_id,
                "protocol_type": fields["protocol_type"],
                "protocol_name": "range",
            }
        if code is not None:
            known.codes.setdefault(key.name, set()).add(int(code))
        if getattr(answer, "member_id", None):
            number = getattr(answer, "generation_id", getattr(answer, "member_epoch", 0))
            known.members.append((fields["group_id"], answer.member_id, number))
        if code is ErrorCode.none and getattr(answer, "producer_id", -1) >= 0:
            producer = (fields["transactional_id"], answer.producer_id, answer.producer_epoch)
            known.producers.append(producer)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker"), SETTINGS) as started:
        services = started.node.services
        new = [NewTopic(name=name, num_partitions=2) for name in TOPICS]
        services.control_executor.submit(services.controller.create_topics, new).result()
        yield started


def on_loop(broker: EmbeddedBroker, look: Callable[[], Any]) -> Any:
    """Call `look` on the broker's event loop and return its result."""

    async def asked() -> Any:
        return look()

    return asyncio.run_coroutine_threadsafe(asked(), broker.loop).result()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_whatever_the_order_requests_are_answered_and_nothing_is_left(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    known = Known(random.Random(seed))
    _, host, port = broker.node.endpoints[0]
    services = broker.node.services
    coordinator = services.transaction_coordinator
    epochs: dict[str, tuple[int, int]] = {}

    def transactions() -> list[Any]:
        try:
            return list(coordinator.transactions())
        except CoordinatorLoadInProgressError:
            return []

    async def watch() -> None:
        """No producer returns to an earlier epoch."""
        while True:
            for metadata in on_loop(broker, transactions):
                now = (metadata.producer_id, metadata.producer_epoch)
                assert now >= epochs.get(metadata.transactional_id, (-1, -1))
                epochs[metadata.transactional_id] = now
            await loop_goes_on_for(0.05)

    async def scenario() -> None:
        watching = asyncio.create_task(watch())
        for _ in range(WALKS_MAX):
            async with asyncio.TaskGroup() as group:
                for _ in range(CLIENTS):
                    group.create_task(Client(known, host, port).walk())
            if not known.never_went_well():
                break
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        assert watching.cancelled()

    with caplog.at_level(logging.ERROR, "isotherm.broker"):
        asyncio.run(scenario())
    assert [record.getMessage() for record in caplog.records] == []
    assert ErrorCode.unknown_server_error not in set().union(*known.codes.values())
    assert not known.never_went_well(), known.codes
    check_that_nothing_is_left(broker)


def check_that_nothing_is_left(broker: EmbeddedBroker) -> None:
    """Sessions and transactions time out; afterwards no group waits for a member."""
    services = broker.node.services

    def left() -> dict[str, Any]:
        groups = services.group_coordinator.all_groups()
        ongoing = services.transaction_coordinator.transactions()
        logs = [services.replica_manager.find_partition(name, None, 0).log for name in TOPICS]
        found = {
            "groups": {group.group_id: group.shown_state for group in groups},
            "transactions": {each.transactional_id: each.state.kafka_name for each in ongoing},
            "open": [log.log_end_offset - log.last_stable_offset for log in logs],
        }
        wrong = {
            "groups": {k: v for k, v in found["groups"].items() if v not in ("Empty", "Dead")},
            "transactions": {
                k: v
                for k, v in found["transactions"].items()
                if v not in ("Empty", "CompleteCommit", "CompleteAbort")
            },
            "open": [size for size in found["open"] if size],
        }
        return {name: each for name, each in wrong.items() if each}

    wait_until(
        lambda: on_loop(broker, left) == {},
        lambda: f"the end of {on_loop(broker, left)}",
        timeout_s=GONE_TIMEOUT_S,
    )
