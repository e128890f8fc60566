"""History from the bucket and the tail from a broker, compared with a consumer's records."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrameReader, SparkSession

from isotherm.spark.option_parsing import parse_options
from isotherm.spark.plan.planning import BrokerRead, Read, SegmentRead
from isotherm.spark.row_schema import full_schema
from isotherm.spark.source import IsothermReader
from isotherm.spark.source_task import TaskPartition
from isotherm.testing.embedded_broker import TIERED_TOPIC, EmbeddedBroker
from oracle.consumed_records import ConsumedRecord, consume_all, records_of_frame
from tests.support.conditions import wait_until

PARTITIONS = 2
TIMEOUT_S = 300


@dataclass(frozen=True)
class TieredTopic:
    name: str
    broker: EmbeddedBroker
    consumed: list[ConsumedRecord]

    @property
    def options(self) -> dict[str, str]:
        return {
            "path": (self.broker.directory / "bucket").as_uri(),
            "kafka.bootstrap.servers": self.broker.bootstrap_servers,
            "subscribe": self.name,
        }

    def load(self, spark: SparkSession, **more: object) -> DataFrameReader:
        reader = spark.read.format("isotherm").options(**self.options)
        return reader.options(**{name: str(value) for name, value in more.items()})

    def reads(self, **more: str) -> list[Read]:
        """The planned reads, without Spark."""
        options = parse_options(self.options | more)
        reader = IsothermReader(options, full_schema(include_headers=False))
        partitions = reader.partitions()
        assert all(isinstance(partition, TaskPartition) for partition in partitions)
        return [read for partition in partitions for read in partition.task.reads]


def create_topic(broker: EmbeddedBroker, name: str, config: dict[str, str]) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    for future in admin.create_topics([NewTopic(name, PARTITIONS, 1, config=config)]).values():
        future.result(TIMEOUT_S)


def produce(broker: EmbeddedBroker, topic: str, numbers: range, size: int = 1000) -> None:
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "linger.ms": 20,
            "compression.type": "none",
            "batch.size": 65536,
        }
    )
    for number in numbers:
        producer.produce(
            topic,
            partition=number % PARTITIONS,
            key=None if number % 7 == 0 else b"key-%d" % number,
            value=(b"%d-" % number).ljust(size, b"x"),
            timestamp=1_700_000_000_000 + number * 10,
            headers=[("number", b"%d" % number), ("none", None)] if number % 3 == 0 else [],
        )
    assert producer.flush(TIMEOUT_S) == 0


def local_segments(broker: EmbeddedBroker, topic: str) -> list[Path]:
    return list((broker.directory / "log").glob(f"{topic}-*/*.log"))


def await_tiered(broker: EmbeddedBroker, topic: str) -> None:
    """Wait until every partition has only its active segment on the broker's disk."""
    wait_until(lambda: len(local_segments(broker, topic)) <= PARTITIONS, "the topic's tiering")


@pytest.fixture(scope="module")
def topic(broker: EmbeddedBroker) -> TieredTopic:
    create_topic(broker, "history", TIERED_TOPIC)
    produce(broker, "history", range(9000))
    await_tiered(broker, "history")
    consumed = consume_all(broker.bootstrap_servers, "history", isolation_level="read_uncommitted")
    assert len(consumed) == 9000
    return TieredTopic("history", broker, consumed)


def test_rows_are_what_a_consumer_reads(spark: SparkSession, topic: TieredTopic) -> None:
    frame = topic.load(spark, includeHeaders="true").load()
    assert records_of_frame(frame) == topic.consumed


def test_history_and_tail_meet_without_gap_or_overlap(topic: TieredTopic) -> None:
    for partition in range(PARTITIONS):
        reads = [read for read in topic.reads() if read.topic_partition.partition == partition]
        assert isinstance(reads[0], SegmentRead)
        assert isinstance(reads[-1], BrokerRead)
        for before, after in itertools.pairwise(reads):
            assert before.end_offset == after.start_offset
        assert reads[0].start_offset == 0
        assert reads[-1].end_offset == sum(r.partition == partition for r in topic.consumed)


def test_bucket_metadata_gives_the_same_history_as_the_topic(topic: TieredTopic) -> None:
    by_bucket, by_topic = (
        [
            (read.segment.segment_id, read.start_offset, read.end_offset)
            for read in topic.reads(metadata=source)
            if isinstance(read, SegmentRead)
        ]
        for source in ("bucket", "topic")
    )
    assert by_bucket == by_topic
    assert len(by_bucket) > 4


def test_bucket_alone_ends_where_the_tail_begins(spark: SparkSession, topic: TieredTopic) -> None:
    tails = {
        read.topic_partition.partition: read.start_offset
        for read in topic.reads()
        if isinstance(read, BrokerRead)
    }
    frame = topic.load(spark, includeTail="false", includeHeaders="true").load()
    assert records_of_frame(frame) == [r for r in topic.consumed if r.offset < tails[r.partition]]
    without_broker = (
        spark.read.format("isotherm")
        .option("path", topic.options["path"])
        .option("subscribe", topic.name)
        .load()
    )
    assert without_broker.count() == frame.count()


