"""A real Apache Kafka for the tests of this folder.

The tests are skipped if its jars are not available (see `kafka_tools` in tests/conftest.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from oracle.kafka import EAGER_SETTINGS, KafkaOracle, running_kafka
from oracle.kafka_cleaner import KafkaCleaner, running_cleaner
from oracle.tiered_topic import TieredTopic, make_tiered_topic
from tests.support.s3_server import S3Server, find_versitygw
from tests.support.spark_cluster import SparkCluster


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.oracle)


@pytest.fixture(scope="session")
def kafka(kafka_tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaOracle]:
    """A running broker with tiered storage and short intervals, shared by the session."""
    directory = tmp_path_factory.mktemp("kafka")
    # Spark jobs have a task for each partition. Tests that start a broker of their own have Kafka's
    # default of 50.
    few = {"rlmm.config.remote.log.metadata.topic.num.partitions": "8"}
    with running_kafka(directory, {**EAGER_SETTINGS, **few}) as oracle:
        yield oracle


@pytest.fixture(scope="session")
def kafka_cleaner(kafka_tools: Path) -> Iterator[KafkaCleaner]:
    """Kafka's own Cleaner, for closed logs."""
    with running_cleaner(Path(__file__).with_name("CleanLogs.java")) as cleaner:
        yield cleaner


@pytest.fixture(scope="session")
def kafka_tiered_topic(kafka: KafkaOracle) -> TieredTopic:
    """A topic that Kafka has tiered: history in LocalTieredStorage alone, the tail local."""
    return make_tiered_topic(kafka, "tiered-by-kafka")


@pytest.fixture(scope="session")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A master and two workers; a test that kills one replaces it."""
    with SparkCluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def s3_server(tmp_path: Path) -> Iterator[S3Server]:
    """An S3 server with an empty bucket."""
    binary = find_versitygw()
    if binary is None:
        pytest.skip("versitygw is not there: scripts/s3-server.sh install, or set VERSITYGW")
    with S3Server(binary, tmp_path / "buckets") as running:
        yield running
