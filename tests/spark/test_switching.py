"""docs/spark-switching.md, word for word: its examples run, and its table has every option."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

import isotherm.spark
from isotherm.spark.options import source_option_keys
from isotherm.testing.embedded_broker import EmbeddedBroker

PAGE = (Path(__file__).parents[2] / "docs" / "spark-switching.md").read_text()
TIMEOUT_S = 300
JANUARY_MS, FEBRUARY_MS = 1_357_016_400_000, 1_359_694_800_000
# The provider's constants that are no options of a source: one is for tests, one is the sink's.
NO_SOURCE_OPTIONS = {"_mocksystemtime", "topic"}


def produce(broker: EmbeddedBroker, count: int, first_ms: int) -> None:
    """Departures as the demo has them: the carrier as the key, a line of JSON as the value."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "batch.size": 65536})
    for number in range(count):
        carrier = b"UA" if number % 3 else b"B6"
        line = b'{"flight":%d,"origin":"EWR","dest":"IAH","note":"%s"}' % (number, b"x" * 900)
        producer.produce("flights", line, carrier, timestamp=first_ms + number * 1000)
    assert producer.flush(TIMEOUT_S) == 0


def test_examples_of_the_page_run(
    spark_with_kafka_source: SparkSession,
    broker: EmbeddedBroker,
    await_manifests,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    config = {"remote.storage.enable": "true", "segment.bytes": "1048576", "retention.ms": "-1"}
    config |= {"local.retention.bytes": "1"}
    admin.create_topics([NewTopic("flights", 1, 1, config=config)])["flights"].result(TIMEOUT_S)
    produce(broker, 2000, JANUARY_MS)
    produce(broker, 1000, FEBRUARY_MS)
    await_manifests(broker, "flights", 2)

    spark = spark_with_kafka_source
    names: dict[str, object] = {"spark": spark, "isotherm": isotherm}
    for example in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        code = example.replace("s3://my-bucket/kafka", (broker.directory / "bucket").as_uri())
        code = code.replace("broker:9092", broker.bootstrap_servers)
        code = re.sub(r'"([\w-]+\.(parquet|checkpoint))"', rf'"{tmp_path}/\1"', code)
        exec(code, names)
        if "def committed_offsets" in example:
            produce(broker, 70, FEBRUARY_MS)
    printed = capsys.readouterr().out
    assert '{"flights":{"0":3000}}' in printed
    assert "'maxOffsetsBehindLatest': '0'" in printed
    assert names["january"].count() == 2000
    carried = [
        spark.read.parquet(f"{tmp_path}/{name}.parquet") for name in ("flights", "flights-2")
    ]
    assert [frame.count() for frame in carried] == [3000, 70]
    offsets = sorted(row.offset for frame in carried for row in frame.select("offset").collect())
    assert offsets == list(range(3070))


def options_of_the_kafka_source(spark: SparkSession) -> dict[str, str]:
    """The names of the Kafka source's options: the single-word constants of its provider."""
    java = spark._jvm.java.lang
    loader = java.Thread.currentThread().getContextClassLoader()
    name = "org.apache.spark.sql.kafka010.KafkaSourceProvider$"
    provider = java.Class.forName(name, True, loader)
    module = provider.getField("MODULE$").get(None)
    nothing = spark._sc._gateway.new_array(java.Object, 0)
    constants = {}
    for method in provider.getDeclaredMethods():
        constant = re.search(r"[A-Z_]+$", method.getName())
        if constant and method.getParameterCount() == 0:
            value = method.invoke(module, nothing)
            if isinstance(value, str) and re.fullmatch(r"[\w.]+", value):
                constants[constant[0]] = value
    return constants


def test_every_option_of_the_kafka_source_is_here_and_on_the_page(
    spark_with_kafka_source: SparkSession,
) -> None:
    constants = options_of_the_kafka_source(spark_with_kafka_source)
    ours = {name.lower(): option for name, option in source_option_keys().items()}
    default_delay = constants.pop("DEFAULT_MAX_TRIGGER_DELAY")
    assert ours["maxtriggerdelay"].default == default_delay
    theirs = {name.lower() for name in constants.values()} - NO_SOURCE_OPTIONS
    assert len(theirs) >= 20
    assert theirs <= set(ours)
    table = PAGE.partition("<!-- options of the Kafka source -->")[2].partition("<!-- end")[0]
    rows = {name.lower() for name in re.findall(r"^\| `([\w.]+)` \|", table, re.MULTILINE)}
    assert {name for name in rows if not name.startswith("kafka.")} == theirs
