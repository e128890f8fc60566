"""`isotherm pipeline table --retention follow`: the table has the records that a consumer still
gets.
"""

from __future__ import annotations

from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from isotherm.errors import ConfigError
from isotherm.testing.embedded_broker import TIERED_TOPIC, EmbeddedBroker
from oracle.consumed_records import consume_all
from tests.spark.conftest import Tier
from tests.support.topic_tables import load_table, records_of, rows_of, run_table


@pytest.mark.usefixtures("spark")
def test_rows_go_that_kafka_has_deleted(broker: EmbeddedBroker, tmp_path: Path) -> None:
    server = broker.bootstrap_servers
    admin = AdminClient({"bootstrap.servers": server})
    admin.create_topics([NewTopic("gone", 2, 1, config=TIERED_TOPIC)])["gone"].result(300)
    producer = Producer({"bootstrap.servers": server, "linger.ms": 1})

    def produce() -> None:
        for number in range(200):
            producer.produce("gone", value=f"{number}".ljust(200, "x"), partition=number % 2)
        producer.flush(300)

    lake = tmp_path / "lake"
    options = ("-b", server, "--warehouse", str(lake))

    def run(*more: str) -> Any:
        return run_table("gone", broker.directory / "bucket", *options, *more)

    for _ in range(2):
        produce()
        run()
    assert len(rows_of(load_table(lake, "kafka.gone"))) == 400
    # The first file of partition 0 is below, and one of partition 1 is on the border.
    before = [TopicPartition("gone", 0, 100), TopicPartition("gone", 1, 130)]
    for future in admin.delete_records(before).values():
        future.result(300)
    assert run("--retention", "follow")["upkeep"]["deleted_rows"] == 230
    assert run("--retention", "follow")["upkeep"]["deleted_rows"] == 0
    rows = rows_of(load_table(lake, "kafka.gone"))
    assert records_of(rows) == [astuple(record) for record in consume_all(server, "gone")]
    assert len(rows) == 170


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--retention", "all"), r"option=--retention value=all known=keep,follow"),
        (("--retention", "follow"), r"only brokers know the log start"),
    ],
)
def test_wrong_options_are_named(
    tier: Tier, tmp_path: Path, options: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        run_table("prices", tier.folder, "--warehouse", str(tmp_path), *options)
