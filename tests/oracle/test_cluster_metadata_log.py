"""Kafka's DumpLogSegments decodes the metadata log that Isotherm's controller writes."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from isotherm.broker.metadata.cluster_metadata_topic import (
    METADATA_LOG_CONFIG,
    METADATA_TOPIC_ID,
    METADATA_TOPIC_PARTITION,
)
from isotherm.broker.metadata.controller.config_changes import ConfigChange, ConfigOperation
from isotherm.broker.metadata.controller.controller import Controller
from isotherm.broker.metadata.controller.topic_rules import NewTopic
from isotherm.broker.metadata.endpoint import Endpoint
from isotherm.config.broker import BrokerConfig
from isotherm.log.environment import LogEnvironment
from isotherm.log.file_cache import FileCache
from isotherm.log.fs import OsFileSystem
from isotherm.log.log_dir import LogDir, PartitionDirectory
from isotherm.log.log_loader import load_log
from isotherm.testing.sim_clock import SimClock
from isotherm.types import uuid_to_text
from oracle.dump_text import DumpedFile, parse_dump
from oracle.kafka import dump_log_segments

CONFIG = BrokerConfig(broker_rack="r1")


def start(directory: Path, ids: random.Random) -> Controller:
    clock = SimClock()
    log = load_log(
        LogEnvironment(FileCache(OsFileSystem()), clock, random.Random(0)),
        PartitionDirectory(LogDir(directory.parent), directory, METADATA_TOPIC_PARTITION),
        METADATA_LOG_CONFIG,
        topic_id=METADATA_TOPIC_ID,
    )
    controller = Controller(
        log,
        config=CONFIG,
        clock=clock,
        rng=ids,
    )
    controller.register_broker([Endpoint("PLAINTEXT", "localhost", 9092)])
    return controller


@pytest.fixture(scope="module")
def written(
    kafka_tools: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Controller, DumpedFile]:
    directory = tmp_path_factory.mktemp("log") / str(METADATA_TOPIC_PARTITION)
    directory.mkdir()
    ids = random.Random(7)
    controller = start(directory, ids)
    controller.create_topics(
        [NewTopic(name="kept", num_partitions=2, configs={"retention.ms": "5"})]
    )
    controller.create_topics([NewTopic(name="gone")])
    controller.alter_topic_config(
        "kept", [ConfigChange("retention.ms", ConfigOperation.DELETE, None)]
    )
    controller.delete_topics(["gone"])
    controller.generate_producer_id()
    controller = start(directory, ids)
    (segment,) = directory.glob("*.log")
    text = dump_log_segments([segment], "--cluster-metadata-decoder")
    return controller, parse_dump(text)[str(segment)]


def payloads(dump: DumpedFile) -> list[dict]:
    return [json.loads(record["payload"]) for record in dump.records]


def test_kafka_reads_every_record_under_its_own_name_and_version(written) -> None:
    _, dump = written
    assert dump.remarks == []
    assert [(p["type"], p["version"]) for p in payloads(dump)] == [
        ("FEATURE_LEVEL_RECORD", 0),
        ("FEATURE_LEVEL_RECORD", 0),
        ("FEATURE_LEVEL_RECORD", 0),
        ("FEATURE_LEVEL_RECORD", 0),
        ("FEATURE_LEVEL_RECORD", 0),
        ("FEATURE_LEVEL_RECORD", 0),
        ("CONFIG_RECORD", 0),
        ("REGISTER_BROKER_RECORD", 4),
        ("TOPIC_RECORD", 0),
        ("CONFIG_RECORD", 0),
        ("PARTITION_RECORD", 2),
        ("PARTITION_RECORD", 2),
        ("TOPIC_RECORD", 0),
        ("PARTITION_RECORD", 2),
        ("CONFIG_RECORD", 0),
        ("REMOVE_TOPIC_RECORD", 0),
        ("PRODUCER_IDS_RECORD", 0),
        ("REGISTER_BROKER_RECORD", 4),
        ("PARTITION_CHANGE_RECORD", 2),
        ("PARTITION_CHANGE_RECORD", 2),
    ]


def test_kafka_reads_the_fields_that_were_written(written) -> None:
    controller, dump = written
    data = [payload["data"] for payload in payloads(dump)]
    topic_id = uuid_to_text(controller.image.topics_by_name["kept"].topic_id)
    assert [data.pop(0) for _ in range(6)] == [
        {"name": "metadata.version", "featureLevel": 30},
        {"name": "group.version", "featureLevel": 1},
        {"name": "transaction.version", "featureLevel": 2},
        {"name": "eligible.leader.replicas.version", "featureLevel": 1},
        {"name": "share.version", "featureLevel": 1},
        {"name": "remote.log.metadata.compaction", "featureLevel": 1},
    ]
    assert data[0] == {
        "resourceType": 4,
        "resourceName": "",
        "name": "min.insync.replicas",
        "value": "1",
    }
    assert data[1]["endPoints"] == [
        {"name": "PLAINTEXT", "host": "localhost", "port": 9092, "securityProtocol": 0}
    ]
    assert (data[1]["rack"], data[1]["fenced"], data[1]["brokerEpoch"]) == ("r1", False, 0)
    assert data[2] == {"name": "kept", "topicId": topic_id}
    assert data[3] == {
        "resourceType": 2,
        "resourceName": "kept",
        "name": "retention.ms",
        "value": "5",
    }
    assert data[5]["partitionId"] == 1
    assert data[5]["topicId"] == topic_id
    assert (data[5]["replicas"], data[5]["isr"], data[5]["leader"]) == ([1], [1], 1)
    assert (data[5]["leaderEpoch"], data[5]["partitionEpoch"]) == (0, 0)
    assert data[8]["value"] is None
    assert data[10]["nextProducerId"] == 1000
    assert data[12] == {"partitionId": 0, "topicId": topic_id, "leader": 1}


def test_kafka_sees_one_batch_per_change(written) -> None:
    _, dump = written
    assert [int(batch["count"]) for batch in dump.batches] == [8, 4, 2, 1, 1, 1, 3]
    assert [batch["partitionLeaderEpoch"] for batch in dump.batches] == ["1"] * 6 + ["2"]
