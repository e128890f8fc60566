"""`erase` on Spark: records that must go, go, from a broker's topic and from copies of a bucket."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from isotherm.cli import pipeline_erase_tail
from isotherm.cli.main import app
from isotherm.remote.storage.inventory import open_for_reading
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.testing.embedded_broker import TIERED_TOPIC, EmbeddedBroker
from oracle.consumed_records import consume_all
from tests.support.bucket_inventory import read_inventory

TIMEOUT_S = 300
TOPIC = "users"
GONE = (b"user-7", b"user-13")
NUMBERS = re.compile(rb'"of": "user-(?:7|13)", "n": (\d+)')


@pytest.fixture
def tiered(
    spark: SparkSession,
    start_broker: Callable[..., EmbeddedBroker],
    await_manifests: Callable[..., None],
) -> EmbeddedBroker:
    """A broker with a topic of many users in four closed segments, data of an aborted transaction
    included. Both tiers hold them."""
    assert spark.getActiveSession() is not None
    broker = start_broker()
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    config = {**TIERED_TOPIC, "local.retention.bytes": "-1"}
    for future in admin.create_topics([NewTopic(TOPIC, 1, 1, config=config)]).values():
        future.result(TIMEOUT_S)
    produce(broker, range(2000))
    aborting = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "transactional.id": "aborts",
            "transaction.timeout.ms": 900_000,
        }
    )
    aborting.init_transactions(TIMEOUT_S)
    aborting.begin_transaction()
    for key in (GONE[0], b"user-14"):
        aborting.produce(TOPIC, key=key, value=b"of an aborted transaction: " + key)
    assert aborting.flush(TIMEOUT_S) == 0
    aborting.abort_transaction(TIMEOUT_S)
    produce(broker, range(2000, 5000))
    await_manifests(broker, TOPIC, 4)
    return broker


def produce(broker: EmbeddedBroker, numbers: range) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 20})
    for number in numbers:
        key = b"user-%d" % (number % 50)
        value = json.dumps({"of": key.decode(), "n": number}).encode().ljust(900)
        producer.produce(TOPIC, key=key, value=value)
    assert producer.flush(TIMEOUT_S) == 0


def run(arguments: list[str], code: int = 0) -> str:
    done = CliRunner().invoke(app, ["pipeline", "erase", *arguments, "--master", "local[2]"])
    assert done.exit_code == code, (done.output, done.exception)
    return done.stdout


def segments_of(settings: ObjectStoreSettings) -> dict[str, bytes]:
    """The bytes of each segment in a bucket, by its id."""
    storage = ObjectStoreRemoteStorageManager(settings)
    inventory = read_inventory(open_for_reading(settings), settings.create_layout())
    assert not inventory.uncommitted
    assert not inventory.damaged
    return {
        str(segment.segment_id.id): bytes(storage.fetch_log_segment(segment, 0))
        for segment in inventory.segments
        if segment.topic_id_partition.topic == TOPIC
    }


def tiered_end(settings: ObjectStoreSettings) -> int:
    """The offset behind the records that are in the bucket."""
    inventory = read_inventory(open_for_reading(settings), settings.create_layout())
    return 1 + max(
        segment.end_offset_inclusive
        for segment in inventory.segments
        if segment.topic_id_partition.topic == TOPIC
    )


def test_tail_is_erased_as_it_is_tiered(tiered: EmbeddedBroker, tmp_path: Path) -> None:
    keys = tmp_path / "gone.txt"
    keys.write_bytes(b"\n".join(GONE))
    ends = [record.offset for record in consume_all(tiered.bootstrap_servers, TOPIC)]
    place = ["-b", tiered.bootstrap_servers, "--path", str(tiered.directory / "bucket")]
    run_it = [*place, "-o", f"subscribe={TOPIC}", "--keys", str(keys), "--run", "--wait"]
    with following(tiered) as tails:
        shown = run([*run_it, "--keep-old-ms", "0", "--wait-s", "300", "--json"])
    # Nothing rolled the active segment, and what would have done it was named.
    assert "users-0 offsets" in tails[0]
    assert "segment.bytes=1048576 local.retention.ms=-2 local.retention.bytes=-1" in tails[0]
    (erased,) = json.loads(shown)["partitions"]
    assert erased["endOffset"] > ends[-1]
    assert erased["left"] == 0
    left = [r for r in consume_all(tiered.bootstrap_servers, TOPIC) if r.offset <= ends[-1]]
    assert {record.key for record in left} & set(GONE) == set()
    assert erased["matched"] > 0


@contextmanager
def following(broker: EmbeddedBroker) -> Iterator[list[str]]:
    """Produces more records as soon as a run says that it waits for the tail, and so rolls the
    active segment."""
    shown: list[str] = []
    says = pipeline_erase_tail._print_tails

    def print_tails(tails: list[str]) -> None:
        says(tails)
        if not shown:
            produce(broker, range(5000, 7500))
        shown.extend(tails)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline_erase_tail, "_print_tails", print_tails)
        yield shown


def test_selected_records_are_nowhere_and_all_others_stay(
    tiered: EmbeddedBroker, tmp_path: Path
) -> None:
    bucket = tiered.directory / "bucket"
    keys = tmp_path / "gone.txt"
    keys.write_bytes(b"\n".join(GONE) + b"\n")
    before = list(consume_all(tiered.bootstrap_servers, TOPIC))
    place = ["-b", tiered.bootstrap_servers, "--path", str(bucket), "-o", f"subscribe={TOPIC}"]
    source = ObjectStoreSettings(url=bucket.as_uri())
    tiered_before = segments_of(source)
    # The rest is on the broker only, where nothing rolls its segment.
    place += ["--until", str(tiered_end(source))]
    held = sum(key in data for key in GONE for data in tiered_before.values())
    assert held

    (planned,) = json.loads(run([*place, "--keys", str(keys), "--json"]))["partitions"]
    assert planned["matching"] == planned["segments"] >= 4
    assert segments_of(source) == tiered_before
    shown = run(
        [
            *place,
            "--keys",
            str(keys),
            "--run",
            "--wait",
            "--wait-s",
            "300",
            "--keep-old-ms",
            "0",
            "--json",
        ]
    )
    certificate: Any = json.loads(shown)

    (erased,) = certificate["partitions"]
    assert erased["matched"] == planned["records"]
    assert erased["left"] == 0
    assert all(each["oldGoneMs"] for each in erased["segments"])
    assert GONE[0].decode() not in shown
    end = erased["endOffset"]
    kept = [record for record in before if record.key not in GONE or record.offset >= end]
    assert list(consume_all(tiered.bootstrap_servers, TOPIC)) == kept
    after = segments_of(source)
    assert not after.keys() & tiered_before.keys()
    # The second one is that of an aborted transaction, which no consumer shows.
    assert any(b"of an aborted transaction: user-14" in data for data in after.values())
    assert erased["localCopiesGone"] == [1]
    # Those of the transaction count, too, of which consumers see none.
    assert erased["matched"] == len(before) - len(kept) + 1
    files = [path.read_bytes() for path in tiered.directory.rglob("*") if path.is_file()]
    numbers = {int(text) for data in files for text in NUMBERS.findall(data)}
    assert numbers == {json.loads(record.value)["n"] for record in kept if record.key in GONE}
    assert not any(b"of an aborted transaction: " + GONE[0] in data for data in files)
    assert any(kept[0].value in data for data in files)

    verified = run([*place, "--keys", str(keys), "--verify", certificate["run"], "--json"])
    assert json.loads(verified)["provedMs"] >= certificate["provedMs"]
    keys.write_bytes(GONE[0])
    refused = CliRunner().invoke(
        app, ["pipeline", "erase", *place, "--keys", str(keys), "--verify", certificate["run"]]
    )
    assert "not those of the certificate" in str(refused.exception)


def test_values_and_fields_go_in_place_and_the_records_stay(
    tiered: EmbeddedBroker, tmp_path: Path
) -> None:
    source = ObjectStoreSettings(url=(tiered.directory / "bucket").as_uri())
    end = tiered_end(source)
    before = list(consume_all(tiered.bootstrap_servers, TOPIC))
    place = ["-b", tiered.bootstrap_servers, "--path", str(tiered.directory / "bucket")]
    run_it = [*place, "-o", f"subscribe={TOPIC}", "--until", str(end), "--run", "--wait"]
    run_it += ["--keep-old-ms", "0", "--wait-s", "300", "--json"]
    # user-14 has a record of an aborted transaction, which is no JSON.
    changes = {b"user-13": ["redact", "--field", "of"], b"user-14": ["tombstone"]}
    for key, action in changes.items():
        keys = tmp_path / "keys.txt"
        keys.write_bytes(key)
        shown = run([*run_it, "--keys", str(keys), "--action", *action])
        (erased,) = json.loads(shown)["partitions"]
        assert erased["left"] == 0
        assert erased["localCopiesGone"] == [1]
        of_key = [record for record in before if record.key == key and record.offset < end]
        assert erased["matched"] == len(of_key) + (key == b"user-14") > 0
    after = list(consume_all(tiered.bootstrap_servers, TOPIC))
    assert [replace(record, value=b"") for record in after] == [
        replace(record, value=b"") for record in before
    ]
    for was, now in zip(before, after, strict=True):
        if was.offset < end and was.key == b"user-14":
            assert now.value is None
        elif was.offset < end and was.key == b"user-13":
            assert was.value is not None
            assert now.value == was.value.replace(b'"user-13"', b"null")
        else:
            assert now == was
    files = [path.read_bytes() for path in tiered.directory.rglob("*") if path.is_file()]
    assert not any(b"of an aborted transaction: user-14" in data for data in files)
    redacted = {json.loads(r.value or b"")["n"] for r in before if r.key == b"user-13"}
    left = {int(text) for data in files for text in re.findall(rb'"user-13", "n": (\d+)', data)}
    assert left & redacted == {
        json.loads(r.value or b"")["n"] for r in before if r.key == b"user-13" and r.offset >= end
    }
