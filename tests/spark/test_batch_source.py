"""The source through Spark, on a bucket that the tests fill; no broker."""

from __future__ import annotations

import uuid

import pytest
from pyspark.errors import AnalysisException, PythonException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from isotherm.record.batch import NewRecord
from isotherm.types import TopicIdPartition

KAFKA_SCHEMA = (
    "key binary, value binary, topic string, partition int, offset bigint,"
    " timestamp timestamp, timestampType int"
)
PARTITION_SIZE = 600
ALL_RECORDS = 3 * PARTITION_SIZE


def rows_of(frame: DataFrame) -> dict[tuple[str, int, int], tuple]:
    """(partition, offset) -> key, value and milliseconds. Fails if an offset comes twice."""
    selected = frame.selectExpr(
        "topic", "partition", "offset", "key", "value", "unix_millis(timestamp)", "timestampType"
    )
    rows = selected.collect()
    by_place = {
        (row[0], row[1], row[2]): (_bytes(row[3]), _bytes(row[4]), row[5], row[6]) for row in rows
    }
    assert len(by_place) == len(rows)
    return by_place


def _bytes(value: bytes | bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)


def expected_rows(records: dict[tuple[str, int, int], NewRecord]) -> dict:
    return {place: (r.key, r.value, r.timestamp_ms, 0) for place, r in records.items()}


def offsets_of(frame: DataFrame, partition: int = 0) -> list[int]:
    rows = frame.where(f"partition = {partition}").select("offset").collect()
    return sorted(row.offset for row in rows)


def test_format_is_found_without_registration(spark: SparkSession, flights) -> None:
    frame = flights.load(spark, subscribe="flights").load()
    assert frame.schema == StructType.fromDDL(KAFKA_SCHEMA)


def test_every_record_comes_back(spark: SparkSession, flights) -> None:
    assert rows_of(flights.load(spark, subscribe="flights").load()) == expected_rows(
        flights.records
    )


@pytest.mark.parametrize("target", [5_000, 20_000, 10**9])
def test_tasks_of_any_size_give_the_same_rows(spark: SparkSession, flights, target: int) -> None:
    frame = flights.load(spark, subscribe="flights", targetBytesPerTask=target).load()
    assert rows_of(frame) == expected_rows(flights.records)


def test_min_partitions_gives_at_least_about_as_many(spark: SparkSession, flights) -> None:
    frame = flights.load(spark, subscribe="flights", minPartitions=9).load()
    assert frame.rdd.getNumPartitions() == 9
    assert frame.count() == ALL_RECORDS


def test_max_records_per_partition_bounds_every_task(spark: SparkSession, flights) -> None:
    frame = flights.load(spark, subscribe="flights", maxRecordsPerPartition=70).load()
    sizes = frame.selectExpr("spark_partition_id() AS task").groupBy("task").count().collect()
    assert max(row["count"] for row in sizes) <= 70
    assert sum(row["count"] for row in sizes) == ALL_RECORDS


def test_headers_are_a_column_on_request_and_null_for_none(spark: SparkSession, flights) -> None:
    frame = flights.load(spark, subscribe="flights", includeHeaders="true").load()
    assert frame.schema["headers"].dataType.simpleString() == (
        "array<struct<key:string,value:binary>>"
    )
    rows = frame.where("partition = 1 AND offset < 5").orderBy("offset").collect()
    headers = [
        None if row.headers is None else [(h.key, _bytes(h.value)) for h in row.headers]
        for row in rows
    ]
    some = [("source", b"test"), ("empty", None)]
    assert headers == [some, None, None, some, None]


def test_user_schema_chooses_columns_in_its_order(spark: SparkSession, flights) -> None:
    frame = flights.load(spark, subscribe="flights").schema("offset bigint, partition int").load()
    assert frame.columns == ["offset", "partition"]
    assert {tuple(row) for row in frame.collect()} == {
        (offset, partition) for _, partition, offset in flights.records
    }


def test_columns_option_chooses_columns_in_its_order(spark: SparkSession, flights) -> None:
    frame = flights.load(spark, subscribe="flights", columns="value, offset").load()
    assert frame.columns == ["value", "offset"]
    assert frame.count() == ALL_RECORDS


