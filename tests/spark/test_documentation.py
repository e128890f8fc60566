"""Every example of docs/spark.md, run one after the other against a broker and its bucket."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

from isotherm.testing.embedded_broker import EmbeddedBroker

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
TIMEOUT_S = 300


@pytest.mark.nightly
def test_examples_of_the_page_run(
    spark: SparkSession, broker: EmbeddedBroker, capsys, await_manifests, tmp_path: Path
) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    config = {"remote.storage.enable": "true", "segment.bytes": "1048576", "retention.ms": "-1"}
    for future in admin.create_topics([NewTopic("flights", 1, 1, config=config)]).values():
        future.result(TIMEOUT_S)
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "batch.size": 65536})
    for number in range(2500):
        producer.produce("flights", b"%d" % number, timestamp=1_357_034_400_000 + number)
        producer.produce("flights", bytes(1000), timestamp=1_357_034_400_000 + number)
    assert producer.flush(TIMEOUT_S) == 0
    await_manifests(broker, "flights", 2)

    names: dict[str, object] = {}
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for example in examples:
        code = example.replace("s3://my-bucket/kafka", (broker.directory / "bucket").as_uri())
        code = re.sub(r'"(flights\.(parquet|checkpoint))"', rf'"{tmp_path}/\1"', code)
        exec(code.replace("broker:9092", broker.bootstrap_servers), names)
    assert names["spark"] is spark
    assert names["flights"].count() == 5000
    history = names["history"].count()
    assert 0 < history < 5000
    assert names["counted"].count() == history
    assert spark.read.parquet(str(tmp_path / "flights.parquet")).count() == 5000
    assert f"\n{history}\n" in capsys.readouterr().out
