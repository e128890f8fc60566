"""`erase` as a copy of a bucket: selections, actions and refusals, without a broker."""

from __future__ import annotations

import base64
import csv
import json
import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql import Row, SparkSession
from typer.testing import CliRunner

from isotherm.cli.main import app
from isotherm.errors import ConfigError, PolicyViolationError, UnknownTopicOrPartitionError
from isotherm.record.batch import CompressionType, build_batch
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.jobs import erase as job
from isotherm.spark.jobs import erase_selection, rewrite_run
from isotherm.types import TopicIdPartition, uuid_to_text
from tests.support.record_segments import RecordSegmentMaker
from tests.support.table_histories import serve_schemas

TOPIC_ID = uuid.UUID(int=21)
T0 = 1_700_000_000_000
COUNT = 60


@pytest.fixture(scope="module")
def bucket(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A topic of two partitions, each in two segments, of JSON values."""
    assert spark.getActiveSession() is not None
    folder = tmp_path_factory.mktemp("users")
    storage = ObjectStoreRemoteStorageManager(ObjectStoreSettings(url=(folder / "b").as_uri()))
    maker = RecordSegmentMaker(folder / "made", storage)
    for partition in range(2):
        for first in range(0, COUNT, 30):
            batches = [
                build_batch(
                    [
                        (T0 + n, key_of(n), value_of(n), (("of", b"%d" % (n % 7)),))
                        for n in range(at, at + 10)
                    ],
                    base_offset=at,
                    compression=CompressionType.ZSTD,
                )
                for at in range(first, first + 30, 10)
            ]
            maker.tier(TopicIdPartition(TOPIC_ID, "users", partition), batches)
    return folder / "b"


def key_of(number: int) -> bytes:
    return b"\xff%d" % (number % 7)


def value_of(number: int) -> bytes:
    return b'{"user": {"id": %d.0, "name": "N%d"}}' % (number % 7, number)


def erase(*arguments: str, code: int = 0) -> Any:
    done = CliRunner().invoke(
        app, ["pipeline", "erase", *arguments, "--json", "--master", "local[2]"]
    )
    assert done.exit_code == code, (done.output, done.exception)
    return json.loads(done.stdout) if code in (0, 3) else None


@pytest.fixture
def copied(
    spark: SparkSession, bucket: Path, tmp_path: Path
) -> Callable[..., tuple[Any, list[Row]]]:
    """Erases in a copy; returns the certificate, and the rows of the copy."""

    def run(*arguments: str) -> tuple[Any, list[Row]]:
        target = tmp_path / "copy"
        place = ["--path", str(bucket), "-o", "subscribe=users", "--to", str(target), "--run"]
        certificate = erase(*place, *arguments)
        rows = spark.read.format("isotherm").load(
            target.as_uri(), subscribe="users", failOnOffsetGaps=False, includeHeaders=True
        )
        return certificate, rows.orderBy("partition", "offset").collect()

    return run


def expected(is_kept: Callable[[int, int], bool]) -> list[tuple[int, int]]:
    return [(p, n) for p in range(2) for n in range(COUNT) if is_kept(p, n)]


def places(rows: list[Row]) -> list[tuple[int, int]]:
    return [(row.partition, row.offset) for row in rows]


def test_expression_selects_and_the_certificate_names_nothing(
    copied: Callable[..., tuple[Any, list[Row]]],
) -> None:
    where = "get_json_object(CAST(value AS STRING), '$.user.name') IN ('N5', 'N40')"
    certificate, rows = copied("--where", where)
    assert places(rows) == expected(lambda _, n: n not in (5, 40))
    assert [(each["matched"], each["left"]) for each in certificate["partitions"]] == [(2, 0)] * 2
    assert certificate["provedMs"] is not None
    # Words, since the letters of an id may spell a name.
    assert not {"N5", "N40"} & set(re.findall(r"\w+", json.dumps(certificate)))
    # The old objects of a copy are the source's, and stay.
    assert all(each["oldGoneMs"] is None for each in certificate["partitions"][0]["segments"])


@pytest.mark.parametrize("keys_in_workers_max", [0, 1])
def test_ranges_partitions_and_keys_apply_together(
    copied: Callable[..., tuple[Any, list[Row]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    keys_in_workers_max: int,
) -> None:
    monkeypatch.setattr(erase_selection, "KEYS_IN_WORKERS_MAX", keys_in_workers_max)
    if not keys_in_workers_max:
        # As with many records: their offsets are shuffled to the pieces.
        monkeypatch.setattr(job, "OFFSETS_WITH_TASKS_MAX", 0)
    keys = tmp_path / "keys.csv"
    with keys.open("w", newline="") as file:
        csv.writer(file).writerows([["n", "key"], ["1", base64.b64encode(key_of(3)).decode()]])
    until = ["--until", "2023-11-14T22:13:20.040", "--from", "10", "--partitions", "1"]
    _, rows = copied("--keys", str(keys), "--key-encoding", "base64", *until)
    assert places(rows) == expected(
        lambda p, n: not (p == 1 and 10 <= n < 40 and key_of(n) == key_of(3))
    )


def test_times_select_beside_times_that_are_too_far_for_spark(
    spark: SparkSession, tmp_path: Path
) -> None:
    bucket, copy = tmp_path / "b", tmp_path / "copy"
    storage = ObjectStoreRemoteStorageManager(ObjectStoreSettings(url=bucket.as_uri()))
    maker = RecordSegmentMaker(tmp_path / "made", storage)
    # The second one is in nanoseconds, by a mistake of its producer.
    times = [T0, T0 * 1_000_000, T0 + 2, T0 + 1, T0 + 3]
    records = [(time_ms, key_of(n), value_of(n), ()) for n, time_ms in enumerate(times)]
    maker.tier(TopicIdPartition(TOPIC_ID, "users", 0), [build_batch(records, base_offset=0)])
    certificate = erase(
        "--path", str(bucket), "-o", "subscribe=users", "--to", str(copy), "--run",
        "--where", "offset != 4", "--from", "2023-11-14T22:13:20.001",
        "--until", "2023-11-14T22:13:20.003",
    )  # fmt: skip
    assert [(each["matched"], each["left"]) for each in certificate["partitions"]] == [(2, 0)]
    rows = spark.read.format("isotherm").load(
        copy.as_uri(), subscribe="users", failOnOffsetGaps=False, columns="offset"
    )
    assert sorted(row.offset for row in rows.collect()) == [0, 1, 4]


@pytest.mark.parametrize(
    ("where", "gone"),
    [
        ("timestamp > TIMESTAMP '2100-01-01'", {1, 2}),
        ("timestamp < TIMESTAMP '2100-01-01'", {0, 3}),
        ("year(timestamp) > 2100", {1, 2}),
    ],
)
def test_expression_compares_times_that_are_too_far_for_spark(
    spark: SparkSession, tmp_path: Path, where: str, gone: set[int]
) -> None:
    bucket, copy = tmp_path / "b", tmp_path / "copy"
    storage = ObjectStoreRemoteStorageManager(ObjectStoreSettings(url=bucket.as_uri()))
    maker = RecordSegmentMaker(tmp_path / "made", storage)
    times = [T0, T0 * 1_000_000, 2**63 - 1, T0 + 3]
    records = [(time_ms, key_of(n), value_of(n), ()) for n, time_ms in enumerate(times)]
    maker.tier(TopicIdPartition(TOPIC_ID, "users", 0), [build_batch(records, base_offset=0)])
    erase(
        "--path", str(bucket), "-o", "subscribe=users", "--to", str(copy), "--run",
        "--where", where,
    )  # fmt: skip
    rows = spark.read.format("isotherm").load(
        copy.as_uri(), subscribe="users", failOnOffsetGaps=False, columns="offset"
    )
    assert {row.offset for row in rows.collect()} == set(range(len(times))) - gone


def test_tombstones_keep_keys_and_redaction_keeps_the_rest(
    copied: Callable[..., tuple[Any, list[Row]]], bucket: Path, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.parquet"
    parquet.write_table(pa.table({"key": pa.array([key_of(2)], pa.binary())}), keys)
    certificate, rows = copied("--keys", str(keys), "--action", "tombstone")
    assert sum(each["left"] for each in certificate["partitions"]) == 0
    assert places(rows) == expected(lambda *_: True)
    for row in rows:
        is_ours = bytes(row.key) == key_of(2)
        assert (row.value is None, row.headers is None) == (is_ours, is_ours)
        assert is_ours or bytes(row.value) == value_of(row.offset)

    second = tmp_path / "redacted"
    redacting = [
        "--action",
        "redact",
        "--field",
        "user.name",
        "--where",
        "headers[0].value = X'32'",
    ]
    place = ["--path", str(bucket), "-o", "subscribe=users", "--to", str(second), "--run"]
    certificate = erase(*place, *redacting)
    assert sum(each["matched"] for each in certificate["partitions"]) == 2 * len(range(2, COUNT, 7))
    assert sum(each["left"] for each in certificate["partitions"]) == 0
    copy = ["--path", str(second), "-o", "subscribe=users", "--verify", certificate["run"]]
    assert erase(*copy, *redacting)["partitions"][0]["left"] == 0
    # An upload that no broker has finished is found, though no reader gets it.
    log = min(second.rglob("users-*/0/*.log"))
    unfinished = log.with_name(f"{log.name[:21]}{uuid_to_text(uuid.uuid4())}.log")
    unfinished.write_bytes(log.read_bytes())
    first = erase(*copy, *redacting, code=3)["partitions"][0]
    assert (first["left"], first["unreadSegments"]) == (0, [unfinished.name[21:-4]])
    unfinished.unlink()
    # What was put back by hand is found.
    for old in bucket.rglob("*"):
        if old.is_file():
            target = second / old.relative_to(bucket)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(old.read_bytes())
    for new in [path for path in second.rglob("users-*/**/*") if path.is_file()]:
        if not (bucket / new.relative_to(second)).exists():
            new.unlink()
    assert erase(*copy, *redacting, code=3)["partitions"][0]["left"] == len(range(2, COUNT, 7))


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A topic whose values are objects of two types, a text, and null."""
    storage = ObjectStoreRemoteStorageManager(ObjectStoreSettings(url=(tmp_path / "b").as_uri()))
    values = [
        b'{"user": {"id": 1}}',
        b'{"user": {"id": 2}, "tags": ["a"]}',
        b"no json",
        None,
        b'{"user": "two", "rare": {"deep": true}}',
        b'{"user": {"id": 2.0}}',
    ]
    for partition, order in enumerate((values, values[::-1])):
        rows = [(T0, b"k%d" % (n % 2), value, ()) for n, value in enumerate(order)]
        RecordSegmentMaker(tmp_path / f"made{partition}", storage).tier(
            TopicIdPartition(TOPIC_ID, "users", partition), [build_batch(rows, base_offset=0)]
        )
    return tmp_path / "b"


def test_fields_of_decoded_values_select_and_what_is_no_json_is_counted(
    spark: SparkSession, odd: Path, tmp_path: Path
) -> None:
    assert spark.getActiveSession() is not None
    copy = tmp_path / "copy"
    source = ["--path", str(odd), "-o", "subscribe=users"]
    selection = ["--value", "json", "--where", "value.user.id = 2"]
    planned = erase(*source, "--to", str(copy), *selection)["partitions"]
    # In the first partition's first object user is an object, and this type stays.
    assert [(each["records"], each["undecoded"]) for each in planned] == [(2, 2), (2, 2)]
    certificate = erase(*source, "--to", str(copy), *selection, "--run")
    assert [(each["matched"], each["undecoded"]) for each in certificate["partitions"]] == [
        (2, 2),
        (2, 2),
    ]
    rows = spark.read.format("isotherm").load(
        copy.as_uri(), subscribe="users", failOnOffsetGaps=False
    )
    left = sorted((row.partition, row.offset) for row in rows.collect())
    assert left == [(0, 0), (0, 2), (0, 3), (0, 4), (1, 1), (1, 2), (1, 3), (1, 5)]
    # No value has this field any more, and the type of the certificate has it.
    every = ["--value", "json", "--where", "value.tags IS NOT NULL"]
    second = tmp_path / "second"
    certificate = erase(*source, "--to", str(second), *every, "--run")
    there = ["--path", str(second), "-o", "subscribe=users", "--verify", certificate["run"]]
    assert [each["left"] for each in erase(*there, *every)["partitions"]] == [0, 0]
    with pytest.raises(ConfigError, match="not those of the certificate"):
        raise_of(*there, "--value", "string", *every[2:])


REGISTERED = 7
ANSWERS = {
    "avro": {
        "schema": json.dumps(
            {"type": "record", "name": "User", "fields": [{"name": "id", "type": "long"}]}
        )
    },
    "protobuf": {
        "schemaType": "PROTOBUF",
        "schema": 'syntax = "proto3"; message User { int64 id = 1; }',
    },
    "json-schema": {
        "schemaType": "JSON",
        "schema": json.dumps({"type": "object", "properties": {"id": {"type": "integer"}}}),
    },
}


def framed(value_format: str, number: int) -> bytes:
    """A value as Confluent's serializers write it. The number is below 64."""
    body = {
        "avro": bytes([number << 1]),
        # The index of the message, then field 1 as a varint.
        "protobuf": bytes([0, 8, number]),
        "json-schema": json.dumps({"id": number}).encode(),
    }
    return b"\0" + REGISTERED.to_bytes(4, "big") + body[value_format]


@pytest.mark.parametrize("value_format", ANSWERS)
def test_fields_of_registered_values_select(
    spark: SparkSession, tmp_path: Path, value_format: str
) -> None:
    assert spark.getActiveSession() is not None
    storage = ObjectStoreRemoteStorageManager(ObjectStoreSettings(url=(tmp_path / "b").as_uri()))
    numbers = [1, 2, 3, 2, 63]
    records = [(T0 + at, b"k", framed(value_format, each), ()) for at, each in enumerate(numbers)]
    RecordSegmentMaker(tmp_path / "made", storage).tier(
        TopicIdPartition(TOPIC_ID, "users", 0),
        [build_batch([*records, (T0 + 9, b"k", b"no frame", ())])],
    )
    copy = tmp_path / "copy"
    with serve_schemas({REGISTERED: ANSWERS[value_format]}) as registry:
        selection = ["--value", value_format, "--registry", registry, "--where", "value.id = 2"]
        source = ["--path", str(tmp_path / "b"), "-o", "subscribe=users"]
        (erased,) = erase(*source, "--to", str(copy), *selection, "--run")["partitions"]
        assert (erased["matched"], erased["undecoded"], erased["left"]) == (2, 1, 0)
        certificate = erase(*source, "--to", str(tmp_path / "second"), *selection, "--run")
        there = ["--path", str(tmp_path / "second"), "-o", "subscribe=users"]
        verified = erase(*there, *selection, "--verify", certificate["run"])
        assert [each["left"] for each in verified["partitions"]] == [0]
    rows = spark.read.format("isotherm").load(
        copy.as_uri(), subscribe="users", failOnOffsetGaps=False
    )
    assert sorted(row.offset for row in rows.collect()) == [0, 2, 4, 5]


def test_run_that_ends_before_its_publication_has_a_certificate_to_prove(
    spark: SparkSession, odd: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert spark.getActiveSession() is not None
    copy, keys = tmp_path / "copy", tmp_path / "keys.txt"
    keys.write_text("k1")
    there = ["-o", "subscribe=users", "--keys", str(keys)]
    arguments = ["--path", str(odd), "--to", str(copy), *there]

    def cut_off(*_: object) -> None:
        raise RuntimeError("cut off")

    with monkeypatch.context() as patch:
        patch.setattr(rewrite_run, "finish_copy", cut_off)
        with pytest.raises(RuntimeError, match="cut off"):
            raise_of(*arguments, "--run")
    with pytest.raises(PolicyViolationError, match="an earlier run is unfinished"):
        raise_of(*arguments, "--run")
    recovering = ["pipeline", "erase", *arguments, "--recover"]
    done = CliRunner().invoke(app, [*recovering, "--run"])
    assert done.exit_code == 0, done.output
    (run,) = re.findall(r"run (\w{16}) has no proof yet", done.stderr)
    proved = erase("--path", str(copy), *there, "--verify", run)
    assert [(each["matched"], each["left"]) for each in proved["partitions"]] == [(3, 0)] * 2
    assert "no proof" not in CliRunner().invoke(app, recovering).stderr


def raise_of(*arguments: str) -> None:
    done = CliRunner().invoke(app, ["pipeline", "erase", *arguments, "--master", "local[2]"])
    assert done.exception is not None
    raise done.exception


def test_decoded_values_are_redacted_and_keys_limit_what_is_counted(
    spark: SparkSession, odd: Path, tmp_path: Path
) -> None:
    copy, keys = tmp_path / "copy", tmp_path / "keys.txt"
    keys.write_text("k1")
    certificate = erase(
        "--path", str(odd), "-o", "subscribe=users", "--to", str(copy), "--run", "--keys",
        str(keys), "--value", "json", "--where", "value.user.id IN (1, 2)", "--action", "redact",
        "--field", "user.id",
    )  # fmt: skip
    # Of the first partition the offsets 1 and 5, and no bad value; of the other one 5, and 1 and 3.
    assert [(each["matched"], each["undecoded"]) for each in certificate["partitions"]] == [
        (2, 0),
        (1, 2),
    ]
    rows = spark.read.format("isotherm").load(copy.as_uri(), subscribe="users").collect()
    nulled = {(row.partition, row.offset) for row in rows if b"null" in bytes(row.value or b"")}
    assert nulled == {(0, 1), (0, 5), (1, 5)}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (["--where", "valeu = 1"], ConfigError, "Spark refuses the expression"),
        (["--where", "key ="], ConfigError, "Spark refuses the expression"),
        (["--where", "offset"], ConfigError, "Spark refuses the expression"),
        (["--where", "value.user.nam = 'N5'", "--value", "json"], ConfigError,
         "value:struct<user:struct<id:double,name:string>>"),
        (["--where", "value.a = 1", "--value", "avro"], ConfigError, "needs a schema registry"),
        (["--where", "rand() < 0.5"], ConfigError, "may select other records"),
        (["--where", "timestamp < now()"], ConfigError, "may select other records"),
        (["--where", "timestamp < TIMESTAMP 'now'"], ConfigError, "may select other records"),
        (["--where", "offset > 3 AND"], ConfigError, "Spark refuses the expression"),
        (["--where", "offset = 3 other"], ConfigError, "Spark refuses the expression"),
        (["--where", "CAST(key AS STRING) = 'now()' -- now()"], None, ""),
        (["--where", "offset = 1", "--action", "redact", "--field", "a.b", "--from", "100"],
         None, ""),
        (["--where", "key IS NOT NULL", "--max-bytes", "10"], PolicyViolationError, "more than"),
        (["--where", "true", "--partitions", "0,2"], UnknownTopicOrPartitionError,
         "partitions=[2]"),
        (["--keys", "/nowhere/keys.txt"], ConfigError, "cannot be read path=/nowhere/keys.txt"),
    ],
)  # fmt: skip
def test_what_cannot_be_selected_is_refused_in_one_line(
    bucket: Path, tmp_path: Path, arguments: list[str], error: type[Exception] | None, message: str
) -> None:
    done = CliRunner().invoke(
        app,
        ["pipeline", "erase", "--path", str(bucket), "-o", "subscribe=users", "--to",
         str(tmp_path / "copy"), *arguments, "--master", "local[2]"],
    )  # fmt: skip
    if error is None:
        assert done.exit_code == 0, done.exception
        return
    assert isinstance(done.exception, error), (done.output, done.exception)
    assert message in str(done.exception)
    assert not list((tmp_path / "copy").rglob("*.log"))
