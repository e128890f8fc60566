"""Listeners compared with Apache Kafka: accepted configurations, and the addresses given on each
listener.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource

from isotherm.config.server_properties import broker_key_names, parse_broker_config
from isotherm.errors import ConfigError
from isotherm.protocol.api_keys import ApiKey
from isotherm.testing.broker_process import BrokerProcess
from isotherm.testing.local_servers import free_ports
from oracle.configs import check_configs, default_texts, types_of_keys
from oracle.kafka import running_kafka
from oracle.raw_requests import ask, read_answer, request_frame
from oracle.topics import create_topic

RECORDED = Path(__file__).with_name("listener_configs.jsonl")

LISTENERS = ("PLAINTEXT", "INTERNAL", "EXTERNAL", "HIDDEN")
HOSTS = dict(zip(LISTENERS, ("127.0.0.1", "127.0.0.1", "127.0.0.2", "127.0.0.1"), strict=True))
TOLD = ("PLAINTEXT", "INTERNAL", "EXTERNAL")

# Keys that describe a node's addresses and roles.
DESCRIBED = (
    "advertised.listeners",
    "controller.listener.names",
    "controller.quorum.bootstrap.servers",
    "controller.quorum.voters",
    "inter.broker.listener.name",
    "listener.security.protocol.map",
    "listeners",
    "node.id",
    "process.roles",
    "security.inter.broker.protocol",
)

# A single broker cannot fulfil the defaults of these keys.
ONE_REPLICA = ("offsets.topic.replication.factor", "transaction.state.log.replication.factor")

ADDRESSES = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.quorum.bootstrap.servers": "127.0.0.1:9093",
    "controller.listener.names": "CONTROLLER",
    "listeners": "PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093",
}

# Listeners do not change while Isotherm runs; Kafka's do.
FIXED_HERE = ("listeners", "listener.security.protocol.map")


def test_recorded_answers_are_kafkas(kafka_tools: Path, tmp_path: Path) -> None:
    """The recorded answers that `tests/unit/config/test_listener.py` uses."""
    cases = [json.loads(line) for line in RECORDED.read_text().splitlines()]
    answers = check_configs(tmp_path, [case["properties"] for case in cases])
    assert {case["case"]: answer for case, answer in zip(cases, answers, strict=True)} == {
        case["case"]: case["kafka"] for case in cases
    }


def test_every_key_of_kafkas_is_known_and_takes_kafkas_default(
    kafka_tools: Path, caplog: pytest.LogCaptureFixture
) -> None:
    texts = default_texts()
    assert len(texts) > 250
    for name in ONE_REPLICA:
        assert texts.pop(name) == "3"
    # -1 means a generated id, which a node of a quorum cannot have.
    assert texts.pop("broker.id") == "-1"
    for name, text in texts.items():
        parse_broker_config({name: text})
    unknown = [text for text in caplog.messages if text.startswith("unknown configuration key")]
    assert unknown == []


NUMBERS = ("-2", "-1", "0", "0.5", "1", "100", "100000", "2147483647", "2147483648")
# A queue is bounded here in bytes that have arrived, so it may be smaller than a request.
MORE_THAN_KAFKA = {"queued.max.request.bytes": {"1", "100", "100000"}}
# Values with which Kafka starts, but does not do what the key is for.
NOT_POSITIVE, NEGATIVE = {"-2", "-1", "0"}, {"-2", "-1"}
LESS_THAN_KAFKA = {
    "initial.broker.registration.timeout.ms": NOT_POSITIVE,
    "broker.heartbeat.interval.ms": NOT_POSITIVE,
    "broker.session.timeout.ms": NOT_POSITIVE,
    "server.max.startup.time.ms": {"0"},
    "controller.quorum.request.timeout.ms": {"0"},
    "controller.quorum.retry.backoff.ms": {"0"},
    "controller.socket.timeout.ms": NOT_POSITIVE,
    "socket.connection.setup.timeout.ms": NOT_POSITIVE,
    "default.replication.factor": NOT_POSITIVE,
    "replica.high.watermark.checkpoint.interval.ms": NOT_POSITIVE,
    "offset.metadata.max.bytes": NEGATIVE,
    "group.min.session.timeout.ms": NOT_POSITIVE | {"2147483647"},  # above the maximum
    "group.max.session.timeout.ms": NOT_POSITIVE | {"1", "100"},  # below the minimum
    "group.initial.rebalance.delay.ms": NEGATIVE,
    "log.cleaner.io.max.bytes.per.second": NOT_POSITIVE | {"0.5"},
    "log.cleaner.io.buffer.load.factor": NEGATIVE,
    "log.flush.interval.ms": NEGATIVE,
    "log.flush.scheduler.interval.ms": NOT_POSITIVE,
    "log.flush.offset.checkpoint.interval.ms": {"0"},
    "log.flush.start.offset.checkpoint.interval.ms": {"0"},
    "num.replica.alter.log.dirs.threads": NOT_POSITIVE,
    "sasl.server.max.receive.size": NOT_POSITIVE,
    "sasl.oauthbearer.clock.skew.seconds": NEGATIVE,
    "sasl.oauthbearer.jwks.endpoint.refresh.ms": NOT_POSITIVE,
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": NOT_POSITIVE,
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": NOT_POSITIVE,
    # Kafka refuses it when it creates the topic (KIP-1030).
    "offsets.topic.segment.bytes": {"1", "100", "100000"},
    "offsets.topic.num.partitions": {"100000", "2147483647"},
}


def test_numbers_are_refused_where_kafka_refuses_them(kafka_tools: Path, tmp_path: Path) -> None:
    numbers = {"SHORT", "INT", "LONG", "DOUBLE"}
    kafkas = {name for name, type_name in types_of_keys().items() if type_name in numbers}
    names = sorted({*broker_key_names()} & kafkas - {*ONE_REPLICA, "node.id", "broker.id"})
    assert len(names) > 150
    cases = [(name, text) for name in names for text in NUMBERS]
    node = {**ADDRESSES, **dict.fromkeys(ONE_REPLICA, "1")}
    answers = check_configs(tmp_path, [{**node, name: text} for name, text in cases])
    accepted, refused = defaultdict(set), defaultdict(set)
    for (name, text), answer in zip(cases, answers, strict=True):
        is_kafkas = "refused" not in answer
        if is_accepted({**node, name: text}) != is_kafkas:
            (refused if is_kafkas else accepted)[name].add(text)
    assert accepted == MORE_THAN_KAFKA
    assert refused == LESS_THAN_KAFKA


def is_accepted(texts: dict[str, str]) -> bool:
    try:
        parse_broker_config(texts)
    except ConfigError:
        return False
    return True


class Node:
    """A broker's addresses by listener, and its properties."""

    def __init__(self) -> None:
        *ports, controller = free_ports(len(LISTENERS) + 1)
        self.addresses = {
            name: f"{HOSTS[name]}:{port}" for name, port in zip(LISTENERS, ports, strict=True)
        }
        self.addresses["CONTROLLER"] = f"127.0.0.1:{controller}"
        self.properties = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller}",
            "controller.listener.names": "CONTROLLER",
            "listeners": ",".join(f"{name}://{at}" for name, at in self.addresses.items()),
            "advertised.listeners": ",".join(
                f"{name}://{self.addresses[name]}" for name in reversed(TOLD)
            ),
            "inter.broker.listener.name": "INTERNAL",
            "listener.security.protocol.map": ",".join(
                f"{name}:PLAINTEXT" for name in self.addresses
            ),
        }

    def ask(self, listener: str, api_key: int, version: int, **fields: Any) -> Any:
        """The broker's answer to a request on one listener."""
        answer = ask(self.addresses[listener], request_frame(api_key, version, fields))
        assert isinstance(answer, bytes)
        return read_answer(api_key, version, answer)

    def name_of(self, host: str, port: int) -> str:
        named = {address: name for name, address in self.addresses.items()}
        return named.get(f"{host}:{port}", f"{host}:{port}")


