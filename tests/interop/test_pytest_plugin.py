"""The fixtures in a user's project: pytest in a separate process, as a user runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_TESTS = """
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient


@pytest.fixture(scope="session")
def kafka_broker_settings():
    return {"num.partitions": "5"}


def _topics(broker):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    topics = admin.list_topics(timeout=300).topics
    return {name: each for name, each in topics.items() if not name.startswith("__")}


def test_records_come_back(kafka_broker, kafka_topic):
    producer = Producer({"bootstrap.servers": kafka_broker.bootstrap_servers})
    producer.produce(kafka_topic, b"hello")
    producer.flush(300)
    consumer = Consumer({"bootstrap.servers": kafka_broker.bootstrap_servers, "group.id": "g"})
    consumer.assign([TopicPartition(kafka_topic, 0, 0)])
    assert [each.value() for each in consumer.consume(1, timeout=300)] == [b"hello"]
    consumer.close()
    assert kafka_topic.startswith("test_records_come_back-")


@pytest.mark.parametrize("text", ["a b/c", "d" * 300])
def test_topic_is_new(kafka_broker, kafka_topic, text):
    assert list(_topics(kafka_broker)) == [kafka_topic]


@pytest.mark.kafka_topic(partitions=3, tiered=True, config={"retention.ms": "5000"})
def test_topic_has_settings(kafka_broker, kafka_topic, kafka_topics):
    other = kafka_topics(-1, name="other")
    topics = _topics(kafka_broker)
    assert len(topics[kafka_topic].partitions) == 3
    assert len(topics[other].partitions) == 5
    config = kafka_broker.embedded.node.services.metadata.topic_config(kafka_topic)
    assert config.remote_storage_enable
    assert config.retention_ms == 5000


def test_topic_may_be_deleted_by_its_test(kafka_broker, kafka_topic):
    kafka_broker.delete_topic(kafka_topic)
"""


def test_tests_of_another_project_get_a_broker(tmp_path: Path) -> None:
    (tmp_path / "test_users.py").write_text(_TESTS)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly",
         "--strict-markers", "-W", "error", "-q", f"--rootdir={tmp_path}", str(tmp_path)],
        cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert "5 passed" in run.stdout


def test_plug_in_imports_nothing_of_the_broker() -> None:
    script = (
        "import sys, isotherm.pytest_plugin;"
        "print([name for name in sys.modules if name.startswith(('isotherm.', 'confluent_kafka'))])"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "['isotherm.pytest_plugin']"