@pytest.mark.parametrize(
    ("schema", "words"),
    [("offset int", "column=offset type=int expected=bigint"), ("offst bigint", "nearest=offset")],
)
def test_user_schema_of_other_columns_is_refused(
    spark: SparkSession, flights, schema: str, words: str
) -> None:
    with pytest.raises((AnalysisException, PythonException), match=words):
        flights.load(spark, subscribe="flights").schema(schema).load().count()


def test_unknown_option_is_refused_with_the_nearest(spark: SparkSession, flights) -> None:
    with pytest.raises(AnalysisException, match="option=subscibe nearest=subscribe"):
        flights.load(spark, subscibe="flights").load()


def test_pattern_and_assignment_choose_partitions(spark: SparkSession, flights) -> None:
    by_pattern = flights.load(spark, subscribePattern="fl.*s").load()
    assert by_pattern.count() == ALL_RECORDS
    assigned = flights.load(spark, assign='{"flights":[2]}').load()
    assert offsets_of(assigned, 2) == list(range(PARTITION_SIZE))
    assert assigned.count() == PARTITION_SIZE


def test_topic_that_is_not_there_is_an_error(spark: SparkSession, flights) -> None:
    with pytest.raises(
        AnalysisException, match=r"missing=fligths .* found=flights nearest=flights"
    ):
        flights.load(spark, subscribe="fligths").load().count()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"startingOffsets": '{"flights":{"0":250}}'}, range(250, 600)),
        ({"endingOffsets": '{"flights":{"0":470}}'}, range(470)),
        (
            {
                "startingOffsets": '{"flights":{"0":299}}',
                "endingOffsets": '{"flights":{"0":301}}',
            },
            range(299, 301),
        ),
        ({"startingOffsets": '{"flights":{"0":-2}}'}, range(600)),
        ({"endingOffsets": '{"flights":{"0":-1}}'}, range(600)),
        ({"startingTimestamp": 1_700_000_100_000}, range(100, 600)),
        ({"startingTimestamp": 1_700_000_099_001}, range(100, 600)),
        ({"endingTimestamp": 1_700_000_100_000}, range(100)),
        ({"endingTimestamp": 1_800_000_000_000}, range(600)),
        (
            {
                "startingOffsetsByTimestamp": '{"flights":{"0":1700000301000}}',
                "endingOffsetsByTimestamp": '{"flights":{"0":1700000500000}}',
            },
            range(301, 500),
        ),
        (
            {
                "startingTimestamp": 1_800_000_000_000,
                "startingOffsetsByTimestampStrategy": "latest",
            },
            range(0),
        ),
    ],
)
def test_starting_and_ending_options_bound_the_rows(
    spark: SparkSession, flights, options: dict, expected: range
) -> None:
    frame = flights.load(spark, assign='{"flights":[0]}', **options).load()
    assert offsets_of(frame) == list(expected)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"startingTimestamp": 1_800_000_000_000}, "No offset matched from request"),
        ({"startingOffsets": '{"flights":{"0":0}}'}, r"missing=\[flights-1,flights-2\]"),
        (
            {"assign": '{"flights":[0]}', "startingOffsets": '{"flights":{"0":601}}'},
            "resolved start offset 601 is greater than the resolved end offset 600",
        ),
        (
            {"assign": '{"flights":[0]}', "endingOffsets": '{"flights":{"0":601}}'},
            "reach beyond the end .*available_end=600",
        ),
        ({"assign": '{"flights":[3]}'}, "missing=flights-3"),
    ],
)
def test_offsets_that_cannot_be_had_are_errors(
    spark: SparkSession, flights, options: dict, words: str
) -> None:
    chosen = {"subscribe": "flights"} if "assign" not in options else {}
    with pytest.raises(AnalysisException, match=words):
        flights.load(spark, **chosen, **options).load().count()


def test_frame_used_twice_gives_the_same_rows(spark: SparkSession, flights) -> None:
    """Spark 4.3 loses rows here from sources that push filters."""
    frame = flights.load(spark, subscribe="flights").load()
    assert frame.where("partition = 1").count() == PARTITION_SIZE
    assert frame.count() == ALL_RECORDS
    both = frame.where("partition = 1").union(frame.where("partition = 2"))
    assert sorted({row.partition for row in both.select("partition").collect()}) == [1, 2]
    assert both.count() == 2 * PARTITION_SIZE


