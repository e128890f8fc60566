"""A broker process that gets SIGTERM stops in order and in time, whatever it is doing."""

from __future__ import annotations

import os
import signal
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

TIMEOUT_S = 300

# A stop that waits for the copy or the client never ends.
STOP_TIMEOUT_S = 300

SLOW_STORE = """
import sys, threading
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager

class SlowStore(ObjectStoreRemoteStorageManager):
    def copy_log_segment_data(self, metadata, data):
        super().copy_log_segment_data(metadata, data)
        print("copy hangs", file=sys.stderr, flush=True)
        threading.Event().wait()
"""

TIERED = {
    "remote.storage.enable": "true",
    "segment.bytes": "1048576",
    "local.retention.bytes": "1",
    "retention.ms": "-1",
    "file.delete.delay.ms": "100",
}


@pytest.fixture
def slow_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The settings of a store that writes the objects but never returns from a copy."""
    (tmp_path / "slow_store.py").write_text(SLOW_STORE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    return {"remote.log.storage.manager.class.name": "slow_store.SlowStore"}


def produce(broker: Any, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 5})
    for number in range(count):
        producer.produce(topic, b"%06d" % number + bytes(10_000))
        producer.poll(0)
    assert producer.flush(TIMEOUT_S) == 0


def create(broker: Any, topic: str, config: dict[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic(topic, 1, 1, config=config)])[topic].result(TIMEOUT_S)


def consume(broker: Any, topic: str, count: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "none"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = [int(message.value()[:6]) for message in consumer.consume(count, TIMEOUT_S)]
    consumer.close()
    return found


def objects(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*") if path.is_file()}


def test_stop_does_not_wait_for_a_slow_copy_and_the_next_start_makes_good(
    broker_process: Callable[..., Any], slow_store: dict[str, str], tmp_path: Path
) -> None:
    broker = broker_process(slow_store)
    create(broker, "t", TIERED)
    produce(broker, "t", 300)
    broker.await_log("copy hangs")
    assert broker.stop(STOP_TIMEOUT_S) == 0
    assert "remote work is left to the next start" in broker.log_text
    bucket = tmp_path / "broker" / "bucket"
    unfinished = objects(bucket)
    assert unfinished
    assert (tmp_path / "broker" / "log" / ".kafka_cleanshutdown").exists()

    broker = broker_process()
    while len(list((tmp_path / "broker" / "log" / "t-0").glob("*.log"))) > 1:
        produce(broker, "t", 1)
    while objects(bucket) & unfinished:
        produce(broker, "t", 1)
    assert consume(broker, "t", 300) == list(range(300))
    assert broker.stop(STOP_TIMEOUT_S) == 0


def test_stop_cuts_clients_that_take_no_answers(broker_process: Callable[..., Any]) -> None:
    broker = broker_process()
    create(broker, "t", {})
    produce(broker, "t", 1000)
    host, port = broker.bootstrap_servers.split(":")
    with socket.create_connection((host, int(port))) as client:
        # Fetch 4 of all records of t-0, sent repeatedly; the answers are never read.
        body = struct.pack(">hhihc", 1, 4, 1, 1, b"c") + struct.pack(
            ">iiiibih1siiqi", -1, 0, 0, 1 << 28, 0, 1, 1, b"t", 1, 0, 0, 1 << 28
        )
        client.setblocking(False)
        try:
            for _ in range(20):
                client.sendall(struct.pack(">i", len(body)) + body)
        except BlockingIOError:
            pass
        assert broker.stop(STOP_TIMEOUT_S) == 0
    assert "connections closed at stop count=1" in broker.log_text


def test_second_signal_ends_the_process_at_once(
    broker_process: Callable[..., Any], slow_store: dict[str, str], tmp_path: Path
) -> None:
    broker = broker_process(slow_store)
    create(broker, "t", TIERED)
    produce(broker, "t", 300)
    broker.await_log("copy hangs")
    broker.process.send_signal(signal.SIGTERM)
    broker.await_log("broker stops")
    assert broker.stop(STOP_TIMEOUT_S) == -signal.SIGTERM
    assert not (tmp_path / "broker" / "log" / ".kafka_cleanshutdown").exists()


def test_broker_that_loses_its_metadata_directory_exits_with_a_failure(
    broker_process: Callable[..., Any], tmp_path: Path
) -> None:
    broker = broker_process()
    log_dir = tmp_path / "broker" / "log"
    # The next checkpoint cannot be written.
    log_dir.rename(tmp_path / "gone")
    log_dir.write_text("not a folder")
    assert broker.process.wait(TIMEOUT_S) == 1
    assert broker.has_ended  # and its log is read to the end
    assert "broker has failed" in broker.log_text
