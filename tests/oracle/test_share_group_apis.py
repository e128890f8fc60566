"""Both brokers' share groups get the same random requests of members and of administrators, and
must give the same answers.

As in `test_share_group_histories`, which of equal shares a member gets differs: of an assignment
its size is compared. States are begun while a heartbeat is answered already, so the history goes on
when both brokers show the states that its subscriptions need.
"""

from __future__ import annotations

import dataclasses
import random
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.errors import ErrorCode

from isotherm.protocol.api_keys import ApiKey
from isotherm.testing.embedded_broker import EmbeddedBroker
from oracle.kafka import EAGER_SETTINGS, running_kafka
from oracle.raw_requests import ask, outcomes, read_answer, request_frame
from tests.support.conditions import go_on_for, wait_until

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

E = ErrorCode
STEPS = 60
# Divisible by any number of members, so that all shares are equal.
PARTITIONS = 12
TOPICS = ("t", "u")
RECORDS = 7
MEMBERS = "abcd"
AGAIN_MAX, AGAIN_AFTER_S = 100, 0.05
COME_AGAIN = {E.coordinator_load_in_progress, E.coordinator_not_available, E.not_coordinator}
SETTINGS = {
    "offsets.topic.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.share.max.size": "3",
    "group.share.max.share.sessions": "10",
    # The test's own pace removes no member.
    "group.share.session.timeout.ms": "3600000",
    "group.share.max.session.timeout.ms": "3600000",
    "group.share.assignment.interval.ms": "0",
    "group.share.min.assignment.interval.ms": "0",
}


class Server:
    """One of the two brokers."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._servers = bootstrap_servers
        admin = AdminClient({"bootstrap.servers": bootstrap_servers})
        for created in admin.create_topics(
            [NewTopic(name, PARTITIONS) for name in TOPICS]
        ).values():
            created.result(300)
        self.call("FIND_COORDINATOR", 6, key_type=0, coordinator_keys=["x"])
        producer = Producer({"bootstrap.servers": bootstrap_servers})
        for index in range(RECORDS):
            producer.produce("t", str(index), partition=1)
        assert producer.flush(300) == 0
        asked = [{"topic_id": str(uuid.UUID(int=0)), "name": name} for name in TOPICS]
        self._names: dict[uuid.UUID, str] = {}

        def are_shown() -> bool:
            topics = self.call("METADATA", 12, topics=asked).topics
            self._names = {topic.topic_id: topic.name for topic in topics if topic.topic_id}
            return len(self._names) == len(TOPICS)

        wait_until(are_shown, "the topics")

    def call(self, api: str, version: int, **fields: Any) -> Any:
        for attempt in range(AGAIN_MAX):
            if attempt:
                go_on_for(AGAIN_AFTER_S)
            payload = ask(self._servers, request_frame(ApiKey[api], version, fields))
            assert isinstance(payload, bytes), payload
            answer = read_answer(ApiKey[api], version, payload)
            if not COME_AGAIN & {E(outcome.error_code) for outcome in outcomes(answer).values()}:
                break
        return answer

    def shown(self, message: Any) -> Any:
        """The answer with names in place of topics' ids, and without an order of its lists."""
        if isinstance(message, tuple):
            return sorted((self.shown(each) for each in message), key=repr)
        if not dataclasses.is_dataclass(message):
            return message
        fields = {
            field.name: getattr(message, field.name)
            for field in dataclasses.fields(message)
            # Texts for people.
            if field.name not in ("throttle_time", "error_message")
        }
        if "topic_id" in fields:
            fields["topic_id"] = self._names.get(fields["topic_id"])
        if fields.get("assignment") is not None:
            topics = fields["assignment"].topic_partitions
            fields["assignment"] = sum(len(topic.partitions) for topic in topics)
        return {name: self.shown(value) for name, value in fields.items()}

    def initialized(self, group_id: str) -> set[str]:
        """The topics whose partitions all have states."""
        answer = self.call(
            "DESCRIBE_SHARE_GROUP_OFFSETS", 1, groups=[{"group_id": group_id, "topics": None}]
        )
        (group,) = answer.groups
        return {topic.topic_name for topic in group.topics if len(topic.partitions) == PARTITIONS}