@pytest.fixture(scope="module")
def nodes(
    kafka_tools: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Node, Node]]:
    """A broker of Apache Kafka and one of Isotherm, configured alike, with a topic."""
    kafka, isotherm = Node(), Node()
    with ExitStack() as stack:
        directory = tmp_path_factory.mktemp("listeners")
        stack.enter_context(running_kafka(directory / "kafka", kafka.properties))
        config = directory / "server.properties"
        config.write_text("".join(f"{k}={v}\n" for k, v in isotherm.properties.items()))
        broker = BrokerProcess(directory / "isotherm", {}, config=config, presets={})
        stack.callback(broker.stop)
        for node in (kafka, isotherm):
            create_topic(node.addresses["PLAINTEXT"], "there", 1, {})
        yield kafka, isotherm


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.parametrize("version", [5, 6, 12])
def test_metadata_by_each_listener_is_kafkas(
    nodes: tuple[Node, Node], listener: str, version: int
) -> None:
    def settings_of(node: Node) -> Any:
        topics = [{"name": "there"}]
        answer = node.ask(listener, ApiKey.METADATA, version, topics=topics)
        (partition,) = answer.topics[0].partitions
        return (
            [(broker.node_id, node.name_of(broker.host, broker.port)) for broker in answer.brokers],
            (partition.error_code, partition.leader_id, partition.replica_nodes),
            (partition.isr_nodes, partition.offline_replicas),
        )

    kafka, isotherm = map(settings_of, nodes)
    assert isotherm == kafka
    assert kafka[0] == ([(1, listener)] if listener in TOLD else [])


