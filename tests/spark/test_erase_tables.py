"""`erase --table` on Spark: the rows of erased records are in no file of a topic's tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable
from pyarrow import parquet
from typer.testing import CliRunner

from isotherm.cli import pipeline_erase_tail
from isotherm.cli.main import app
from isotherm.testing.embedded_broker import TIERED_TOPIC, EmbeddedBroker
from tests.support.topic_tables import load_table, rows_of, run_table

TIMEOUT_S = 300
TOPIC = "visits"
GONE = "person-3"
FORMATS = ("iceberg", "delta", "parquet")


def key_of(number: int) -> str:
    return f"person-{number % 9}"


def value_of(number: int) -> bytes:
    # No dictionary of a Parquet file hides the words. Each eleventh is a dead letter.
    text = json.dumps({"who": f"{key_of(number)} {number}", "n": number}).ljust(700)
    return text.encode() if number % 11 else b"{" + text.encode()


def produce(broker: EmbeddedBroker, numbers: Iterable[int]) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 20})
    for number in numbers:
        producer.produce(TOPIC, key=key_of(number), value=value_of(number))
    assert producer.flush(TIMEOUT_S) == 0


def run(*arguments: str, code: int = 0) -> Any:
    done = CliRunner().invoke(
        app, ["pipeline", "erase", *arguments, "--json", "--master", "local[2]"]
    )
    assert done.exit_code == code, (done.output, done.exception)
    return json.loads(done.stdout)


def parquet_rows(folder: Path) -> list[int]:
    """The numbers in the rows of all Parquet files, whether or not a table names them."""
    numbers = []
    for file in folder.rglob("*.parquet"):
        if "_delta_log" in file.parts:
            continue
        for row in parquet.read_table(file).select(["key", "value"]).to_pylist():
            value = row["value"]
            if isinstance(value, bytes):
                value = json.loads(value[1:])
            assert isinstance(row["key"], bytes | str)
            numbers.append(value["n"])
    return numbers


@pytest.mark.usefixtures("spark")
def test_rows_of_erased_records_are_in_no_file_of_any_table(
    broker: EmbeddedBroker,
    tmp_path: Path,
    await_manifests: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    config = {**TIERED_TOPIC, "local.retention.bytes": "-1"}
    admin.create_topics([NewTopic(TOPIC, 1, 1, config=config)])[TOPIC].result(TIMEOUT_S)
    bucket, lake = broker.directory / "bucket", tmp_path / "lake"
    brokers = ["-b", broker.bootstrap_servers]

    def tables(until: str) -> None:
        for each in FORMATS:
            options = ("--to", each, "--value", "json", "--key", "string", "--until", until)
            partitions = ("--partition-by", "day") if each != "iceberg" else ()
            run_table(
                TOPIC,
                bucket,
                *brokers,
                "--warehouse",
                str(lake),
                *options,
                *(("--table", f"{TOPIC}_{each}") if each != "iceberg" else ()),
                *partitions,
            )

    produce(broker, range(3000))
    await_manifests(broker, TOPIC, 1)
    tables("tiered")
    produce(broker, range(3000, 6000))
    await_manifests(broker, TOPIC, 4)
    # The tables have the tail too, which is on the broker only.
    tables("latest")
    before = parquet_rows(lake)
    assert {n for n in before if key_of(n) == GONE}
    # What a run that was killed before its commit has left.
    orphan = next((lake / f"{TOPIC}_delta").rglob("*.parquet"))
    orphan.with_name("orphan.parquet").write_bytes(orphan.read_bytes())

    keys = tmp_path / "gone.txt"
    keys.write_text(GONE)
    named = [f"kafka.{TOPIC}", f"delta:{TOPIC}_delta", f"parquet:{TOPIC}_parquet@{lake}"]
    place = [*brokers, "--path", str(bucket), "-o", f"subscribe={TOPIC}", "--keys", str(keys)]
    place += ["--warehouse", str(lake), *(part for each in named for part in ("--table", each))]
    planned = run(*place)
    assert all(each["rows"] > 0 for each in planned["tables"])
    assert len(parquet_rows(lake)) > len(before)
    says, tails = pipeline_erase_tail._print_tails, []

    def print_tails(shown: list[str]) -> None:
        says(shown)
        if not tails:
            # They roll the tail's segment, and leave no gap that the tables would refuse.
            produce(broker, [n for n in range(6000, 9000) if key_of(n) != GONE])
        tails.extend(shown)

    monkeypatch.setattr(pipeline_erase_tail, "_print_tails", print_tails)
    certificate = run(*place, "--run", "--wait", "--wait-s", "300", "--keep-old-ms", "0")
    assert f"{TOPIC}-0 offsets" in tails[0]
    # Numbers below 6000 are the offsets of the topic's only partition, in one pass or another.
    kept = parquet.read_table(
        bucket / "isotherm-erasures" / f"{certificate['run']}.offsets.parquet"
    )
    assert {n for n in before if key_of(n) == GONE} <= set(kept.column("offset").to_pylist())

    deleted = [each["deleted"] for each in certificate["tables"]]
    assert deleted == [sum(key_of(n) == GONE for n in before) // len(FORMATS)] * len(FORMATS)
    assert [each["left"] for each in certificate["tables"]] == [0, 0, 0]
    assert sorted(parquet_rows(lake)) == sorted(n for n in before if key_of(n) != GONE)
    for file in lake.rglob("*"):
        if file.is_file() and file.suffix != ".db":
            assert GONE.encode() not in file.read_bytes(), file
    # The tables are whole, and the next runs go on where the last ones have ended.
    produce(broker, range(9000, 12000))
    await_manifests(broker, TOPIC, 9)
    tables("tiered")
    rows = rows_of(load_table(lake, f"kafka.{TOPIC}"))
    delta = DeltaTable(lake / f"{TOPIC}_delta").to_pyarrow_table()
    places = sorted((row["partition"], row["offset"]) for row in rows)
    assert len(set(places)) == len(places)
    assert sorted(delta.column("offset").to_pylist()) == [offset for _, offset in places]
    verified = run(*place, "--verify", certificate["run"])
    assert [each["left"] for each in verified["tables"]] == [0, 0, 0]
