"""Configuration files and variables of a combined node of Apache Kafka, and clients of each
listener.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from isotherm.testing.broker_process import BrokerDiedError, BrokerProcess
from isotherm.testing.local_servers import free_ports

COMPOSE_FILE = Path(__file__).parents[2] / "examples" / "from_kafka" / "docker-compose.yml"

# The keys of config/server.properties as Apache Kafka 4.3.1 ships it.
SHIPPED = """\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,\
SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/kraft-combined-logs
num.partitions=1
num.recovery.threads.per.data.dir=1
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
"""


@contextmanager
def serving(
    directory: Path, *, config: Path | None = None, environment: dict[str, str] | None = None
) -> Iterator[BrokerProcess]:
    broker = BrokerProcess(directory, {}, config=config, presets={}, environment=environment)
    try:
        yield broker
    finally:
        assert broker.stop() == 0


def listed_brokers(bootstrap_servers: str) -> list[tuple[str, int]]:
    found_brokers = (
        AdminClient({"bootstrap.servers": bootstrap_servers}).list_topics(timeout=300).brokers
    )
    return [(broker.host, broker.port) for broker in found_brokers.values()]


def described_nodes(bootstrap_servers: str) -> list[tuple[str, int]]:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    return [(node.host, node.port) for node in admin.describe_cluster().result(300).nodes]


def produce(bootstrap_servers: str, topic: str, value: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap_servers})
    producer.produce(topic, value)
    assert producer.flush(300) == 0


def consume_in_group(bootstrap_servers: str, topic: str) -> str:
    """The first record's value. The consumer finds its coordinator through the same listener."""
    settings = {"bootstrap.servers": bootstrap_servers, "group.id": bootstrap_servers}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        message = consumer.poll(300)
        assert message is not None
        assert message.error() is None
        consumer.commit(message, asynchronous=False)
        return message.value().decode()
    finally:
        consumer.close()


def test_file_that_kafka_ships_starts(tmp_path: Path) -> None:
    client_port, controller_port = free_ports(2)
    text = SHIPPED.replace("/tmp/kraft-combined-logs", str(tmp_path / "logs"))
    text = text.replace("9092", str(client_port)).replace("9093", str(controller_port))
    config = tmp_path / "server.properties"
    config.write_text(text)
    with serving(tmp_path, config=config) as broker:
        address = f"localhost:{client_port}"
        assert broker.bootstrap_servers == address
        assert listed_brokers(address) == [("localhost", client_port)]
        produce(address, "numbers", "one")
        assert consume_in_group(address, "numbers") == "one"
    assert broker.log_text.count("CONTROLLER") == 1
    note = "listener is not opened, the controller is in this process"
    assert f"{note} listener=CONTROLLER://:{controller_port}" in broker.log_text
    assert "unknown configuration key" not in broker.log_text
    assert (tmp_path / "logs" / "numbers-0").is_dir()


def variables_of(compose_file: Path) -> dict[str, str]:
    """The variables below `environment`, one in a line."""
    _, _, environment = compose_file.read_text().partition("    environment:\n")
    return dict(re.findall(r'^      ([A-Z_]+): "(.*)"$', environment, re.MULTILINE))


@pytest.fixture
def two_listeners(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """The addresses of INTERNAL and EXTERNAL, by the example's variables; other ports, hosts,
    folders.
    """
    inside, outside, controller = free_ports(3)
    environment = variables_of(COMPOSE_FILE)
    assert len(environment) > 10
    for ours, example in (
        (f"127.0.0.1:{inside}", "kafka:29092"),
        (f"127.0.0.2:{outside}", "localhost:9092"),
        (f":{inside}", ":29092"),
        (f":{outside}", ":9092"),
        (f":{controller}", ":9093"),
        (str(tmp_path), "/var/lib/isotherm"),
    ):
        assert any(example in text for text in environment.values())
        environment = {name: text.replace(example, ours) for name, text in environment.items()}
    with serving(tmp_path, environment=environment) as broker:
        assert "unknown configuration key" not in broker.log_text
        yield f"127.0.0.1:{inside}", f"127.0.0.2:{outside}"
    assert (tmp_path / "log" / "shared-0").is_dir()


def test_clients_get_the_address_of_their_listener(
    two_listeners: tuple[str, str],
) -> None:
    for address in two_listeners:
        host, port = address.split(":")
        assert listed_brokers(address) == [(host, int(port))]
        assert described_nodes(address) == [(host, int(port))]
    inside, outside = two_listeners
    produce(inside, "shared", "from inside")
    assert consume_in_group(outside, "shared") == "from inside"
    assert consume_in_group(inside, "shared") == "from inside"


def test_listener_without_a_mechanism_that_is_served_is_refused_in_one_line(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    environment = {
        "KAFKA_LISTENERS": f"PLAINTEXT://127.0.0.1:0,EXTERNAL://127.0.0.1:{port}",
        "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": "PLAINTEXT:PLAINTEXT,EXTERNAL:SASL_SSL",
        "COLUMNS": "40",
    }
    with pytest.raises(BrokerDiedError) as died:
        BrokerProcess(tmp_path, {}, presets={}, environment=environment)
    (line,) = died.value.log_lines
    assert f"listener=EXTERNAL://127.0.0.1:{port} mechanism=GSSAPI".encode() in line
