"""Streams over a tier and a broker, each to the end of the available records."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

import isotherm.spark
from isotherm.testing.embedded_broker import EmbeddedBroker
from isotherm.types import TopicIdPartition

TIMEOUT_S = 300
EARLIEST = {"startingOffsets": "earliest"}


@pytest.fixture
def owner() -> TopicIdPartition:
    return TopicIdPartition(uuid.UUID(int=8), "events", 0)


class Sink:
    """A parquet folder with its checkpoint."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark = spark
        self.rows = directory / "rows"
        self.checkpoint = directory / "checkpoint"

    def run(self, stream: DataStreamReader) -> StreamingQuery:
        """Run the query over all available records, in as many batches as the options require."""
        query = self.writer(stream).trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    def writer(self, stream: DataStreamReader) -> DataStreamWriter:
        writer = stream.load().writeStream.format("parquet").option("path", str(self.rows))
        return writer.option("checkpointLocation", str(self.checkpoint))

    def read(self) -> list[tuple[int, int, bytes]]:
        """(partition, offset, value) of each row, with duplicates."""
        frame = self._spark.read.parquet(str(self.rows))
        return sorted(
            (row.partition, row.offset, bytes(row.value or b"")) for row in frame.collect()
        )

    @property
    def offsets(self) -> list[dict]:
        """The offsets of each batch in the checkpoint, in order."""
        logged = sorted((self.checkpoint / "offsets").glob("[0-9]*"), key=lambda p: int(p.name))
        return [json.loads(path.read_text().splitlines()[2]) for path in logged]


@pytest.fixture
def sink(spark: SparkSession, tmp_path: Path) -> Sink:
    return Sink(spark, tmp_path / "sink")


def stream_of(spark: SparkSession, tier, **options: object) -> DataStreamReader:
    reader = spark.readStream.format("isotherm").option("path", tier.folder.as_uri())
    given = {"subscribe": "events"} | EARLIEST | options
    return reader.options(**{name: str(value) for name, value in given.items()})


def expected(tier) -> list[tuple[int, int, bytes]]:
    return sorted(
        (partition, offset, made.value or b"")
        for (_, partition, offset), made in tier.records.items()
    )


@pytest.mark.nightly
def test_stream_follows_the_bucket_over_runs(spark: SparkSession, tier, owner, sink: Sink) -> None:
    tier.add(owner, range(100))
    tier.add(owner._replace(partition=1), range(50))
    sink.run(stream_of(spark, tier))
    assert sink.read() == expected(tier)
    tier.add(owner, range(100, 130))
    sink.run(stream_of(spark, tier))
    assert sink.read() == expected(tier)
    assert sink.offsets == [
        {"@start": {"events": {"0": 0, "1": 0}}, "events": {"0": 100, "1": 50}},
        {"events": {"0": 130, "1": 50}},
    ]


def test_limits_make_more_batches_of_the_same_rows(
    spark: SparkSession, tier, owner, sink: Sink
) -> None:
    tier.add(owner, range(100))
    tier.add(owner._replace(partition=1), range(50))
    query = sink.run(stream_of(spark, tier, maxOffsetsPerTrigger=60))
    assert sink.read() == expected(tier)
    assert [batch["events"] for batch in sink.offsets] == [
        {"0": 40, "1": 20},
        {"0": 80, "1": 40},
        {"0": 100, "1": 50},
    ]
    reports = [
        isotherm.spark.offsets_behind_latest(progress)
        for progress in query.recentProgress
        if progress.numInputRows
    ]
    assert reports == [(30, 60, 45.0), (10, 20, 15.0), (0, 0, 0.0)]