@pytest.fixture(scope="module")
def servers(
    kafka_tools: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, Server]]:
    """Kafka's broker and ours."""
    directory = tmp_path_factory.mktemp("kafka")
    with (
        running_kafka(directory, {**EAGER_SETTINGS, **SETTINGS}) as kafka,
        EmbeddedBroker(tmp_path_factory.mktemp("isotherm"), SETTINGS) as isotherm,
    ):
        yield Server(kafka.bootstrap_server), Server(isotherm.bootstrap_servers)


class History:
    """Requests to both."""

    def __init__(self, servers: tuple[Server, Server], group_id: str) -> None:
        self._servers = servers
        self.group_id = group_id
        self.epochs = dict.fromkeys(MEMBERS, 0)
        self._initialized: set[str] = set()
        self._sizes: dict[str, list[Any]] = {}
        self._steps: list[Any] = []

    def call(self, api: str, version: int, **fields: Any) -> Any:
        """Kafka's answer, which ours equals."""
        answers = [server.call(api, version, **fields) for server in self._servers]
        shown = [
            server.shown(answer) for server, answer in zip(self._servers, answers, strict=True)
        ]
        if api == "SHARE_GROUP_HEARTBEAT":
            self._compare_sizes(fields["member_id"], shown)
        self._steps.append((api, fields, shown[0]))
        assert shown[1] == shown[0], "\n".join(map(str, self._steps[-15:]))
        return answers[0]

    def _compare_sizes(self, member: str, shown: list[Any]) -> None:
        """Who gets as many partitions as before may get other ones, and only of those is told."""
        before = self._sizes.get(member, [None, None])
        sizes = [each["assignment"] for each in shown]
        if sizes.count(None) == 1:
            for side, each in enumerate(shown):
                if each["assignment"] is None:
                    each["assignment"] = before[side]
        self._sizes[member] = [
            before[side] if size is None else size for side, size in enumerate(sizes)
        ]

    def beat(self, member: str, epoch: int, names: Any = None, **fields: Any) -> Any:
        answer = self.call(
            "SHARE_GROUP_HEARTBEAT",
            1,
            **{
                "group_id": self.group_id,
                "member_id": member,
                "member_epoch": epoch,
                "subscribed_topic_names": names,
                **fields,
            },
        )
        if answer.error_code is E.none and member in self.epochs:
            self.epochs[member] = max(0, answer.member_epoch)
            self._initialized.update(set(names or ()).intersection(TOPICS))
            self.wait()
        return answer

    def wait(self) -> None:
        for server in self._servers:
            wait_until(
                lambda server=server: server.initialized(self.group_id) >= self._initialized,
                "the states",
            )

    def describe(self) -> Any:
        self.call(
            "SHARE_GROUP_DESCRIBE",
            1,
            group_ids=[self.group_id, "none", ""],
            include_authorized_operations=False,
        )
        self.call("LIST_GROUPS", 5, states_filter=[], types_filter=["share"])
        # Kafka asks half a minute long for the state of a partition that does not exist.
        named = [{"topic_name": name, "partitions": [0, 1]} for name in (*TOPICS, "missing")]
        asked = [
            {"group_id": self.group_id, "topics": None},
            {"group_id": self.group_id, "topics": named},
            {"group_id": "none", "topics": named[:1]},
            {"group_id": self.group_id, "topics": []},
            {"group_id": "none", "topics": None},
        ]
        for version in (0, 1):
            for group in asked:
                self.call("DESCRIBE_SHARE_GROUP_OFFSETS", version, groups=[group])

    def alter(self, offsets: dict[str, dict[int, int]]) -> Any:
        topics = [
            {
                "topic_name": name,
                "partitions": [
                    {"partition_index": index, "start_offset": offset}
                    for index, offset in of_topic.items()
                ],
            }
            for name, of_topic in offsets.items()
        ]
        return self.call("ALTER_SHARE_GROUP_OFFSETS", 0, group_id=self.group_id, topics=topics)

    def delete_offsets(self, *names: str) -> Any:
        topics = [{"topic_name": name} for name in names]
        answer = self.call("DELETE_SHARE_GROUP_OFFSETS", 0, group_id=self.group_id, topics=topics)
        if answer.error_code is E.none:
            self._initialized.difference_update(names)
        return answer

    def delete_group(self) -> E:
        answer = self.call("DELETE_GROUPS", 2, groups_names=[self.group_id])
        (result,) = answer.results
        if result.error_code is E.none:
            self._initialized.clear()
            self.epochs = dict.fromkeys(MEMBERS, 0)
        return E(result.error_code)


