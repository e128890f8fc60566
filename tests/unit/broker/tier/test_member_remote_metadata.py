"""The remote tier's metadata topic in a cluster: its level, and how it is created."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.cluster_metadata import TOPIC_RESOURCE, ClusterMetadata
from isotherm.broker.metadata.image import (
    BrokerImage,
    ConfigResource,
    MetadataImage,
    PartitionImage,
    TopicImage,
)
from isotherm.broker.metadata.metadata_records import BrokerFeature
from isotherm.broker.tier.member_remote_metadata import (
    MemberMetadataLevels,
    MetadataTopicCreation,
    client_key_warnings,
)
from isotherm.config.broker import BrokerConfig
from isotherm.config.server_properties import parse_broker_config
from isotherm.errors import IsothermError, PeerTimeoutError, RemoteStorageNotReadyError
from isotherm.remote.metadata.topic_based_settings import TopicBasedSettings
from isotherm.testing.sim_clock import SimClock

STATES, AUDIT = "__remote_log_metadata", "__remote_log_metadata_audit"
KAFKA = ()
ISOTHERM = (
    BrokerFeature(
        name="remote.log.metadata.compaction", min_supported_version=0, max_supported_version=1
    ),
)
# A later Isotherm that no longer supports level 1.
LATER = (
    BrokerFeature(
        name="remote.log.metadata.compaction", min_supported_version=2, max_supported_version=3
    ),
)


class Cluster(ClusterMetadata):
    """The metadata that the controllers publish."""

    def __init__(self) -> None:
        super().__init__(BrokerConfig(), MetadataImage())

    def register(self, *features: tuple[BrokerFeature, ...]) -> None:
        """Register brokers 1, 2, ... with these features in place of all others."""
        brokers = {
            number: BrokerImage(number, 1, None, None, fenced=False, features=declared)
            for number, declared in enumerate(features, 1)
        }
        self._image = replace(self._image, brokers=brokers)

    def create(self, name: str, cleanup_policy: str) -> None:
        topic_id = uuid.uuid4()
        topic = TopicImage(name, topic_id, (PartitionImage(0, (1,), (1,), 1, 0, 0),))
        resource = ConfigResource(TOPIC_RESOURCE, name)
        self._image = replace(
            self._image,
            topics_by_name={**self._image.topics_by_name, name: topic},
            topics_by_id={**self._image.topics_by_id, topic_id: topic},
            configs={**self._image.configs, resource: {"cleanup.policy": cleanup_policy}},
        )


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


# ---- the level


@pytest.mark.parametrize(
    ("brokers", "wanted", "level"),
    [
        ([ISOTHERM] * 3, 1, 1),
        ([ISOTHERM] * 4, 1, 1),
        ([ISOTHERM] * 3, 0, 0),
        ([ISOTHERM, KAFKA, ISOTHERM], 1, 0),
        ([ISOTHERM, ISOTHERM, ISOTHERM, KAFKA], 1, 0),
        ([ISOTHERM, LATER, ISOTHERM], 1, 0),
        ([KAFKA] * 3, 1, 0),
        # Two brokers do not suffice for a replication factor of 3: a third one may not support
        # level 1.
        ([ISOTHERM] * 2, 1, None),
        ([], 1, None),
    ],
)
def test_level_of_a_new_topic_is_what_every_broker_knows(
    cluster: Cluster, brokers: list[tuple[BrokerFeature, ...]], wanted: int, level: int | None
) -> None:
    cluster.register(*brokers)
    assert MemberMetadataLevels(cluster).first_level(wanted, replication_factor=3) == level


@pytest.mark.parametrize(
    ("topics", "level"),
    [
        ({}, 0),
        ({STATES: "delete"}, 0),
        ({AUDIT: "delete"}, 0),
        ({STATES: "compact"}, 0),
        ({STATES: "delete", AUDIT: "delete"}, 0),
        ({STATES: "compact", AUDIT: "delete"}, 1),
    ],
)
def test_level_is_held_by_both_topics(
    cluster: Cluster, topics: Mapping[str, str], level: int
) -> None:
    for name, policy in topics.items():
        cluster.create(name, policy)
    assert MemberMetadataLevels(cluster).level() == level


def test_level_1_is_final(cluster: Cluster) -> None:
    levels = MemberMetadataLevels(cluster)
    assert levels.level() == 0
    cluster.create(AUDIT, "delete")
    cluster.create(STATES, "compact")
    assert levels.level() == 1
    cluster.create(STATES, "delete")  # an operator changed it
    assert levels.level() == 1


def test_nothing_is_written_while_a_broker_does_not_know_level_1(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    levels = MemberMetadataLevels(cluster)
    cluster.register(ISOTHERM, ISOTHERM)
    levels.check_writable()
    cluster.register(ISOTHERM, KAFKA, LATER)
    for _ in range(2):
        with pytest.raises(RemoteStorageNotReadyError, match="brokers=2,3"):
            levels.check_writable()
    (line,) = caplog.records
    assert (line.levelname, "unregister" in line.getMessage()) == ("ERROR", True)
    cluster.register(ISOTHERM, ISOTHERM)
    levels.check_writable()
    cluster.register(ISOTHERM, KAFKA, LATER)
    with pytest.raises(RemoteStorageNotReadyError):
        levels.check_writable()
    assert len(caplog.records) == 2


# ---- the creation


class Controller:
    """Answers CreateTopics with `code`, or fails with `error`."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.code = ErrorCode.none
        self.error: IsothermError | None = None

    def send(self, request: Any, timeout_s: float) -> Future[Any]:
        (topic,) = request.topics
        self.asked.append(topic)
        answer: Future[Any] = Future()
        if self.error is not None:
            answer.set_exception(self.error)
        else:
            answer.set_result(Answer([Result(self.code, "why")]))
        return answer

    def names(self) -> list[str]:
        names = [each.name for each in self.asked]
        self.asked.clear()
        return names


