"""A topic is copied into another number of partitions, by the command line."""

from __future__ import annotations

import json
import os
import random
import uuid
import zlib
from collections import defaultdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from aiokafka.partitioner import murmur2
from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from isotherm.cli.main import app
from isotherm.errors import ConfigError
from isotherm.record.batch import TimestampType, iterate_batches
from isotherm.record.compression import CompressionType
from isotherm.record.encode import Partitioner
from isotherm.remote.rewriting.journal import JournalState, RewriteJournal, RewriteJournals
from isotherm.spark.jobs import repartition_runs
from isotherm.spark.jobs.load_passes import prepare
from isotherm.spark.jobs.moved_offsets import MOVED
from isotherm.spark.jobs.offsets_map import MapOfTopics, read_map
from isotherm.spark.jobs.packed_rows import WorkerRows
from isotherm.testing.embedded_broker import TIERED_TOPIC, EmbeddedBroker
from isotherm.types import TopicIdPartition
from oracle.consumed_records import ConsumedRecord, consume_all
from tests.support.conditions import wait_until
from tests.support.spark_driver import SparkDriver

TIMEOUT_S = 300
START_MS = 1_700_000_000_000
OLD_PARTITIONS, NEW_PARTITIONS = 3, 5


def produce(broker: EmbeddedBroker, numbers: range) -> None:
    rng = random.Random(numbers.start)
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "partitioner": "murmur2_random"}
    )
    for number in numbers:
        key = None if number % 9 == 0 else b"k%d" % rng.randrange(50)
        producer.produce(
            "old",
            key=key,
            value=b"%d" % number + bytes(500),
            headers=[("n", b"%d" % number)] if number % 4 == 0 else None,
            timestamp=START_MS + number,
        )
    assert producer.flush(TIMEOUT_S) == 0


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["pipeline", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def by_key(records: list[ConsumedRecord]) -> dict[bytes | None, list[tuple[object, ...]]]:
    """Everything but the place of each record, in the order of its partition."""
    found = defaultdict(list)
    for record in records:
        found[record.key].append((record.value, record.timestamp_ms, record.headers))
    return found


def test_keys_keep_their_order_and_groups_their_place(spark: SparkSession, tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        new = NewTopic("old", OLD_PARTITIONS, config=TIERED_TOPIC)
        admin.create_topics([new])["old"].result(TIMEOUT_S)
        produce(broker, range(6000))
        old = consume_all(broker.bootstrap_servers, "old")
        committed = {partition: 700 * partition for partition in range(OLD_PARTITIONS)}
        group = ConsumerGroupTopicPartitions(
            "readers", [KafkaPartition("old", *each) for each in committed.items()]
        )
        admin.alter_consumer_group_offsets([group])["readers"].result(TIMEOUT_S)
        common = (
            *("repartition", "old", "new", "-b", broker.bootstrap_servers),
            *("--path", str(tmp_path / "bucket"), "--json"),
        )
        shown = run(*common)
        assert "records_at_most" in shown
        assert "new" not in admin.list_topics().topics
        done = json.loads(run(*common, "--partitions", "5", "--groups", "readers", "--run"))

        copied = consume_all(broker.bootstrap_servers, "new")
        # Records without keys have no order between partitions.
        assert {k: sorted(v) if k is None else v for k, v in by_key(copied).items()} == {
            k: sorted(v) if k is None else v for k, v in by_key(old).items()
        }
        for each in copied:
            if each.key is not None:
                assert each.partition == (murmur2(each.key) & 0x7FFFFFFF) % NEW_PARTITIONS

        # The largest offset before which the group has seen everything, by a model.
        seen = {record.value for record in old if record.offset < committed[record.partition]}
        expected = {}
        for partition in range(NEW_PARTITIONS):
            mine = [each for each in copied if each.partition == partition]
            unseen = [record.offset for record in mine if record.value not in seen]
            expected[partition] = min(unseen, default=len(mine))
        asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("readers")])
        found = {
            topic_partition.partition: topic_partition.offset
            for topic_partition in asked["readers"].result(TIMEOUT_S).topic_partitions
            if topic_partition.topic == "new"
        }
        assert found == expected
        assert {each["partition"]: each["repeated"] for each in done["groups"]} == {
            partition: sum(
                record.partition == partition and record.offset >= first and record.value in seen
                for record in copied
            )
            for partition, first in expected.items()
        }

        # What has arrived since is appended.
        produce(broker, range(6000, 6500))
        run(*common, "--from-offsets", json.dumps(done["ended_at"]), "--run")
        copied = consume_all(broker.bootstrap_servers, "new")
        assert len(copied) == 6500
        old = consume_all(broker.bootstrap_servers, "old")
        keyed = {key: rows for key, rows in by_key(old).items() if key is not None}
        assert {k: rows for k, rows in by_key(copied).items() if k is not None} == keyed


