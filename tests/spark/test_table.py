"""`isotherm pipeline table`: the table and its dead letters together always have the topic's
records.

Oracles: the records put into the bucket, Python's json, and a consumer. Readers: PyIceberg and
DuckDB.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import astuple
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from typer.testing import CliRunner

from isotherm.cli.main import app
from isotherm.errors import (
    ConfigError,
    IsothermError,
    OffsetOutOfRangeError,
    PolicyViolationError,
    UnknownTopicOrPartitionError,
)
from isotherm.record.batch import CompressionType, NewRecord, build_batch
from isotherm.spark.tables.iceberg_table import IcebergTable
from isotherm.testing.embedded_broker import TIERED_TOPIC, EmbeddedBroker
from isotherm.types import TopicIdPartition
from oracle.consumed_records import consume_all
from tests.spark.conftest import Tier
from tests.support.topic_tables import load_table, records_of, rows_of, run_table

OWNER = TopicIdPartition(uuid.UUID(int=9), "prices", 0)
OTHER = TopicIdPartition(uuid.UUID(int=9), "prices", 1)
YEAR_9999_MS = 253_402_300_799_999
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DEAD = [b"{", b"", b"17", b"\xff\xfe", b'{"n": "one", "new": 1}']

COLUMNS = {
    "n": "long",
    "eur": "double",
    "at.city": "string",
    "at.zip": "long",
    "usd": "double",
    "tags": "list<string>",
    "new": "long",
}

needs_spark = pytest.mark.usefixtures("spark")


def put(tier: Tier, owner: TopicIdPartition, values: list[bytes | None]) -> None:
    """Add a segment to the partition, with several codecs and odd keys, headers and times."""
    before = [offset for topic, partition, offset in tier.records if partition == owner.partition]
    start = len(before)
    records = [
        NewRecord(
            timestamp_ms=(-1, YEAR_9999_MS, 1_700_000_000_123 + offset)[min(offset, 2)],
            key=None if offset % 3 == 0 else b"key-%d" % offset,
            value=value,
            headers=(("a", b"1"), ("a", None)) if offset % 4 == 0 else (),
        )
        for offset, value in enumerate(values, start)
    ]
    codecs = list(CompressionType)
    batches = [
        build_batch(
            records[at : at + 7],
            base_offset=start + at,
            compression=codecs[at % len(codecs)],
        )
        for at in range(0, len(records), 7)
    ]
    tier.maker.tier(owner, batches)
    for offset, record in enumerate(records, start):
        tier.records[owner.topic, owner.partition, offset] = record


def documents(numbers: range, **more: Any) -> list[bytes | None]:
    return [
        None if n % 11 == 5 else json.dumps({"n": n, "eur": n % 2 * 0.5, **more}).encode()
        for n in numbers
    ]


def check_is_topic(tier: Tier, rows: list[dict[str, Any]], dead: list[dict[str, Any]]) -> None:
    """Check that each record is unchanged and exactly once in the table or the dead letters."""
    found = {(row["topic"], row["partition"], row["offset"]): row for row in rows + dead}
    assert len(found) == len(rows) + len(dead)
    assert found.keys() == tier.records.keys()
    for place, record in tier.records.items():
        row = found[place]
        assert row["timestamp"] == EPOCH + timedelta(milliseconds=record.timestamp_ms)
        assert row["timestampType"] == 0
        assert row["key"] == record.key
        headers = tuple((header["key"], header["value"]) for header in row["headers"] or ())
        assert headers == tuple(record.headers)
        if "reason" in row:
            assert row["value"] == record.value
            assert row["reason"]
        else:
            value = None if record.value is None else json.loads(record.value)
            assert without_nulls(row["value"]) == value


def without_nulls(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: without_nulls(inner) for name, inner in value.items() if inner is not None}


@needs_spark
def test_table_and_dead_letters_are_the_topic(tier: Tier, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    options = ("--value", "json", "--warehouse", str(lake))
    put(tier, OWNER, documents(range(40), at={"city": "Zürich"}))
    # An integer and a fraction: a column's type is open until the first commit.
    put(tier, OTHER, [*documents(range(10)), b'{"eur": 1}', *DEAD])
    first = run_table("prices", tier.folder, *options)
    assert (first["rows"], first["dead_letters"]) == (51, len(DEAD))
    put(tier, OTHER, [*documents(range(5), usd=1.5, tags=["x"]), *DEAD, b'{"n": 1.5}'])
    put(tier, OWNER, documents(range(5), at={"zip": 7}))
    second = run_table("prices", tier.folder, *options)
    assert (second["rows"], second["dead_letters"]) == (10, len(DEAD) + 1)
    table, dead = (load_table(lake, f"kafka.prices{end}") for end in ("", "_dead_letters"))
    check_is_topic(tier, rows_of(table), rows_of(dead))
    names = {name: str(table.schema().find_type(f"value.{name}")) for name in COLUMNS}
    assert names == COLUMNS

    third = run_table("prices", tier.folder, *options)
    assert (third["offsets"], third.get("rows")) == (0, None)
    assert len(load_table(lake, "kafka.prices").history()) == 2


@needs_spark
def test_fields_inside_of_a_disputed_one_are_found(tier: Tier, tmp_path: Path) -> None:
    """In the second partition alone `x` would be a text, and the fields in its objects would be
    missed.
    """
    options = ("--value", "json", "--warehouse", str(tmp_path / "lake"))
    put(tier, OWNER, [b"{}"])
    put(tier, OTHER, [b'{"y": 1}'])
    run_table("prices", tier.folder, *options)
    put(tier, OWNER, [b'{"x": {"a": 1}}'])
    put(tier, OTHER, [b'{"x": "text"}', b'{"x": {"b": 2}}'])
    done = run_table("prices", tier.folder, *options, "-o", "maxRecordsPerPartition=3")
    assert (done["rows"], done["dead_letters"]) == (2, 1)
    rows = rows_of(load_table(tmp_path / "lake", "kafka.prices"))
    assert [row["value"]["x"] for row in rows if row["value"]["x"]] == [
        {"a": 1, "b": None},
        {"a": None, "b": 2},
    ]


@needs_spark
def test_folder_of_parquet_is_read_by_duckdb(tier: Tier, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    options = ("--to", "parquet", "--value", "string", "--warehouse", str(lake))
    put(tier, OWNER, [b"one", None, b"\xff", "drei €".encode()])
    done = run_table("prices", tier.folder, *options)
    assert done["reasons"] == {"value: it is not UTF-8": 1}
    put(tier, OWNER, [b"five", b"\xc3"])
    arguments = ["pipeline", "table", "prices", "--path", str(tier.folder), *options]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert "\n1 of 1 dead letters: value: it is not UTF-8\n" in result.stdout
    with duckdb.connect() as engine:

        def select(columns: str, table: str) -> list[Any]:
            files = engine.read_parquet(str(lake / table / "*.parquet"))  # noqa: F841
            return engine.sql(
                f'select {columns} from files order by partition, "offset"'
            ).fetchall()

        assert select("value", "prices") == [("one",), (None,), ("drei €",), ("five",)]
        dead = select('"offset", value, reason', "prices_dead_letters")
    assert dead == [(2, b"\xff", "value: it is not UTF-8"), (5, b"\xc3", "value: it is not UTF-8")]


@needs_spark
def test_driver_killed_before_the_commit_leaves_the_table_as_it_was(
    tier: Tier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = tmp_path / "lake"
    options = ("--value", "json", "--warehouse", str(lake))
    put(tier, OWNER, [*documents(range(20)), *DEAD])

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(IcebergTable, "commit", killed)
        with pytest.raises(AssertionError):
            run_table("prices", tier.folder, *options)
    assert list(lake.rglob("*.parquet"))
    assert load_table(lake, "kafka.prices").current_snapshot() is None
    run_table("prices", tier.folder, *options)
    table, dead = (load_table(lake, f"kafka.prices{end}") for end in ("", "_dead_letters"))
    check_is_topic(tier, rows_of(table), rows_of(dead))


@needs_spark
def test_history_and_tail_are_what_a_committed_consumer_reads(
    broker: EmbeddedBroker, tmp_path: Path
) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_topics([NewTopic("orders", 1, 1, config=TIERED_TOPIC)])["orders"].result(300)
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "transactional.id": "t",
            "transaction.timeout.ms": 900_000,
            "linger.ms": 1,
        }
    )
    producer.init_transactions(300)

    def transaction(*, commits: bool) -> None:
        producer.begin_transaction()
        for number in range(200):
            producer.produce("orders", value=f"{commits}-{number}-".ljust(2000, "x"))
        producer.flush(300)
        (producer.commit_transaction if commits else producer.abort_transaction)(60)

    bucket, server = broker.directory / "bucket", ("-b", broker.bootstrap_servers)
    options = ("--warehouse", str(tmp_path / "lake"), *server)
    for _ in range(2):
        for commits in (True, False, False, True):
            transaction(commits=commits)
        tiered = run_table("orders", bucket, *options, "--until", "tiered")
        everything = run_table("orders", bucket, *options)
        assert tiered["offsets"] + everything["offsets"] == 804
        assert everything["offsets"] > 0, "nothing was left to the brokers"
        assert run_table("orders", bucket, *options, "--until", "tiered")["offsets"] == 0
    consumed = consume_all(broker.bootstrap_servers, "orders")
    assert len(consumed) == 800
    rows = rows_of(load_table(tmp_path / "lake", "kafka.orders"))
    assert records_of(rows) == [astuple(record) for record in consumed]


@needs_spark
def test_times_that_no_table_can_hold_are_dead_letters(tier: Tier, tmp_path: Path) -> None:
    times = [0, 2**63 - 1, YEAR_9999_MS, 2**60, -1]
    records = [NewRecord(time, b"%d" % time, b'{"n": 1}') for time in times]
    tier.maker.tier(OWNER, [build_batch([each], base_offset=n) for n, each in enumerate(records)])
    done = run_table("prices", tier.folder, "--value", "json", "--warehouse", str(tmp_path))
    assert (done["rows"], done["dead_letters"]) == (3, 2)
    table, dead = (load_table(tmp_path, f"kafka.prices{end}") for end in ("", "_dead_letters"))
    assert {row["key"]: row["timestamp"] for row in rows_of(table)} == {
        b"%d" % time: EPOCH + timedelta(milliseconds=time) for time in (0, YEAR_9999_MS, -1)
    }
    assert [
        (row["offset"], row["timestamp"], row["value"], row["reason"]) for row in rows_of(dead)
    ] == [
        (
            n,
            None,
            b'{"n": 1}',
            f"the timestamp is not in the years 1 to 9999 timestamp_ms={times[n]}",
        )
        for n in (1, 3)
    ]


@needs_spark
def test_topics_that_were_compacted_are_read_with_gaps(tier: Tier, tmp_path: Path) -> None:
    options = ("--warehouse", str(tmp_path / "lake"))
    kept = [3, 17, 40]
    batches = [build_batch([NewRecord(5, b"k", b"v")], base_offset=offset) for offset in kept]
    tier.maker.tier(OWNER, batches)
    with pytest.raises(IsothermError, match="failOnOffsetGaps=false"):
        run_table("prices", tier.folder, *options)
    run_table("prices", tier.folder, *options, "-o", "failOnOffsetGaps=false")
    rows = rows_of(load_table(tmp_path / "lake", "kafka.prices"))
    assert [row["offset"] for row in rows] == kept


def test_dry_run_writes_nothing(tier: Tier, tmp_path: Path) -> None:
    put(tier, OWNER, documents(range(40)))
    cost = run_table("prices", tier.folder, "--warehouse", str(tmp_path / "lake"), "--dry-run")
    assert cost["cost"]["gets"] > 0
    assert not list((tmp_path / "lake").rglob("*.json"))


@pytest.mark.parametrize(
    ("topic", "options", "error", "message"),
    [
        (
            "prices",
            ("--to", "avro"),
            ConfigError,
            r"option=to value=avro known=iceberg,delta,parquet",
        ),
        ("prices", ("--value", "xml"), ConfigError, r"known=raw,string,json"),
        ("prices", ("-o", "columns=key"), ConfigError, r"the table decides .*options=columns"),
        ("prices", ("--max-bytes", "1"), PolicyViolationError, r"max_bytes=1"),
        ("prices", ("--table", "prices"), ConfigError, r"has a namespace value=prices"),
        ("prices", ("--to", "parquet", "--catalog", "x"), ConfigError, r"is for --to iceberg"),
        ("prices", ("--warehouse", "s3://x/y"), ConfigError, r"no local folder needs a catalog"),
        ("prices", ("--warehouse", "a?b"), ConfigError, r"cannot have these .*characters=\?"),
        ("prices", ("--to", "delta", "--warehouse", "a%41"), ConfigError, r"characters=%"),
        ("prices", ("--to", "delta", "--catalog", "x"), ConfigError, r"is for --to iceberg"),
        ("prices", ("--catalog", "unknown"), ConfigError, r"no such catalog catalog=unknown"),
        ("price", (), UnknownTopicOrPartitionError, r"nearest=prices"),
    ],
)
def test_wrong_options_are_named(
    tier: Tier,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    topic: str,
    options: tuple[str, ...],
    error: type[IsothermError],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    put(tier, OWNER, [b"one"])
    with pytest.raises(error, match=message):
        run_table(topic, tier.folder, *options)


@needs_spark
def test_topic_that_is_not_what_it_was_is_refused(tier: Tier, tmp_path: Path) -> None:
    options = ("--warehouse", str(tmp_path / "lake"))
    put(tier, OWNER, [b"one", b"two"])
    run_table("prices", tier.folder, *options)
    with pytest.raises(ConfigError, match="option=--value its_value=raw value=json"):
        run_table("prices", tier.folder, *options, "--value", "json")
    lost = build_batch([NewRecord(5, b"k", b"v")], base_offset=9)
    for path in tier.folder.rglob("*.*"):
        path.unlink()
    tier.maker.tier(OWNER, [lost])
    with pytest.raises(OffsetOutOfRangeError, match="no longer kept"):
        run_table("prices", tier.folder, *options)
    again = TopicIdPartition(uuid.UUID(int=10), "prices", 0)
    tier.maker.tier(again, [lost], event_timestamp_ms=1)
    with pytest.raises(ConfigError, match=r"the topic was deleted and made anew .*its_topic_id="):
        run_table("prices", tier.folder, *options)
