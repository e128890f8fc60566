"""Metrics that Prometheus scrapes from a broker with active clients."""

from __future__ import annotations

import asyncio
import base64
import re
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from isotherm.broker.cluster.replica_cluster import PARTITIONS, STATE_AGE
from isotherm.broker.cluster.upstream_cluster import METADATA_LAG
from isotherm.errors import ConfigError
from isotherm.protocol.api_keys import ApiKey
from isotherm.remote.remote_tier_metrics import LOCAL_RETENTION_SIZE, RETENTION_SIZE
from isotherm.testing.embedded_broker import EmbeddedBroker
from isotherm.testing.local_servers import free_ports
from oracle.raw_requests import receive_frame, request_frame
from tests.support.certificates import issue

TIMEOUT_S = 300
ROOT = Path(__file__).parents[2]
# Names of Kafka's domains and of Isotherm's own; on docs/metrics.md also ends of names.
METRIC_NAME = re.compile(
    r"`((?:isotherm|kafka_(?:log|network|server))_[a-z_]+|…?_[a-z][a-z_]+)(?:\{\w+\})?`"
)


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


def test_metrics_that_pages_name_are_exported(
    start_broker: Callable[..., EmbeddedBroker],
) -> None:
    """A name that begins with `…_` or `_` is the end of a name in the same table."""
    broker = start_broker(
        {
            "prometheus.listener": "127.0.0.1:0",
            "remote.log.index.file.cache.statistics.enable": "true",
        }
    )
    exported = {name.partition("{")[0] for name in samples(broker)}
    # Labelled metrics without a topic have no sample yet, and those of shares are of partitions.
    with urllib.request.urlopen(url(broker), timeout=TIMEOUT_S) as answer:
        kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)", answer.read().decode(), re.MULTILINE))
    exported |= kinds.keys()
    summaries = [name for name, kind in kinds.items() if kind == "summary"]
    exported |= {f"{name}_{end}" for name in summaries for end in ("count", "sum")}
    # Those of a read replica of a cluster.
    exported |= {RETENTION_SIZE, LOCAL_RETENTION_SIZE, STATE_AGE, PARTITIONS, METADATA_LAG}
    named = {
        (page.name, match[1])
        for page in [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("docs/guides/*.md")]
        for match in METRIC_NAME.finditer(page.read_text(encoding="utf-8"))
        if page.name == "metrics.md" or not match[1].startswith(("_", "…"))
    }
    assert len(named) > 40
    untrue = {
        (page, name)
        for page, name in named
        if not any(each.endswith(name.lstrip("…")) for each in exported)
    }
    assert untrue == set()


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


