"""KafkaMetadataTopic without a cluster. The oracle tests read a real one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from isotherm.errors import BrokerUnreachableError, PolicyViolationError, RemoteStorageError
from isotherm.remote.metadata.topic import kafka_topic
from isotherm.remote.metadata.topic.kafka_topic import KafkaMetadataTopic


def test_topic_of_a_cluster_that_is_not_there_is_not_opened() -> None:
    with pytest.raises(BrokerUnreachableError, match="connection refused"):
        KafkaMetadataTopic({"bootstrap.servers": "127.0.0.1:1"})


@pytest.fixture
def unreachable(monkeypatch: pytest.MonkeyPatch) -> Iterator[KafkaMetadataTopic]:
    """A topic whose brokers went away after it was opened."""
    monkeypatch.setattr(kafka_topic, "check_brokers", lambda *_, **__: None)
    topic = KafkaMetadataTopic(
        {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}, request_timeout_s=0.2
    )
    yield topic
    topic.close()


def test_append_to_a_foreign_cluster_is_refused_and_says_why(
    unreachable: KafkaMetadataTopic,
) -> None:
    with pytest.raises(PolicyViolationError, match="never written to"):
        unreachable.append(0, None, b"\x01", 0)


def test_cluster_that_cannot_be_reached_is_a_retriable_error(
    unreachable: KafkaMetadataTopic,
) -> None:
    with pytest.raises(RemoteStorageError, match="__remote_log_metadata"):
        _ = unreachable.partition_count
    with pytest.raises(RemoteStorageError, match="partition=3"):
        unreachable.offsets(3)


def test_close_twice_is_no_error(unreachable: KafkaMetadataTopic) -> None:
    unreachable.close()
    unreachable.close()