@pytest.mark.parametrize("listener", LISTENERS)
def test_cluster_by_each_listener_is_kafkas(nodes: tuple[Node, Node], listener: str) -> None:
    def settings_of(node: Node) -> Any:
        answer = node.ask(listener, ApiKey.DESCRIBE_CLUSTER, 1, endpoint_type=1)
        brokers = [
            (broker.broker_id, node.name_of(broker.host, broker.port)) for broker in answer.brokers
        ]
        return answer.error_code, brokers

    kafka, isotherm = map(settings_of, nodes)
    assert isotherm == kafka


@pytest.mark.parametrize("listener", LISTENERS)
def test_partitions_by_each_listener_are_kafkas(nodes: tuple[Node, Node], listener: str) -> None:
    def settings_of(node: Node) -> Any:
        topics = [{"name": "there"}]
        fields = {"topics": topics, "response_partition_limit": 10}
        answer = node.ask(listener, ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, **fields)
        (partition,) = answer.topics[0].partitions
        return partition.error_code, partition.leader_id, partition.offline_replicas

    kafka, isotherm = map(settings_of, nodes)
    assert isotherm == kafka


@pytest.mark.parametrize("listener", LISTENERS)
def test_coordinator_by_each_listener_is_kafkas(nodes: tuple[Node, Node], listener: str) -> None:
    def settings_of(node: Node) -> Any:
        answer = node.ask(
            listener, ApiKey.FIND_COORDINATOR, 4, key_type=0, coordinator_keys=["readers"]
        )
        (found,) = answer.coordinators
        return found.error_code, found.node_id, node.name_of(found.host, found.port)

    for node in nodes:
        make_offsets_topic(node.addresses["PLAINTEXT"])
    kafka, isotherm = map(settings_of, nodes)
    assert isotherm == kafka


def make_offsets_topic(bootstrap_server: str) -> None:
    """Commit an offset:

    Kafka creates the topic when a client looks for a coordinator, and the client retries.
    """
    settings = {"bootstrap.servers": bootstrap_server, "group.id": "readers"}
    consumer = Consumer(settings)
    consumer.commit(offsets=[TopicPartition("there", 0, 0)], asynchronous=False)
    consumer.close()


def test_keys_of_the_listeners_are_described_as_kafkas(nodes: tuple[Node, Node]) -> None:
    def described(node: Node) -> dict[str, Any]:
        admin = AdminClient({"bootstrap.servers": node.addresses["PLAINTEXT"]})
        resource = ConfigResource(ConfigResource.Type.BROKER, "1")
        entries = admin.describe_configs([resource])[resource].result(300)
        settings_of = {}
        for name in DESCRIBED:
            entry = entries[name]
            synonyms = [synonym.name for synonym in entry.synonyms.values()]
            is_read_only = entry.is_read_only or name in FIXED_HERE
            settings_of[name] = (entry.value, entry.source, is_read_only, synonyms)
        text = json.dumps(settings_of)
        for name, address in node.addresses.items():
            text = text.replace(address, name)
        return json.loads(text)

    kafka, isotherm = map(described, nodes)
    assert isotherm == kafka
