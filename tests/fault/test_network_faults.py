"""A broker behind a faulty network to its S3 server, with producers and consumers at work."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from isotherm.testing.embedded_broker import EmbeddedBroker
from tests.support.bucket_scrub import metadata_values_below, objects_below, scrub
from tests.support.s3_server import S3Server, find_versitygw
from tests.support.toxiproxy import Toxiproxy, find_toxiproxy

TIMEOUT_S = 300
RECORDS_PER_TOXIC = 6
TOXICS: list[tuple[str, str, dict[str, int]]] = [
    ("latency", "downstream", {"latency": 100, "jitter": 50}),
    ("bandwidth", "upstream", {"rate": 32}),
    ("slicer", "downstream", {"average_size": 64, "size_variation": 32, "delay": 100}),
    ("reset_peer", "downstream", {"timeout": 5}),
    ("reset_peer", "upstream", {"timeout": 5}),
    ("limit_data", "upstream", {"bytes": 2000}),
    ("limit_data", "downstream", {"bytes": 100}),
    ("timeout", "downstream", {"timeout": 100}),
    ("slow_close", "downstream", {"delay": 100}),
    ("down", "", {}),
]


def consumed(servers: str, topic: str, end: int) -> list[bytes]:
    """Read every value below `end`; retry as often as the tier needs."""
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "g", "auto.offset.reset": "error"}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    while len(found) < end:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        if message.error() is None:
            found.append(message.value())
        else:
            assert message.error().retriable(), message.error()
    consumer.close()
    return found


def test_bad_network_between_broker_and_store_loses_and_leaks_nothing(
    tmp_path: Path, start_broker: Callable[..., EmbeddedBroker]
) -> None:
    versitygw, toxiproxy = find_versitygw(), find_toxiproxy()
    if versitygw is None or toxiproxy is None:
        pytest.skip("scripts/s3-server.sh install and scripts/toxiproxy.sh install are needed")
    with (
        S3Server(versitygw, tmp_path / "buckets") as server,
        Toxiproxy(toxiproxy, server.port) as proxy,
    ):
        broker = start_broker(
            {
                **{f"rsm.config.{key}": value for key, value in server.config.items()},
                "rsm.config.s3.endpoint.url": f"http://127.0.0.1:{proxy.port}",
                "rsm.config.retries": "0",
                "rsm.config.request.timeout.ms": "1000",
                "remote.log.manager.task.retry.backoff.max.ms": "500",
            }
        )
        servers = broker.bootstrap_servers
        new = NewTopic(
            "t",
            1,
            config={
                "remote.storage.enable": "true",
                "segment.index.bytes": "12",
                "index.interval.bytes": "1",
                "local.retention.bytes": "1",
                "file.delete.delay.ms": "0",
            },
        )
        admin = AdminClient({"bootstrap.servers": servers})
        admin.create_topics([new])["t"].result(TIMEOUT_S)
        producer = Producer({"bootstrap.servers": servers, "linger.ms": 0})
        log = broker.node.services.replica_manager.find_partition("t", None, 0).log
        values: list[bytes] = []
        for kind, stream, attributes in TOXICS:
            with proxy.toxic(kind, stream, **attributes):
                for _ in range(RECORDS_PER_TOXIC):
                    values.append(b"%06d" % len(values) + bytes(5000))
                    producer.produce("t", values[-1])
                    assert producer.flush(TIMEOUT_S) == 0
                threading.Event().wait(0.3)  # real time, in which the tasks meet the toxic
                assert log.log_end_offset == len(values)
            held = consumed(servers, "t", len(values))
            assert held == values
        pause = threading.Event()
        for _ in range(TIMEOUT_S * 100):
            if log.local_log_start_offset >= len(values) - 1:
                break
            pause.wait(0.01)
        assert log.local_log_start_offset >= len(values) - 1
        assert consumed(servers, "t", len(values)) == values
        broker.stop()
        objects = {
            name: content
            for name, content in objects_below(server.bucket_folder).items()
            if not name.startswith(".")
        }
        assert scrub(objects, metadata_values_below(broker.directory / "log")) == []
