"""Clients that did not change read a topic through a read replica while Apache Kafka writes, tiers
and trims it: from the beginning into the tail, each committed record once and in order.

test_read_replica_of_kafka.py has librdkafka, Java's console consumer, kcat and aiokafka.
"""

from __future__ import annotations

import hashlib
import subprocess
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from bench.replica_servers import await_tier
from isotherm.remote.storage.layout.names import LOCAL_TIERED_STORAGE
from oracle.consumed_records import consume_all
from oracle.jars import OracleUnavailableError
from oracle.java_program import JavaProgram, class_path
from oracle.kafka import KafkaOracle
from oracle.tiered_topic import fully_tiered
from oracle.topics import SEGMENT_BYTES_MIN, create_topic, delete_topic
from suites import go_modules
from suites.building import TOOLS, run_step
from suites.results import SuiteUnavailableError
from tests.oracle.moving_topic import committed_records, moving_topic
from tests.support.conditions import wait_until
from tests.support.embedded_replica import EmbeddedReplica

with warnings.catch_warnings():
    # It reads its schemas, at import, with a function that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaConsumer

BEFORE, MEANWHILE = 60, 60
TIMEOUT_S = 300
INTEROP = Path(__file__).parent.parent / "interop"

Offsets = list[int]


@pytest.fixture(scope="module")
def replica(
    kafka: KafkaOracle, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EmbeddedReplica]:
    scratch = tmp_path_factory.mktemp("replica")
    # Kafka makes the metadata topic after it says that it has started.
    await_tier(kafka.bootstrap_server)
    # The bucket may have no object yet that tells its layout.
    layout = {"rsm.config.layout": LOCAL_TIERED_STORAGE}
    with EmbeddedReplica(
        scratch, kafka.remote_dir, layout, upstream=kafka.bootstrap_server
    ) as started:
        yield started


@contextmanager
def topic_in_motion(kafka: KafkaOracle, replica: EmbeddedReplica, topic: str) -> Iterator[None]:
    """The topic, from when a part of it is in the tier. It is written during the block."""

    def is_tiered() -> bool:
        if topic not in replica.node.services.metadata.image.topics_by_name:
            return False
        manager = replica.node.services.replica_manager
        return manager.find_partition(topic, None, 0).log.log_end_offset > 0

    with moving_topic(kafka.bootstrap_server, topic, before=BEFORE, meanwhile=MEANWHILE) as writer:
        wait_until(is_tiered, "the first segment at the replica")
        writer.start()
        yield


def expect_all(kafka: KafkaOracle, topic: str, read: Callable[[], Offsets]) -> None:
    """`read` returns the offsets that a client has read so far."""
    count = committed_records(BEFORE + MEANWHILE)
    wait_until(lambda: len(read()) >= count, lambda: f"{count} records, {len(read())} so far")
    assert read() == [message.offset for message in consume_all(kafka.bootstrap_server, topic)]


def go_reader(folder: Path) -> Path:
    """The compiled program of the folder, built once."""
    text = b"".join((folder / name).read_bytes() for name in ("go.sum", "main.go"))
    name = f"{folder.parent.name}-reader-{hashlib.sha256(text).hexdigest()[:12]}"
    binary = TOOLS / name
    if binary.exists():
        return binary
    try:
        go_modules.module_source(folder)
    except SuiteUnavailableError as error:
        pytest.skip(str(error))
    TOOLS.mkdir(exist_ok=True)
    run_step(["go", "build", "-o", str(binary), "."], folder)
    return binary


