"""A tiered log moves to another log directory; copies, local retention and reads continue."""

from __future__ import annotations

from pathlib import Path

from confluent_kafka import Consumer, Producer, TopicPartition
from kio.schema.errors import ErrorCode

from isotherm.client.node_address import NodeAddress
from isotherm.client.node_connection import NodeConnection
from isotherm.protocol.api_keys import ApiKey, request_class
from isotherm.protocol.entities import entity_of
from isotherm.testing.broker_process import BrokerProcess
from oracle.topics import create_topic, wait_until

TOPIC = "tiered"
WAIT_S = 300
COUNT = 4000
TIERED = {
    "remote.storage.enable": "true",
    "segment.bytes": "1048576",
    "local.retention.bytes": "1",
    "retention.ms": "-1",
    "file.delete.delay.ms": "100",
}


def produce(server: str, start: int) -> None:
    producer = Producer({"bootstrap.servers": server, "acks": "all", "enable.idempotence": True})
    for number in range(start, start + COUNT):
        producer.produce(TOPIC, b"%09d" % number + b"x" * 1000)
        producer.poll(0)
    assert producer.flush(WAIT_S) == 0


def read(server: str, count: int) -> list[int]:
    consumer = Consumer({"bootstrap.servers": server, "group.id": "g", "log_level": 0})
    consumer.assign([TopicPartition(TOPIC, 0, 0)])
    found: list[int] = []
    while len(found) < count:
        for message in consumer.consume(1000, 1.0):
            assert message.error() is None
            found.append(int((message.value() or b"")[:9]))
    consumer.close()
    return found


def move(server: str, path: Path) -> None:
    host, _, port = server.partition(":")
    connection = NodeConnection(
        NodeAddress(host, int(port)),
        client_id="test",
        connect_timeout_s=WAIT_S,
        request_timeout_s=WAIT_S,
        response_bytes_max=1 << 20,
    )
    dirs = [{"path": str(path), "topics": [{"name": TOPIC, "partitions": (0,)}]}]
    answer = connection.send(
        entity_of(request_class(ApiKey.ALTER_REPLICA_LOG_DIRS, 2), {"dirs": dirs})
    )
    connection.close()
    ((partition,),) = (result.partitions for result in answer.results)
    assert partition.error_code == ErrorCode.none


def test_tiered_log_is_copied_on_and_read_whole_after_its_move(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    settings = {
        "log.dirs": f"{one},{two}",
        "remote.log.manager.task.interval.ms": "200",
        "log.retention.check.interval.ms": "200",
        "rsm.config.url": (tmp_path / "bucket").as_uri(),
    }
    broker = BrokerProcess(one, settings)
    try:
        server = broker.bootstrap_servers
        create_topic(server, TOPIC, 1, TIERED)
        (source,) = tmp_path.glob(f"*/{TOPIC}-0")
        target = (two if source.parent == one else one) / source.name

        def is_only_remote(directory: Path, segments: int) -> bool:
            """The closed segments are copied, and gone from the disk."""
            copied = [*(tmp_path / "bucket").rglob("*.log")]
            return len(copied) >= segments and len([*directory.glob("*.log")]) == 1

        produce(server, 0)
        wait_until(lambda: is_only_remote(source, 3), "copies")
        move(server, target.parent)
        wait_until(lambda: target.exists() and not source.exists(), "the move")
        produce(server, COUNT)
        wait_until(lambda: is_only_remote(target, 7), "copies after the move")
        assert read(server, 2 * COUNT) == list(range(2 * COUNT))
        broker.kill()
        broker = BrokerProcess(one, settings)
        assert read(broker.bootstrap_servers, 2 * COUNT) == list(range(2 * COUNT))
    finally:
        broker.stop()