def ask(broker: EmbeddedBroker, scheme: str, authority: Path | None, login: str | None) -> int:
    """The status of the answer."""
    request = urllib.request.Request(f"{scheme}://localhost:{broker.node.metrics_port}/metrics")
    if login is not None:
        request.add_header("Authorization", f"Basic {base64.b64encode(login.encode()).decode()}")
    context = ssl.create_default_context(cafile=authority)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S, context=context) as answer:
            assert b"isotherm_" in answer.read()
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_clients_authenticate_by_a_file_and_servers_by_a_certificate(
    start_broker: Callable[..., EmbeddedBroker],
    tmp_path: Path,
    scheme: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    authority = issue("authority")
    certificates, users = tmp_path / "authority.pem", tmp_path / "users"
    certificates.write_bytes(authority.certificate_pem)
    key = issue("localhost", authority).write_pem(tmp_path / "server.pem")
    users.touch(0o600)
    users.write_text("prometheus:pa:ss\n\nother:öther\n")
    broker = start_broker(
        {
            "prometheus.listener": f"{scheme}://localhost:0",
            "prometheus.credentials.file": str(users),
            "listener.name.prometheus.ssl.keystore.type": "PEM",
            "listener.name.prometheus.ssl.keystore.location": str(key),
        }
    )

    def status(login: str | None) -> int:
        return ask(broker, scheme, certificates, login)

    assert status("prometheus:pa:ss") == status("other:öther") == 200
    for wrong in (None, "prometheus:wrong", "prometheus:", ":", "nobody:", "nobody:pa:ss", ""):
        assert status(wrong) == 401

    def reload() -> None:
        reloading = broker.node.reload(broker.config)
        asyncio.run_coroutine_threadsafe(reloading, broker.loop).result(TIMEOUT_S)

    other = issue("other authority")
    issue("localhost", other).write_pem(key)
    users.write_text("prometheus:new\n")
    assert "can be read by others" not in caplog.text
    users.chmod(0o644)
    reload()
    assert f"can be read by others path={users}" in caplog.text
    certificates.write_bytes(other.certificate_pem)
    assert (status("prometheus:pa:ss"), status("prometheus:new")) == (401, 200)
    users.write_text("s3cret\n")
    with pytest.raises(ConfigError, match=r"NAME:PASSWORD .* line=1") as refused:
        reload()
    assert "s3cret" not in str(refused.value)
    assert status("prometheus:new") == 200


def test_port_alone_is_open_to_this_machine_alone(
    start_broker: Callable[..., EmbeddedBroker],
) -> None:
    (port,) = free_ports(1)
    broker = start_broker({"prometheus.listener": str(port)})
    with urllib.request.urlopen(f"http://localhost:{port}/metrics", timeout=TIMEOUT_S) as answer:
        assert answer.status == 200
    # A local address other than the loopback's, as remote clients would use it.
    for address in addresses_of_this_machine():
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((address, port), TIMEOUT_S).close()
    assert broker.node.metrics_port == port


def addresses_of_this_machine() -> set[str]:
    found = psutil.net_if_addrs().values()
    every = {each.address for of_one in found for each in of_one if each.family == socket.AF_INET}
    return {address for address in every if not address.startswith("127.")}


@pytest.mark.parametrize("address", ["localhost", "ftp://localhost:1", "localhost:x", "a b:1:2/x"])
def test_address_that_cannot_be_read_is_named(
    start_broker: Callable[..., EmbeddedBroker], address: str
) -> None:
    with pytest.raises(ConfigError, match=r"key=prometheus\.listener"):
        start_broker({"prometheus.listener": address})


def send(connection: socket.socket, frame: bytes) -> None:
    """Send a request, and wait for its answer."""
    connection.sendall(len(frame).to_bytes(4) + frame)
    receive_frame(connection)


def test_failed_requests_of_share_consumers_are_counted(broker: EmbeddedBroker) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic("t", 1)])["t"].result(TIMEOUT_S)
    topic_id = str(broker.node.services.metadata.image.topics_by_name["t"].topic_id)
    partition: dict[str, Any] = {"partition_index": 0, "acknowledgement_batches": []}
    named = [{"topic_id": topic_id, "partitions": [partition]}]
    member = {"group_id": "g", "member_id": "m"}
    fetch = {"max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20}
    fields = {**member, **fetch, "max_records": 1, "batch_size": 1, "forgotten_topics_data": []}
    host, port = broker.bootstrap_servers.rsplit(":", 1)
    # A session lasts as long as its connection.
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as connection:
        request = {**fields, "share_session_epoch": 0, "topics": named}
        send(connection, request_frame(ApiKey.SHARE_FETCH, 1, request))
        partition["acknowledgement_batches"] = [
            {"first_offset": 0, "last_offset": 0, "acknowledge_types": [1]}
        ]
        request = {**member, "share_session_epoch": 1, "topics": named}
        send(connection, request_frame(ApiKey.SHARE_ACKNOWLEDGE, 1, request))
    prefix, of_topic = "kafka_server_brokertopicmetrics_", '{topic="t"}'
    counts = {
        name: samples(broker)[f"{prefix}{name}_total{of_topic}"]
        for name in (
            "totalsharefetchrequests",
            "failedsharefetchrequests",
            "totalshareacknowledgementrequests",
            "failedshareacknowledgementrequests",
        )
    }
    # The group has no member that would have begun its state, and nobody has acquired a record.
    assert list(counts.values()) == [1, 1, 1, 1]
