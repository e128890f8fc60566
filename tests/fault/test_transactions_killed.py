"""A broker dies after it has decided a transaction's end and before all markers are written."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

TIMEOUT_S = 300
TOPIC = "transactions"
PARTITIONS = 4

# The interpreter runs this first: the broker kills itself with SIGKILL when it is about to write a
# marker after `markers` others.
DIES_AMONG_MARKERS = """
import os, signal
from isotherm.broker.coordinators.transactions.transaction_markers import TransactionMarkers

append = TransactionMarkers.append
left = {markers}

def dying_append(self, *arguments, **options):
    global left
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    return append(self, *arguments, **options)

TransactionMarkers.append = dying_append
"""


def read_committed(servers: str, partition: int) -> list[bytes]:
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": "never-used",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 100,
        }
    )
    consumer.assign([TopicPartition(TOPIC, partition, 0)])
    values: list[bytes] = []
    while True:
        (message,) = consumer.consume(1, TIMEOUT_S)
        error = message.error()
        if error is not None:
            assert error.code() == KafkaError._PARTITION_EOF, error
            consumer.close()
            return values
        values.append(message.value())


@pytest.mark.parametrize(("markers", "commit"), [(0, True), (2, True), (1, False)])
def test_decided_end_is_carried_out_by_the_next_start(
    broker_process: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    markers: int,
    commit: bool,
) -> None:
    (tmp_path / "sitecustomize.py").write_text(DIES_AMONG_MARKERS.format(markers=markers))
    with monkeypatch.context() as patched:
        patched.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
        broker = broker_process()
    servers = broker.bootstrap_servers
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(TIMEOUT_S)
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "transactional.id": "tx",
            "transaction.timeout.ms": 900_000,
            "log_level": 0,
        }
    )
    producer.init_transactions(TIMEOUT_S)
    producer.begin_transaction()
    for partition in range(PARTITIONS):
        producer.produce(TOPIC, b"decided", partition=partition)
    assert producer.flush(TIMEOUT_S) == 0
    end = producer.commit_transaction if commit else producer.abort_transaction
    with pytest.raises(KafkaException) as failed:
        end(1)
    assert failed.value.args[0].code() == KafkaError._TIMED_OUT
    assert broker.process.wait(TIMEOUT_S) < 0

    broker = broker_process()
    # A transaction begins once the previous one has ended; librdkafka retries until then.
    successor = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "transactional.id": "tx",
            "transaction.timeout.ms": 900_000,
            "log_level": 0,
        }
    )
    successor.init_transactions(TIMEOUT_S)
    for partition in range(PARTITIONS):
        wanted = [b"decided"] if commit else []
        assert read_committed(broker.bootstrap_servers, partition) == wanted
    assert broker.stop() == 0