@pytest.mark.parametrize("seed", range(3))
def test_random_requests_are_answered_as_by_kafka(
    servers: tuple[Server, Server], seed: int
) -> None:
    rng = random.Random(seed)
    history = History(servers, f"seed-{seed}")
    for _ in range(STEPS):
        kind = rng.random()
        member = rng.choice(MEMBERS)
        epoch = history.epochs[member]
        names = rng.choice([["t"], ["u"], ["missing"]]) if epoch == 0 else None
        if kind < 0.5:
            history.beat(member, epoch, names)
        elif kind < 0.6:
            history.beat(member, rng.choice([-2, 99, epoch - 1, epoch + 1]))
        elif kind < 0.8:
            history.beat(member, -1)
        elif kind < 0.85:
            history.describe()
        elif kind < 0.92:
            history.alter({rng.choice(["t", "u", "missing"]): {1: rng.randrange(9), 99: 0}})
        elif kind < 0.97:
            history.delete_offsets(rng.choice(["t", "u", "missing"]))
        else:
            history.delete_group()
    history.describe()


def test_what_is_wrong_is_refused_as_by_kafka(servers: tuple[Server, Server]) -> None:
    history = History(servers, "wrong")
    for fields in (
        {"member_id": ""},
        {"member_id": "x" * 37},
        {"group_id": ""},
        {"rack_id": ""},
        {"subscribed_topic_names": []},
        {"subscribed_topic_names": None},
        {"member_epoch": -2},
        {"member_epoch": -1},
        {"member_epoch": 1},
    ):
        answer = history.beat("x", 0, ["t"], **fields)
        assert answer.error_code is not E.none, fields
    history.delete_offsets("t")
    assert history.delete_group() is E.group_id_not_found
    history.describe()
    for api in ("ALTER_SHARE_GROUP_OFFSETS", "DELETE_SHARE_GROUP_OFFSETS"):
        answer = history.call(api, 0, group_id="", topics=[])
        assert answer.error_code is E.invalid_group_id


def test_offsets_are_altered_described_and_deleted_as_by_kafka(
    servers: tuple[Server, Server],
) -> None:
    history = History(servers, "offsets")
    history.alter({"t": {1: 2, 99: 0}, "missing": {0: 0}})
    history.describe()
    (group,) = (
        servers[1]
        .call("DESCRIBE_SHARE_GROUP_OFFSETS", 1, groups=[{"group_id": "offsets", "topics": None}])
        .groups
    )
    ((partition,),) = (topic.partitions for topic in group.topics)
    assert (partition.start_offset, partition.lag) == (2, RECORDS - 2)
    history.beat("a", 0, ["t", "u"])
    history.beat("a", history.epochs["a"])
    history.describe()
    # A group with members is not changed.
    assert history.alter({"t": {1: 7}}).error_code is E.non_empty_group
    assert history.delete_offsets("t").error_code is E.non_empty_group
    assert history.delete_group() is E.non_empty_group
    history.beat("a", -1)
    history.alter({"t": {1: 4}, "u": {2: 0}})
    history.describe()
    history.delete_offsets("t", "missing")
    history.describe()
    history.delete_offsets("t", "u")
    assert history.delete_group() is E.none
    history.describe()
    history.beat("b", 5)
    history.beat("b", 0, ["u"])
    history.beat("b", history.epochs["b"])
    history.describe()
