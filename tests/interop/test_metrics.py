"""What Prometheus sees of a broker that clients use."""

from __future__ import annotations

import re
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from isotherm.testing.embedded_broker import EmbeddedBroker

TIMEOUT_S = 120


@pytest.fixture
def broker(start_broker: Callable[..., EmbeddedBroker]) -> EmbeddedBroker:
    return start_broker({"prometheus.listener": "127.0.0.1:0"})


def url(broker: EmbeddedBroker, path: str = "/metrics") -> str:
    return f"http://127.0.0.1:{broker.node.metrics_port}{path}"


def samples(broker: EmbeddedBroker) -> dict[str, float]:
    with urllib.request.urlopen(url(broker), timeout=TIMEOUT_S) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        lines = answer.read().decode().splitlines()
    found = [re.fullmatch(r"(\S+) (\S+)", line) for line in lines if not line.startswith("#")]
    return {match[1]: float(match[2]) for match in found if match is not None}


def produce(broker: EmbeddedBroker, value: bytes, **settings: Any) -> bool:
    errors: list[Any] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, **settings})
    producer.produce(
        "t", value, timestamp=1_700_000_000_000, on_delivery=lambda e, _: errors.append(e)
    )
    assert producer.flush(TIMEOUT_S) == 0
    return errors[0] is None


def test_clients_move_kafkas_meters(broker: EmbeddedBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    config = {"max.message.bytes": "2000", "retention.ms": "-1"}
    admin.create_topics([NewTopic("t", 1, 1, config=config)])["t"].result(TIMEOUT_S)
    assert produce(broker, b"first")
    assert produce(broker, b"second")
    assert not produce(broker, bytes(3000), **{"message.max.bytes": 1_000_000})
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "none"})
    consumer.assign([TopicPartition("t", 0, 0)])
    assert len(consumer.consume(2, TIMEOUT_S)) == 2
    consumer.close()

    found = samples(broker)
    for labels in ('{topic="t"}', '{topic=""}'):

        def meter(name: str, labels: str = labels) -> float:
            return found[f"kafka_server_brokertopicmetrics_{name}_total{labels}"]

        assert meter("messagesin") == 2
        assert meter("totalproducerequests") == 3
        assert meter("failedproducerequests") == 0
        assert meter("bytesrejected") > 3000
        assert 0 < meter("bytesin") < 1000
        assert meter("bytesout") >= meter("bytesin")
        assert meter("totalfetchrequests") >= 1
        assert meter("failedfetchrequests") == 0
    kinds = {
        match[1]
        for name in found
        if (match := re.match(r'kafka_network_requestmetrics_requests_total{request="(\w+)"', name))
    }
    assert {"Produce", "Fetch", "Metadata", "ApiVersions", "CreateTopics"} <= kinds
    times = 'kafka_network_requestmetrics_totaltimems_{}{{request="Produce"}}'
    assert found[times.format("count")] == 3
    assert found[times.format("sum")] > 0

    admin.delete_topics(["t"])["t"].result(TIMEOUT_S)
    left = samples(broker)
    assert 'kafka_server_brokertopicmetrics_messagesin_total{topic="t"}' not in left
    assert left['kafka_server_brokertopicmetrics_messagesin_total{topic=""}'] == 2


def test_only_the_metrics_are_served(broker: EmbeddedBroker) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(url(broker, "/"), timeout=TIMEOUT_S)
    with pytest.raises(urllib.error.HTTPError, match="405"):
        urllib.request.urlopen(url(broker), data=b"x", timeout=TIMEOUT_S)


@pytest.mark.parametrize("sent", [b"\x00" * 20_000, b"GET /metrics"])
def test_other_bytes_end_the_connection(broker: EmbeddedBroker, sent: bytes) -> None:
    address = ("127.0.0.1", broker.node.metrics_port)
    with socket.create_connection(address, timeout=TIMEOUT_S) as client:
        client.sendall(sent)
        client.shutdown(socket.SHUT_WR)
        try:
            assert client.recv(1) == b""
        except ConnectionResetError:
            assert len(sent) > 8192
    assert samples(broker)


def test_taken_address_is_named(start_broker: Callable[..., EmbeddedBroker]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(Exception, match=f"key=prometheus.listener value={address}"):
            start_broker({"prometheus.listener": address})
