"""The metadata manager on each kind of topic there is: a broker's own, and one read by a client."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from isotherm.clock import SystemClock
from isotherm.metrics.registry import Metrics
from isotherm.remote.metadata.api import NewMetadataRecord
from isotherm.remote.metadata.topic.event_writer import KeyedMetadata
from isotherm.remote.metadata.topic.kafka_topic import KafkaMetadataTopic
from isotherm.remote.metadata.topic_based import TopicBasedRemoteLogMetadataManager
from isotherm.testing.conformance.remote_metadata import RemoteLogMetadataManagerConformance
from isotherm.testing.embedded_broker import EmbeddedBroker
from isotherm.testing.sim_clock import SimClock
from isotherm.types import Offset
from tests.support.hosted_metadata_topics import HostedMetadataTopics

TIMEOUT_S = 300
_numbers = itertools.count(1)


class Polled(RemoteLogMetadataManagerConformance):
    @pytest.fixture
    def settle(self, manager: TopicBasedRemoteLogMetadataManager) -> Callable[[], None]:
        return manager.poll


class EmbeddedConformance(Polled):
    level: int

    @pytest.fixture
    def manager(self, tmp_path: Path) -> TopicBasedRemoteLogMetadataManager:
        clock = SimClock(auto_advance=True)
        topics = HostedMetadataTopics(tmp_path, clock, level=self.level)
        return TopicBasedRemoteLogMetadataManager(
            topics.metadata_topic,
            clock=clock,
            metrics=Metrics(),
            keyed=KeyedMetadata(topics.audit_topic, lambda _: self.level),
        )


class TestEmbedded(EmbeddedConformance):
    level = 0


class TestEmbeddedKeyed(EmbeddedConformance):
    level = 1


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as started:
        yield started


@pytest.fixture
def open_topic(broker: EmbeddedBroker) -> Iterator[Callable[..., ClientsTopic]]:
    """Creates a topic that clients may write to, and opens it as the metadata topic."""
    opened: list[ClientsTopic] = []
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})

    def open_topic(**config: str) -> ClientsTopic:
        name = f"metadata-{next(_numbers)}"
        admin.create_topics([NewTopic(name, 2, 1, config=config)])[name].result(TIMEOUT_S)
        topic = ClientsTopic(
            {
                "bootstrap.servers": broker.bootstrap_servers,
                "log_level": 0,
                "fetch.wait.max.ms": 10,
            },
            topic=name,
        )
        opened.append(topic)
        return topic

    yield open_topic
    for topic in opened:
        topic.close()


class ClientsTopic(KafkaMetadataTopic):
    """A topic with a single writer, which can therefore check the log end before it appends."""

    def append_at(
        self, partition: int, end_offset: Offset, records: Sequence[NewMetadataRecord]
    ) -> None:
        assert self.offsets(partition)[1] == end_offset
        self.append_all(partition, records)

    def has_all_below(self, partition: int, end_offset: Offset) -> bool:
        return self.offsets(partition)[1] >= end_offset


class ClientConformance(Polled):
    level: int

    @pytest.fixture
    def manager(
        self, open_topic: Callable[..., ClientsTopic]
    ) -> TopicBasedRemoteLogMetadataManager:
        config = {"cleanup.policy": "compact"} if self.level else {}
        return TopicBasedRemoteLogMetadataManager(
            open_topic(**config),
            clock=SystemClock(),
            metrics=Metrics(),
            keyed=KeyedMetadata(open_topic(), lambda _: self.level),
        )


class TestClient(ClientConformance):
    level = 0


class TestClientKeyed(ClientConformance):
    level = 1


def test_client_reads_columns_of_many_answers_in_one_call(
    open_topic: Callable[..., ClientsTopic],
) -> None:
    topic = open_topic()
    written = [
        (None if index % 3 else b"k%d" % index, b"" if index % 5 else b"v%d" % index)
        for index in range(1_700)
    ]
    topic.append_all(1, [NewMetadataRecord(key, value, 0) for key, value in written])
    columns = topic.read_columns(1, 100, 2**20)
    assert columns.offset.tolist() == list(range(100, 1_700))
    found = zip(columns.key.to_pylist(), columns.value.to_pylist(), strict=True)
    assert list(found) == written[100:]
    assert columns.next_offset == 1_700
    assert topic.read_columns(1, 1_700, 2**20).next_offset == 1_700
