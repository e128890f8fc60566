"""`isotherm groups describe` tells what the members of a share group did, on Isotherm and Kafka."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import AcknowledgeType, Producer, ShareConsumer
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from typer.testing import CliRunner

from isotherm.cli.main import app
from isotherm.testing.embedded_broker import EmbeddedBroker
from oracle.kafka import running_kafka
from tests.support.conditions import wait_until

pytestmark = pytest.mark.oracle

TIMEOUT_S = 300
ACCEPT, RELEASE, REJECT = AcknowledgeType.ACCEPT, AcknowledgeType.RELEASE, AcknowledgeType.REJECT
DELIVERIES_MAX = 3
HELD = 0
"""The offset that a member holds, so that the start offset stays."""
ACTS = {1: ACCEPT, 2: ACCEPT, 3: ACCEPT, 4: REJECT, 5: REJECT, 6: ACCEPT, 7: RELEASE, 8: RELEASE}
"""What another member does with each of the others, whenever it gets them."""
LAST = 9
"""The offset that it gets when all others are done, and releases once."""
HOUR_MS = "3600000"
BROKER = {"group.share.max.record.lock.duration.ms": HOUR_MS}
GROUP = {
    "share.auto.offset.reset": "earliest",
    "share.delivery.count.limit": str(DELIVERIES_MAX),
    # A record that is held is not delivered again, however slow the machine is.
    "share.record.lock.duration.ms": HOUR_MS,
}


class Queue:
    """A topic and a share group on one broker."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self._producer = Producer({"bootstrap.servers": servers, "log_level": 0})
        admin = AdminClient({"bootstrap.servers": servers})
        admin.create_topics([NewTopic("tasks", 1)])["tasks"].result(TIMEOUT_S)
        entries = [
            ConfigEntry(name, text, incremental_operation=AlterConfigOpType.SET)
            for name, text in GROUP.items()
        ]
        group = ConfigResource(ResourceType.GROUP, "workers", incremental_configs=entries)
        admin.incremental_alter_configs([group])[group].result(TIMEOUT_S)

    def produce(self, count: int) -> None:
        """Records in batches of their own: a member gets whole batches."""
        for number in range(count):
            self._producer.produce("tasks", b"%d" % number)
            assert self._producer.flush(TIMEOUT_S) == 0

    def member(self, **settings: Any) -> ShareConsumer:
        consumer = ShareConsumer(
            {
                "bootstrap.servers": self.servers,
                "group.id": "workers",
                "share.acknowledgement.mode": "explicit",
                **settings,
            }
        )
        consumer.subscribe(["tasks"])
        return consumer

    def row(self, *options: str) -> dict[str, Any]:
        command = ["groups", "describe", "workers", "-b", self.servers, "--json", *options]
        result = CliRunner().invoke(app, command, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        row: dict[str, Any] = json.loads(result.stdout)
        return row


@contextmanager
def members_at_work(servers: str) -> Iterator[Queue]:
    queue = Queue(servers)
    queue.produce(1)
    with closing(queue.member()) as holder, closing(queue.member()) as worker:
        wait_until(lambda: holder.poll(0.5), "the record that is held", timeout_s=TIMEOUT_S)
        queue.produce(LAST - 1)
        done: set[int] = set()

        def all_done() -> bool:
            for task in worker.poll(0.1):
                act = ACTS[task.offset()]
                worker.acknowledge(task, act)
                if act is not RELEASE or task.delivery_count() == DELIVERIES_MAX:
                    done.add(task.offset())
            worker.commit_sync()
            return done == set(ACTS)

        wait_until(all_done, "the acknowledgements", timeout_s=TIMEOUT_S)
        queue.produce(1)

        def released_last() -> bool:
            for task in worker.poll(0.1):
                assert task.offset() == LAST
                worker.acknowledge(task, RELEASE)
                worker.commit_sync()
                return True
            return False

        wait_until(released_last, "the last record", timeout_s=TIMEOUT_S)
        yield queue


def expected() -> dict[str, Any]:
    acts = list(ACTS.values())
    return {
        "topic": "tasks",
        "partition": 0,
        "start_offset": HELD,
        "lag": 2,  # the record that is held, and the last one
        "in_flight": None,
        "acknowledged": acts.count(ACCEPT),
        "archived": acts.count(REJECT) + acts.count(RELEASE),
        "released": 1,
        "delivery_count_max": 1,
    }


@pytest.mark.slow
def test_counts_of_a_share_group_are_what_its_members_did(
    kafka_tools: Path, tmp_path: Path
) -> None:
    with (
        running_kafka(tmp_path / "kafka", BROKER) as kafka,
        members_at_work(kafka.bootstrap_server) as queue,
    ):
        assert queue.row() == expected()
    # Few updates to a snapshot: the state is folded from both.
    updates = "share.coordinator.snapshot.update.records.per.snapshot"
    settings = {**BROKER, "prometheus.listener": "127.0.0.1:0", updates: "2"}
    with (
        EmbeddedBroker(tmp_path / "isotherm", settings) as broker,
        members_at_work(broker.bootstrap_servers) as queue,
    ):
        assert queue.row() == expected()
        metrics = f"http://127.0.0.1:{broker.node.metrics_port}/metrics"
        assert queue.row("--metrics", metrics) == {**expected(), "in_flight": LAST + 1}