@pytest.mark.parametrize("number", [0, 4500, 8_999])
def test_timestamps_are_found_in_bucket_and_tail(
    spark: SparkSession, topic: TieredTopic, number: int
) -> None:
    time_ms = 1_700_000_000_000 + number * 10
    strategy = {"startingOffsetsByTimestampStrategy": "latest"}
    after = topic.load(spark, startingTimestamp=time_ms, **strategy).load()
    assert after.count() == 9000 - number
    before = topic.load(spark, endingTimestamp=time_ms).load()
    assert before.count() == number


def test_offsets_in_the_tail_alone_read_no_segment(spark: SparkSession, topic: TieredTopic) -> None:
    tails = [read for read in topic.reads() if isinstance(read, BrokerRead)]
    starts = ",".join(f'"{read.topic_partition.partition}":{read.end_offset - 5}' for read in tails)
    frame = topic.load(spark, startingOffsets=f'{{"history":{{{starts}}}}}').load()
    assert frame.count() == 10


def test_offsets_beyond_the_end_are_refused(spark: SparkSession, topic: TieredTopic) -> None:
    with pytest.raises(AnalysisException, match="reach beyond the end"):
        topic.load(spark, endingOffsets='{"history":{"0":99999,"1":-1}}').load().count()


def test_records_written_after_planning_are_not_read(
    spark: SparkSession, broker: EmbeddedBroker
) -> None:
    create_topic(broker, "growing", {"retention.ms": "-1"})
    produce(broker, "growing", range(100), size=10)
    grown = TieredTopic("growing", broker, [])
    frame = grown.load(spark).load()
    frame.explain()
    first = frame.count()
    produce(broker, "growing", range(100, 150), size=10)
    assert (first, grown.load(spark).load().count()) == (100, 150)


def test_topic_with_nothing_in_the_bucket_is_read_from_the_broker(
    spark: SparkSession, broker: EmbeddedBroker
) -> None:
    create_topic(broker, "local-only", {"retention.ms": "-1"})
    produce(broker, "local-only", range(300), size=10)
    local = TieredTopic("local-only", broker, [])
    frame = local.load(spark, includeHeaders="true").load()
    assert records_of_frame(frame) == consume_all(broker.bootstrap_servers, "local-only")
    frame = local.load(spark, minPartitions=6).load()
    assert (frame.rdd.getNumPartitions(), frame.count()) == (6, 300)


def test_empty_topic_has_no_rows(spark: SparkSession, broker: EmbeddedBroker) -> None:
    create_topic(broker, "empty", {"remote.storage.enable": "true"})
    assert TieredTopic("empty", broker, []).load(spark).load().collect() == []


def test_topic_unknown_to_the_broker_is_an_error(spark: SparkSession, topic: TieredTopic) -> None:
    with pytest.raises(AnalysisException, match="missing=histori nearest=history"):
        TieredTopic("histori", topic.broker, []).load(spark).load().count()


def test_pattern_reads_the_topics_the_broker_has(spark: SparkSession, topic: TieredTopic) -> None:
    options = {k: v for k, v in topic.options.items() if k != "subscribe"}
    frame = spark.read.format("isotherm").options(subscribePattern="hist.*", **options).load()
    assert frame.count() == 9000


def test_topic_made_again_is_not_mixed_with_its_predecessor(
    spark: SparkSession, broker: EmbeddedBroker
) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    create_topic(broker, "again", TIERED_TOPIC)
    produce(broker, "again", range(4000))
    await_tiered(broker, "again")
    for future in admin.delete_topics(["again"]).values():
        future.result(TIMEOUT_S)
    create_topic(broker, "again", TIERED_TOPIC)
    produce(broker, "again", range(30), size=10)
    again = TieredTopic("again", broker, [])
    rows = records_of_frame(again.load(spark, includeHeaders="true").load())
    assert rows == consume_all(broker.bootstrap_servers, "again")
    assert len(rows) == 30


def test_brokers_that_do_not_answer_are_reported(
    spark: SparkSession, topic: TieredTopic, unused_port: int
) -> None:
    options = topic.options | {"kafka.bootstrap.servers": f"127.0.0.1:{unused_port}"}
    reader = spark.read.format("isotherm").options(
        **options, **{"kafka.socket.timeout.ms": "500", "fetchOffset.numRetries": "0"}
    )
    message = f"no broker is reachable at 127.0.0.1:{unused_port}: connection refused"
    with pytest.raises(AnalysisException, match=re.escape(message)):
        reader.load().count()


def test_property_unknown_to_the_client_is_named(spark: SparkSession, topic: TieredTopic) -> None:
    reader = topic.load(spark).option("kafka.no.such.property", "5")
    with pytest.raises(AnalysisException, match=re.escape("no.such.property")):
        reader.load().count()