@pytest.mark.parametrize("client", ["franz_go", "sarama"])
def test_clients_in_go_read_all(
    kafka: KafkaOracle, replica: EmbeddedReplica, client: str, tmp_path: Path
) -> None:
    topic, path = f"moving-{client}", tmp_path / "offsets"
    path.touch()

    def read() -> Offsets:
        text = path.read_text()
        return [int(line.split()[1]) for line in text[: text.rfind("\n") + 1].splitlines()]

    binary = go_reader(INTEROP / client / "reader")
    with topic_in_motion(kafka, replica, topic):
        command = [str(binary), replica.bootstrap_servers, topic, f"of-{client}", str(path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
            try:
                expect_all(kafka, topic, read)
            finally:
                process.kill()


@pytest.mark.parametrize("in_group", [True, False])
def test_kafka_python_reads_all(
    kafka: KafkaOracle, replica: EmbeddedReplica, in_group: bool
) -> None:
    topic = f"moving-python-{in_group}"
    got: Offsets = []
    ends = threading.Event()

    def consume() -> None:
        consumer = KafkaConsumer(
            topic,
            bootstrap_servers=replica.bootstrap_servers,
            group_id="of-python" if in_group else None,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            metadata_max_age_ms=500,
        )
        while not ends.is_set():
            for records in consumer.poll(timeout_ms=200).values():
                got.extend(record.offset for record in records)
        consumer.close()

    thread = threading.Thread(target=consume)
    with topic_in_motion(kafka, replica, topic):
        thread.start()
        try:
            expect_all(kafka, topic, lambda: list(got))
        finally:
            ends.set()
            thread.join()


@pytest.mark.nightly
@pytest.mark.slow
def test_sparks_own_source_reads_all(
    kafka: KafkaOracle, replica: EmbeddedReplica, spark_with_kafka_source: SparkSession
) -> None:
    topic = "moving-spark"
    with topic_in_motion(kafka, replica, topic):

        def read() -> Offsets:
            frame = (
                spark_with_kafka_source.read.format("kafka")
                .option("kafka.bootstrap.servers", replica.bootstrap_servers)
                .option("kafka.isolation.level", "read_committed")
                .option("subscribe", topic)
                .option("startingOffsets", "earliest")
                .load()
            )
            return [row.offset for row in frame.select("offset").orderBy("offset").collect()]

        expect_all(kafka, topic, read)


@pytest.mark.nightly
@pytest.mark.slow
def test_kafka_streams_restores_its_store(
    kafka: KafkaOracle, replica: EmbeddedReplica, tmp_path: Path
) -> None:
    """The changelog of a store, and the input, are read through the replica."""
    source, sink, keys = "streams-input", "streams-output", 50
    changelog = "streams-counts-changelog"
    tiered = {
        "remote.storage.enable": "true",
        "segment.bytes": str(SEGMENT_BYTES_MIN),
        "local.retention.bytes": "1",
        "retention.ms": "-1",
        "file.delete.delay.ms": "100",
    }
    # What is not tiered is not there for the consumers, which read the first two.
    for topic, config in ((source, tiered), (changelog, tiered), (sink, {})):
        create_topic(kafka.bootstrap_server, topic, 1, config)
    try:
        classes = class_path(
            INTEROP / "frameworks" / "kafka.xml", [Path(__file__).with_name("StreamsRestore.java")]
        )
    except OracleUnavailableError as error:
        pytest.skip(str(error))

    def write(count: int) -> None:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_server, "linger.ms": 5})
        for number in range(count):
            producer.produce(source, b"x" * 1000, b"key-%d" % (number % keys), 0)
        assert producer.flush(TIMEOUT_S) == 0

    def counts() -> list[tuple[bytes | None, bytes | None]]:
        records = consume_all(kafka.bootstrap_server, sink, isolation_level="read_committed")
        return [(each.key, each.value) for each in records]

    def run(consumers: str, records: int) -> None:
        program = JavaProgram(
            classes, "StreamsRestore", kafka.bootstrap_server, consumers,
            "streams", source, sink, str(tmp_path / "state"),
            log_path=tmp_path / "streams.log",
        )  # fmt: skip
        try:
            wait_until(lambda: len(counts()) >= records, program.log_end)
            program.end_input(TIMEOUT_S)
        finally:
            program.kill()

    def read_from_the_tier() -> float:
        name = "kafka_server_brokertopicmetrics_remotefetchbytes_total"
        return replica.node.metrics.registry.get_sample_value(name, {"topic": ""}) or 0.0

    write(3000)
    run(kafka.bootstrap_server, 3000)
    for topic in (source, changelog):
        wait_until(lambda name=topic: fully_tiered(kafka.log_dir, name, 1), f"tiering of {topic}")
    # The group goes on behind what it has counted: of the tier the changelog alone is read.
    before_bytes = read_from_the_tier()
    write(1000)
    run(replica.bootstrap_servers, 4000)
    assert counts() == [
        (b"key-%d" % (number % keys), b"%d" % (number // keys + 1)) for number in range(4000)
    ]
    assert read_from_the_tier() - before_bytes > 2 * SEGMENT_BYTES_MIN
    for topic in (source, changelog, sink):
        delete_topic(kafka.bootstrap_server, topic)
