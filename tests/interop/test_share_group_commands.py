"""`isotherm groups` shows share groups beside groups of consumers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.errors import ErrorCode
from typer.testing import CliRunner

from isotherm.cli.main import app
from isotherm.protocol.api_keys import ApiKey
from isotherm.testing.embedded_broker import EmbeddedBroker
from oracle.raw_requests import ask, read_answer, request_frame
from tests.support.conditions import wait_until

E = ErrorCode


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path, {"offsets.topic.num.partitions": "1"}) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        admin.create_topics([NewTopic("t", 2)])["t"].result(300)
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        for index in range(5):
            producer.produce("t", str(index), partition=1)
        assert producer.flush(300) == 0
        yield broker


def call(broker: EmbeddedBroker, api: str, version: int, **fields: Any) -> Any:
    payload = ask(broker.bootstrap_servers, request_frame(ApiKey[api], version, fields))
    assert isinstance(payload, bytes), payload
    return read_answer(ApiKey[api], version, payload)


def shown(broker: EmbeddedBroker, *arguments: str) -> Any:
    command = ["groups", *arguments, "-b", broker.bootstrap_servers, "--json"]
    result = CliRunner().invoke(app, command, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.output.splitlines()]


def test_share_groups_are_listed_and_described(broker: EmbeddedBroker) -> None:
    assert shown(broker, "list") == []
    entry = {"partition_index": 1, "start_offset": 2}
    topics = [{"topic_name": "t", "partitions": [entry]}]
    altered = call(broker, "ALTER_SHARE_GROUP_OFFSETS", 0, group_id="queue", topics=topics)
    assert altered.error_code is E.none
    assert shown(broker, "list") == [{"group": "queue", "state": "empty", "type": "share"}]
    second = {"topic": "t", "partition": 1, "start_offset": 2, "lag": 3}
    assert shown(broker, "describe", "queue") == [second]
    joined = call(
        broker,
        "SHARE_GROUP_HEARTBEAT",
        1,
        group_id="queue",
        member_id="m",
        member_epoch=0,
        subscribed_topic_names=["t"],
    )
    assert joined.error_code is E.none
    assert shown(broker, "list") == [{"group": "queue", "state": "stable", "type": "share"}]
    first = {"topic": "t", "partition": 0, "start_offset": None, "lag": None}
    wait_until(
        lambda: shown(broker, "describe", "queue") == [first, second], "the states", timeout_s=60
    )
