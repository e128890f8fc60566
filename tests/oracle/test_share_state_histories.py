"""Both brokers' share coordinators get the same random requests: they give the same answers, and
write the same records.

Kafka's records are decoded and encoded again by Isotherm, which gives the same bytes. Topic ids and
times of the two brokers differ.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.shares.share_state_records import (
    SharePartitionKey,
    ShareSnapshot,
    decode_record,
    encode_record,
)
from isotherm.protocol.api_keys import ApiKey
from isotherm.testing.embedded_broker import EmbeddedBroker
from oracle.kafka import EAGER_SETTINGS, running_kafka
from oracle.raw_requests import ask, outcomes, read_answer, request_frame
from tests.support.conditions import wait_until

E = ErrorCode
STEPS = 120
PARTITIONS = 3
SETTINGS = {
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.snapshot.update.records.per.snapshot": "3",
}
STATE_TOPIC = "__share_group_state"
NOT_YET = {E.coordinator_not_available, E.coordinator_load_in_progress, E.not_coordinator}


class Server:
    """One of the two brokers."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        admin = AdminClient({"bootstrap.servers": bootstrap_servers})
        admin.create_topics([NewTopic("t", PARTITIONS)])["t"].result(300)
        asked = {"topic_id": str(uuid.UUID(int=0)), "name": "t"}

        def is_shown() -> bool:
            self.topic_id = str(self.call("METADATA", 12, topics=[asked]).topics[0].topic_id)
            return self.topic_id != "None"

        wait_until(is_shown, "the topic")
        key = SharePartitionKey("first", uuid.UUID(self.topic_id), 0).coordinator_key

        def is_available() -> bool:
            found = self.call("FIND_COORDINATOR", 6, key_type=2, coordinator_keys=[key])
            answers = outcomes(found).values()
            return all(answer.error_code == E.none for answer in answers) and not (
                {each[1] for each in self.initialize("first", 0, 0, 0)} & NOT_YET
            )

        wait_until(is_available, "the share coordinator")

    def call(self, api: str, version: int, **fields: Any) -> Any:
        payload = ask(self.bootstrap_servers, request_frame(ApiKey[api], version, fields))
        assert isinstance(payload, bytes), payload
        return read_answer(ApiKey[api], version, payload)

    def _answers(self, api: str, version: int, group: str, *entries: dict[str, Any]) -> Any:
        topic_id = self.topic_id
        if any(entry["partition"] == 99 for entry in entries):
            topic_id = str(uuid.UUID(int=5))
        topics = [{"topic_id": topic_id, "partitions": list(entries)}]
        answer = self.call(api, version, group_id=group, topics=topics)
        return sorted(
            (
                partition.partition,
                partition.error_code,
                partition.error_message is None,
                *(
                    repr(getattr(partition, name, None))
                    for name in (
                        "state_epoch",
                        "leader_epoch",
                        "start_offset",
                        "delivery_complete_count",
                        "state_batches",
                    )
                ),
            )
            for result in answer.results
            for partition in result.partitions
        )

    def initialize(self, group: str, partition: int, state_epoch: int, start_offset: int) -> Any:
        entry = {"partition": partition, "state_epoch": state_epoch, "start_offset": start_offset}
        return self._answers("INITIALIZE_SHARE_GROUP_STATE", 0, group, entry)

    def read(self, group: str, partition: int, leader_epoch: int) -> Any:
        entry = {"partition": partition, "leader_epoch": leader_epoch}
        return self._answers("READ_SHARE_GROUP_STATE", 0, group, entry)

    def summary(self, group: str, version: int, partition: int, leader_epoch: int) -> Any:
        entry = {"partition": partition, "leader_epoch": leader_epoch}
        return self._answers("READ_SHARE_GROUP_STATE_SUMMARY", version, group, entry, entry)

    def write(self, group: str, version: int, partition: int, *fields: Any) -> Any:
        state_epoch, leader_epoch, start_offset, count, batches = fields
        entry = {
            "partition": partition,
            "state_epoch": state_epoch,
            "leader_epoch": leader_epoch,
            "start_offset": start_offset,
            "state_batches": [
                dict(
                    zip(
                        ("first_offset", "last_offset", "delivery_state", "delivery_count"),
                        batch,
                        strict=True,
                    )
                )
                for batch in batches
            ],
        }
        if version >= 1:
            entry["delivery_complete_count"] = count
        return self._answers("WRITE_SHARE_GROUP_STATE", version, group, entry)

    def delete(self, group: str, partition: int) -> Any:
        return self._answers("DELETE_SHARE_GROUP_STATE", 0, group, {"partition": partition})

    def records(self) -> list[tuple[bytes, bytes | None]]:
        consumer = Consumer({"bootstrap.servers": self.bootstrap_servers, "group.id": "reader"})
        partition = TopicPartition(STATE_TOPIC, 0, 0)
        _, end = consumer.get_watermark_offsets(partition, timeout=300)
        consumer.assign([partition])
        records: list[tuple[bytes, bytes | None]] = []
        while len(records) < end:
            for message in consumer.consume(end - len(records), 60):
                assert message.error() is None
                records.append((message.key(), message.value()))
        consumer.close()
        return records