def test_bytes_limit_bounds_batches(spark: SparkSession, tier, owner, sink: Sink) -> None:
    segments = [tier.add(owner, range(base, base + 100)) for base in (0, 100, 200)]
    size = sum(segment.segment_size_in_bytes for segment in segments)
    sink.run(stream_of(spark, tier, maxBytesPerTrigger=size // 6))
    assert sink.read() == expected(tier)
    assert 5 <= len(sink.offsets) <= 8


def test_options_of_batch_queries_are_refused(spark: SparkSession, tier, owner, sink: Sink) -> None:
    tier.add(owner, range(10))
    with pytest.raises(
        (AnalysisException, StreamingQueryException), match="ending offset not valid"
    ):
        sink.run(stream_of(spark, tier, endingOffsets="latest"))


def test_stream_starts_in_the_bucket_and_ends_in_the_tail_while_segments_move(
    spark: SparkSession, broker: EmbeddedBroker, sink: Sink, await_manifests
) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    config = {"remote.storage.enable": "true", "segment.bytes": "1048576", "retention.ms": "-1"}
    config |= {"local.retention.bytes": "1"}
    for future in admin.create_topics([NewTopic("moving", 2, 1, config=config)]).values():
        future.result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "batch.size": 65536})
    sent: Counter[bytes] = Counter()

    def produce(count: int) -> None:
        for _ in range(count):
            value = b"%d-" % len(sent)
            sent[value] += 1
            producer.produce("moving", value.ljust(2000, b"x"), partition=len(sent) % 2)
        assert producer.flush(TIMEOUT_S) == 0

    produce(1500)
    await_manifests(broker, "moving", 2)
    stream = spark.readStream.format("isotherm").options(
        **{
            "path": (broker.directory / "bucket").as_uri(),
            "kafka.bootstrap.servers": broker.bootstrap_servers,
            "subscribe": "moving",
            "startingOffsets": "earliest",
            "maxOffsetsPerTrigger": "400",
        }
    )
    query = sink.writer(stream).start()
    for manifests in (4, 6):
        produce(1500)
        await_manifests(broker, "moving", manifests)
    query.processAllAvailable()
    query.stop()
    rows = sink.read()
    assert Counter(value[: value.index(b"-") + 1] for _, _, value in rows) == sent
    places = [(partition, offset) for partition, offset, _ in rows]
    assert places == [(p, o) for p in (0, 1) for o in range(len(sent) // 2)]


def test_continuous_processing_time_query_reads_what_is_appended(
    spark: SparkSession, tier, owner
) -> None:
    tier.add(owner, range(10))
    stream = stream_of(spark, tier, bucketPollInterval="0ms", startingOffsets="latest")
    query = stream.load().writeStream.format("memory").queryName("appended").start()
    try:
        query.processAllAvailable()
        tier.add(owner, range(10, 30))
        query.processAllAvailable()
        rows = spark.sql("SELECT offset FROM appended ORDER BY offset").collect()
        assert [row.offset for row in rows] == list(range(10, 30))
    finally:
        query.stop()


def test_batch_of_a_stream_finds_what_was_replaced_or_lost_since_it_was_planned(
    spark: SparkSession, tier, owner
) -> None:
    """A batch is planned before `foreachBatch` is called, and read inside it."""
    for offsets in (range(50), range(50, 100), range(100, 150)):
        tier.add(owner, offsets)
    replaced, lost = tier.segments[1:]
    seen: list[int] = []

    def replace_and_read(frame: DataFrame, number: int) -> None:
        tier.storage.delete_log_segment_data(replaced)
        tier.add(owner, range(50, 100))
        seen.extend(row.offset for row in frame.select("offset").collect())

    def lose_and_read(frame: DataFrame, number: int) -> None:
        tier.log_path(lost).unlink()
        frame.collect()

    def run(read: Callable[[DataFrame, int], None]) -> None:
        frame = stream_of(spark, tier, columns="offset").load()
        writer = frame.writeStream.foreachBatch(read).trigger(availableNow=True)
        writer.start().awaitTermination()

    run(replace_and_read)
    assert sorted(seen) == list(range(150))
    with pytest.raises(StreamingQueryException, match=r"damaged.*start_offset=100"):
        run(lose_and_read)