class Answer:
    def __init__(self, topics: list[Result]) -> None:
        self.topics = topics


class Result:
    def __init__(self, error_code: ErrorCode, error_message: str) -> None:
        self.error_code = error_code
        self.error_message = error_message


SETTINGS = TopicBasedSettings.from_config(
    {
        "remote.log.metadata.topic.num.partitions": "7",
        "remote.log.metadata.topic.replication.factor": "3",
        "remote.log.metadata.topic.min.isr": "2",
    }
)


class Creation:
    def __init__(self, cluster: Cluster, level: int | None) -> None:
        self.controller = Controller()
        self.level = level
        self.clock = SimClock()
        self.creation = MetadataTopicCreation(
            cluster,
            SETTINGS,
            self.controller.send,
            first_level=lambda: self.level,
            clock=self.clock,
        )

    def run(self) -> None:
        self.creation.run()


def settings_of(topic: Any) -> dict[str, str]:
    return {config.name: config.value for config in topic.configs}


def test_topic_at_level_0_is_that_of_kafka(cluster: Cluster) -> None:
    """Source: TopicBasedRemoteLogMetadataManager.newRemoteLogMetadataTopic."""
    made = Creation(cluster, 0)
    made.run()
    (topic,) = made.controller.asked
    assert (topic.name, topic.num_partitions, topic.replication_factor) == (STATES, 7, 3)
    assert settings_of(topic) == {
        "cleanup.policy": "delete",
        "retention.ms": "-1",
        "remote.storage.enable": "false",
        "min.insync.replicas": "2",
    }


def test_audit_topic_is_there_before_the_compacted_one(cluster: Cluster) -> None:
    made = Creation(cluster, 1)
    made.run()
    audit, states = made.controller.asked
    assert (audit.name, settings_of(audit)["cleanup.policy"]) == (AUDIT, "delete")
    assert (states.name, settings_of(states)["cleanup.policy"]) == (STATES, "compact")
    assert {audit.num_partitions, states.num_partitions} == {7}
    assert {audit.replication_factor, states.replication_factor} == {3}
    made.controller.names()

    made.controller.code = ErrorCode.topic_already_exists
    made.run()  # another broker created it first, and the metadata does not show it yet
    assert made.controller.names() == [AUDIT, STATES]
    made.controller.code = ErrorCode.invalid_replication_factor
    made.run()
    assert made.controller.names() == [AUDIT]


def test_topic_that_exists_is_left_alone(cluster: Cluster) -> None:
    cluster.create(STATES, "delete")
    for level in (0, 1):
        made = Creation(cluster, level)
        made.run()
        assert made.controller.names() == []


def test_topic_is_asked_for_until_it_can_be_created(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    made = Creation(cluster, None)
    made.run()
    assert made.controller.names() == []
    made.level = 0
    made.controller.error = PeerTimeoutError("the controller does not answer")
    made.run()
    made.controller.error = None
    made.controller.code = ErrorCode.invalid_replication_factor
    for _ in range(3):
        made.run()
        made.clock.advance(30_000)
    assert made.controller.names() == [STATES] * 4
    begun, lasting = caplog.records
    assert (begun.levelname, lasting.levelname) == ("INFO", "WARNING")
    assert "not created yet: fewer brokers" in begun.getMessage()
    assert "not created yet since_s=60: INVALID_REPLICATION_FACTOR" in lasting.getMessage()


def test_keys_of_kafkas_clients_are_taken_and_warned_of() -> None:
    """The keys have the three prefixes of Kafka's TopicBasedRemoteLogMetadataManagerConfig."""
    prefix = "rlmm.config.remote.log.metadata."
    keys = [
        f"{prefix}common.client.security.protocol",
        f"{prefix}common.client.sasl.jaas.config",
        f"{prefix}consumer.fetch.max.bytes",
        f"{prefix}producer.linger.ms",
    ]
    config = parse_broker_config(
        {
            "process.roles": "broker",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": "localhost:1",
            "controller.listener.names": "CONTROLLER",
            "listeners": "INSIDE://localhost:9092",
            "inter.broker.listener.name": "INSIDE",
            "listener.security.protocol.map": "INSIDE:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": "/tmp/never",
            **dict.fromkeys(keys, "hunter2"),
        }
    )
    warnings = client_key_warnings(config)
    assert [warning.partition(" key=")[2].partition(" ")[0] for warning in warnings] == sorted(keys)
    assert all("listener=INSIDE" in warning and "hunter2" not in warning for warning in warnings)