def create_old(broker: EmbeddedBroker, **config: str) -> AdminClient:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    texts = {**TIERED_TOPIC, **{name.replace("_", "."): text for name, text in config.items()}}
    new = NewTopic("old", OLD_PARTITIONS, config=texts)
    admin.create_topics([new])["old"].result(TIMEOUT_S)
    return admin


def commit(admin: AdminClient, committed: dict[int, int]) -> None:
    places = [KafkaPartition("old", *each) for each in committed.items()]
    group = ConsumerGroupTopicPartitions("readers", places)
    admin.alter_consumer_group_offsets([group])["readers"].result(TIMEOUT_S)


def test_a_map_says_where_runs_ended_and_what_a_group_has_seen(
    spark: SparkSession, tmp_path: Path
) -> None:
    with EmbeddedBroker(tmp_path) as broker:
        admin = create_old(broker)
        folder = tmp_path / "map"
        common = (
            *("repartition", "old", "new", "-b", broker.bootstrap_servers, "--json"),
            *("--path", str(tmp_path / "bucket"), "--offsets-map", str(folder)),
        )
        follow = ("--follow", "--lag-ms", str(TIMEOUT_S * 1000), "--run")
        for count in (3000, 3500):
            produce(broker, range(count - 500 if count > 3000 else 0, count))
            done = json.loads(run(*common, "--partitions", "5", *follow))
            assert len(done["lag_ms"]) == 1, "one run is far below the limit"
        old = consume_all(broker.bootstrap_servers, "old")
        copied = consume_all(broker.bootstrap_servers, "new")
        assert sorted(each.value or b"" for each in copied) == sorted(
            each.value or b"" for each in old
        )

        # The map has each record in one range of its old offset, and of its new one.
        place = {record.value: (record.partition, record.offset) for record in old}
        ranges = [
            (
                (row.old_partition, range(row.old_start_offset, row.old_end_offset)),
                (row.new_partition, range(row.new_start_offset, row.new_end_offset)),
            )
            for row in spark.read.parquet(str(folder)).where("records > 0").collect()
        ]
        for record in copied[::50]:
            old_partition, old_offset = place[record.value]
            matches = [
                new_offsets
                for (partition, offsets), (new_partition, new_offsets) in ranges
                if (partition, new_partition) == (old_partition, record.partition)
                and old_offset in offsets
            ]
            assert [record.offset in offsets for offsets in matches] == [True]

        # The group has not seen all that the first run has copied.
        commit(admin, dict.fromkeys(range(OLD_PARTITIONS), 500))
        seen = {record.value for record in old if record.offset < 500}
        (moved,) = [json.loads(run(*common, "--groups", "readers", "--run"))["groups"]]
        for group in moved:
            before = [
                each
                for each in copied
                if each.partition == group["partition"] and each.offset < group["offset"]
            ]
            assert {each.value for each in before} <= seen, "nothing is skipped"
        assert sum(each["offset"] for each in moved) > 0

        # Without the map nothing is known of the first run, and the end is given by hand.
        again = ("--from-offsets", json.dumps(done["ended_at"]), "--run")
        refused = CliRunner().invoke(app, ["pipeline", *common[:-2], *again, "--groups", "readers"])
        assert "has not seen all that an earlier run has copied" in str(refused.exception)
        # A producer has been switched: nothing more may be appended.
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        producer.produce("new", b"v")
        assert producer.flush(TIMEOUT_S) == 0
        for arguments in (("--run",), again):
            given = common if arguments == ("--run",) else common[:-2]
            refused = CliRunner().invoke(app, ["pipeline", *given, *arguments])
            assert refused.exit_code == 1
            assert "does not end where the last run ended" in str(refused.exception)