def test_limit_ends_the_read_early(spark: SparkSession, flights) -> None:
    frame = flights.load(spark, subscribe="flights", batchBytes=1024, fetchBytes=4096).load()
    assert frame.limit(3).count() == 3
    assert len(frame.take(5)) == 5
    assert frame.count() == ALL_RECORDS


def test_missing_object_fails_the_query_naming_it(spark: SparkSession, tier) -> None:
    owner = TopicIdPartition(uuid.UUID(int=5), "t", 0)
    tier.add(owner, range(100))
    frame = tier.load(spark, subscribe="t").load()
    assert frame.count() == 100
    path = tier.log_path(tier.segments[0])
    content = path.read_bytes()
    damaged = bytearray(content)
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(PythonException, match=r"topic=t partition=0 start_offset=0 end_offset=100"):
        frame.count()
    path.write_bytes(content)
    assert frame.count() == 100


@pytest.mark.parametrize("damage", ["missing", "short"])
def test_object_unlike_its_manifest_is_an_error_before_reading(
    spark: SparkSession, tier, damage: str
) -> None:
    owner = TopicIdPartition(uuid.UUID(int=5), "t", 0)
    tier.add(owner, range(100))
    tier.add(owner, range(100, 200))
    path = tier.log_path(tier.segments[1])
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(AnalysisException, match="topic=t partition=0 start_offset=100"):
        tier.load(spark, subscribe="t").load().count()
    tolerant = tier.load(spark, subscribe="t", failOnDataLoss="false").load()
    assert offsets_of(tolerant) == list(range(100))


def test_what_is_gone_or_never_was_in_the_bucket_is_an_error_or_left_out(
    spark: SparkSession, tier
) -> None:
    """One hole was always there, and retention makes one after the query is planned."""
    owner = TopicIdPartition(uuid.UUID(int=5), "t", 0)
    for offsets in (range(100), range(150, 200), range(200, 250)):
        tier.add(owner, offsets)
    planned = tier.load(
        spark, subscribe="t", failOnDataLoss="false", columns="offset", targetBytesPerTask=1024
    ).load()
    rows = planned.rdd
    assert rows.getNumPartitions() > 3
    with pytest.raises(PythonException, match=r"start_offset=100 end_offset=150 .*failOn"):
        tier.load(spark, subscribe="t").load().count()
    tier.storage.delete_log_segment_data(tier.segments[1])
    assert sorted(row.offset for row in rows.collect()) == [*range(100), *range(200, 250)]


def test_topic_made_again_is_read_in_its_newest_incarnation(spark: SparkSession, tier) -> None:
    old, new = (TopicIdPartition(uuid.UUID(int=n), "t", 0) for n in (9, 3))
    tier.add(old, range(100), event_timestamp_ms=1000)
    tier.add(new, range(20), event_timestamp_ms=2000)
    assert offsets_of(tier.load(spark, subscribe="t").load()) == list(range(20))


def test_overlapping_copies_are_read_once(spark: SparkSession, tier) -> None:
    owner = TopicIdPartition(uuid.UUID(int=5), "t", 0)
    tier.add(owner, range(100))
    tier.add(owner, range(50, 130))
    assert offsets_of(tier.load(spark, subscribe="t").load()) == list(range(130))


def test_empty_range_has_no_rows(spark: SparkSession, flights) -> None:
    frame = flights.load(
        spark,
        assign='{"flights":[0]}',
        startingOffsets='{"flights":{"0":7}}',
        endingOffsets='{"flights":{"0":7}}',
    ).load()
    assert frame.collect() == []


def test_view_in_sql_keeps_its_options(spark: SparkSession, flights) -> None:
    spark.sql(
        "CREATE OR REPLACE TEMPORARY VIEW flights USING isotherm"
        f" OPTIONS (path '{flights.folder.as_uri()}', subscribe 'flights')"
    )
    rows = spark.sql("SELECT partition, max(offset) AS last FROM flights GROUP BY 1").collect()
    assert {(row.partition, row.last) for row in rows} == {(p, 599) for p in range(3)}


def test_folder_that_does_not_exist_is_an_error(spark: SparkSession, tmp_path) -> None:
    reader = spark.read.format("isotherm").option("subscribe", "t")
    with pytest.raises(AnalysisException, match="nowhere"):
        reader.load(str(tmp_path / "nowhere")).count()