@pytest.fixture(scope="module")
def servers(
    kafka_tools: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, Server]]:
    """Kafka's broker and ours."""
    kafka_directory = tmp_path_factory.mktemp("kafka")
    with (
        running_kafka(kafka_directory, {**EAGER_SETTINGS, **SETTINGS}) as kafka,
        EmbeddedBroker(tmp_path_factory.mktemp("isotherm"), SETTINGS) as isotherm,
    ):
        yield Server(kafka.bootstrap_server), Server(isotherm.bootstrap_servers)


def random_step(rng: random.Random, prefix: str) -> tuple[Any, ...]:
    group = prefix + rng.choice(["a", "a", "b:c"])
    partition = rng.choice([*range(PARTITIONS)] * 4 + [PARTITIONS, -1, 99])
    leader_epoch = rng.choice([-1, -1, 0, 0, 1, 2])
    state_epoch = rng.choice([-1, -1, 0, 0, 0, 1])
    batches = []
    for _ in range(rng.choice([0, 1, 1, 2, 3])):
        first = rng.randrange(40)
        last = first + rng.randrange(10)
        batches.append((first, last, rng.choice([0, 2, 4]), rng.randrange(1, 4)))
    start_offset = rng.choice([-1, -1, -1, rng.randrange(20)])
    count = rng.choice([-1, 0, 3])
    writing = (partition, state_epoch, leader_epoch, start_offset, count, batches)
    steps: list[tuple[Any, ...]] = [
        ("initialize", group, partition, rng.choice([-1, 0, 0, 1]), rng.choice([-1, 0, 5])),
        *[("write", group, rng.choice([0, 1, 1]), *writing)] * 5,
        *[("read", group, partition, leader_epoch)] * 2,
        ("summary", group, rng.choice([0, 1]), partition, leader_epoch),
    ]
    if rng.random() < 0.3:
        steps.append(("delete", group, partition))
    return rng.choice(steps)


@pytest.mark.parametrize("seed", range(4))
def test_share_states_are_answered_as_kafka_answers(
    servers: tuple[Server, Server], seed: int
) -> None:
    rng = random.Random(seed)
    history = []
    for _ in range(STEPS):
        method, *arguments = random_step(rng, f"seed-{seed}-")
        expected, found = (getattr(server, method)(*arguments) for server in servers)
        history.append((method, *arguments, expected))
        assert found == expected, "\n".join(map(str, history[-25:]))


def test_share_states_are_written_as_kafka_writes_them(servers: tuple[Server, Server]) -> None:
    rng = random.Random(100)
    for _ in range(STEPS):
        method, *arguments = random_step(rng, "written-")
        for server in servers:
            getattr(server, method)(*arguments)
    shown = []
    for server in servers:
        records = server.records()
        decoded = []
        for key, value in records:
            record = decode_record(key, value)
            assert record is not None
            assert encode_record(record) == (key, value)
            assert record.key.topic_id == uuid.UUID(server.topic_id)
            named = record.key._replace(topic_id=uuid.UUID(int=0))
            state = record.value
            if isinstance(state, ShareSnapshot):
                state = state._replace(create_timestamp_ms=0, write_timestamp_ms=0)
            if named.group_id.startswith("written-"):
                decoded.append((named, state))
        shown.append(decoded)
    kafka, isotherm = shown
    assert len(kafka) > STEPS // 3
    assert isotherm == kafka


def test_what_names_no_share_partition_is_refused(servers: tuple[Server, Server]) -> None:
    texts = ["g", "g:t:0", "", ":", "a:b:c:d", " :{}:0", "g:{}:x", "g:{}:", "g:{}:0:", "g:{}:-3",
             "g:h:{}:0", "g:{}:0000000", "g::{}:0", ":{}:0", "g:{}::0", "g\n:{}:+1"]  # fmt: skip
    answers = []
    for server in servers:
        named = SharePartitionKey("", uuid.UUID(server.topic_id), 0).coordinator_key.split(":")[1]
        keys = [text.format(named) for text in texts]
        found = server.call("FIND_COORDINATOR", 6, key_type=2, coordinator_keys=keys)
        answers.append([coordinator.error_code for coordinator in found.coordinators])
    assert dict(zip(texts, answers[1], strict=True)) == dict(zip(texts, answers[0], strict=True))