KILLED = """
import os, signal
from typer.testing import CliRunner
from isotherm.cli.main import app
from isotherm.spark.jobs import repartition_runs

def end(*arguments, **options):
    answer("reached", [])
    os.killpg(os.getpid(), signal.SIGKILL)

repartition_runs.hand_over = end
result = CliRunner().invoke(app, given["arguments"])
answer("ended", [[result.exit_code, str(result.exception)]])
"""


class CutOffError(BaseException):
    """The driver ends here. A BaseException, so that no handler of errors catches it."""


def cut_off(*_: object) -> None:
    raise CutOffError


@pytest.mark.slow
def test_after_a_driver_is_killed_the_next_run_copies_what_is_missing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends before its journals say that all is staged, between two of them, and before the
    broker has adopted all."""
    put = RewriteJournals.put
    staged = []

    def put_one(journals: RewriteJournals, journal: RewriteJournal) -> None:
        if journal.state is JournalState.STAGED:
            staged.append(journal)
            if len(staged) == 2:
                cut_off()
        put(journals, journal)

    with EmbeddedBroker(tmp_path / "broker") as broker:
        create_old(broker)
        bucket = broker.directory / "bucket"
        place = ("-b", broker.bootstrap_servers, "--path", str(bucket))
        command = ("repartition", "old", "new", *place, "--offsets-map", str(tmp_path / "map"))
        command = (*command, "--partitions", "5", "--run")

        def finish(count: int, *, recovers: bool) -> None:
            if recovers:
                refused = CliRunner().invoke(app, ["pipeline", *command])
                assert "an earlier run is unfinished" in str(refused.exception)
                undone = run("load", "new", *place, "--recover", "--run")
                assert "left to the broker" not in undone
            run(*command)
            old = by_key(consume_all(broker.bootstrap_servers, "old"))
            copied = by_key(consume_all(broker.bootstrap_servers, "new"))
            assert sum(map(len, copied.values())) == count
            assert sorted(copied.pop(None)) == sorted(old.pop(None))
            assert copied == old

        produce(broker, range(300))
        given = {"arguments": ["pipeline", *command, "--master", "local[1]"]}
        with SparkDriver(tmp_path / "driver", KILLED, given) as driver:
            assert driver.answer("reached") == []
        finish(300, recovers=True)

        produce(broker, range(300, 600))
        with monkeypatch.context() as patch:
            patch.setattr(RewriteJournals, "put", put_one)
            with pytest.raises(CutOffError):
                run(*command)
        finish(600, recovers=True)

        produce(broker, range(600, 900))
        with monkeypatch.context() as patch:
            patch.setattr(repartition_runs, "await_adoption", cut_off)
            with pytest.raises(CutOffError):
                run(*command)
        journals = bucket / "isotherm-rewrites"
        # The broker deletes folders meanwhile, at which a glob fails.
        wait_until(lambda: not any(files for _, _, files in os.walk(journals)))
        finish(900, recovers=False)
        # The map has each record once.
        ranges = spark.read.parquet(str(tmp_path / "map"))
        assert ranges.agg({"records": "sum"}).collect()[0][0] == 900


def test_records_of_an_open_transaction_are_copied_when_it_is_committed(
    spark: SparkSession, tmp_path: Path
) -> None:
    """With another codec, segments of another size, and the partitioner of librdkafka's clients.
    The times are those of the appends."""
    with EmbeddedBroker(tmp_path) as broker:
        create_old(broker, message_timestamp_type="LogAppendTime")
        produce(broker, range(100))
        producer = Producer(
            {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "open"}
        )
        producer.init_transactions(TIMEOUT_S)
        producer.begin_transaction()
        for partition in range(OLD_PARTITIONS):
            producer.produce("old", b"later-%d" % partition, partition=partition)
        assert producer.flush(TIMEOUT_S) == 0
        produce(broker, range(100, 200))
        common = (
            *("repartition", "old", "new", "-b", broker.bootstrap_servers),
            *("--path", str(tmp_path / "bucket"), "--json", "--run", "--compression", "zstd"),
            *("--partitioner", "consistent", "--batch-size", "1000"),
            *("--segment-bytes", "500"),
        )
        done = json.loads(run(*common, "--partitions", "5"))
        assert all(each["segments"] > 1 for each in done["partitions"])
        producer.commit_transaction(TIMEOUT_S)
        run(*common, "--from-offsets", json.dumps(done["ended_at"]))
        copied = consume_all(broker.bootstrap_servers, "new")
        old = consume_all(broker.bootstrap_servers, "old")
        assert len(old) == 203
        assert sorted((each.value or b"", each.timestamp_ms) for each in copied) == sorted(
            (each.value or b"", each.timestamp_ms) for each in old
        )
        for each in copied:
            if each.key is not None:
                assert each.partition == zlib.crc32(each.key) % NEW_PARTITIONS
        headers = [
            header
            for path in (tmp_path / "bucket").rglob("new-*/**/*.log")
            for _, header in iterate_batches(path.read_bytes())
        ]
        assert {header.compression_type for header in headers} == {CompressionType.ZSTD}
        assert {header.timestamp_type for header in headers} == {TimestampType.LOG_APPEND_TIME}


def test_all_times_that_a_broker_takes_are_copied(spark: SparkSession, tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path) as broker:
        longest = str(2**63 - 1)
        create_old(
            broker,
            message_timestamp_before_max_ms=longest,
            message_timestamp_after_max_ms=longest,
        )
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        # A producer's nanoseconds, the largest time that a record can have, none, and some before
        # 1970, such as that of an unset field.
        times = [
            1_700_000_000_000_000_000, 2**63 - 1, 1_700_000_000_000, -1, -5, -62_135_596_800_000
        ]  # fmt: skip
        for time_ms in times:
            producer.produce("old", b"%d" % time_ms, key=b"k", timestamp=time_ms)
        assert producer.flush(TIMEOUT_S) == 0
        place = ("-b", broker.bootstrap_servers, "--path", str(tmp_path / "bucket"))
        run("repartition", "old", "new", "--partitions", "2", *place, "--run")
        copied = consume_all(broker.bootstrap_servers, "new")
        assert [(each.timestamp_ms, each.value) for each in copied] == [
            (time_ms, b"%d" % time_ms) for time_ms in times
        ]


def test_a_folder_whose_ranges_have_no_run_is_no_map(spark: SparkSession, tmp_path: Path) -> None:
    place = MapOfTopics(
        str(tmp_path),
        TopicIdPartition(uuid.UUID(int=1), "old", 0),
        TopicIdPartition(uuid.UUID(int=2), "new", 0),
    )
    columns = {
        name: pa.array([], kind) for name, kind in zip(MOVED.names, MOVED.types, strict=True)
    }
    for name in ("old_topic", "old_topic_id", "new_topic", "new_topic_id", "run"):
        columns[name] = pa.array([], pa.string())
    file = tmp_path / "ranges.parquet"
    pq.write_table(pa.table(columns), file)
    assert read_map(spark, place) is not None
    del columns["run"]
    pq.write_table(pa.table(columns), file)
    with pytest.raises(ConfigError, match=r"no map of offsets .*missing=\['run'\]"):
        read_map(spark, place)


def test_an_old_topic_has_no_column_that_names_the_new_partition(spark: SparkSession) -> None:
    rows = WorkerRows(spark.range(1), iter)
    with pytest.raises(ConfigError, match="partitioner is column, and the input has no column"):
        prepare(
            rows,
            partitioner=Partitioner.COLUMN,
            partitions_count=3,
            run_size=1000,
            order_by=None,
            now_ms=0,
            folder=None,
        )
