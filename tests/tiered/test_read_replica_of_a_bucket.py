"""A read replica of a bucket whose cluster is gone: clients get what the cluster gave them."""

from __future__ import annotations

import logging
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaException,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from isotherm.broker.apis import unread_partitions
from isotherm.broker.cluster.replica_cluster import STATE_AGE
from isotherm.errors import ConfigError, UnsupportedVersionError
from isotherm.remote.metadata.manifest_metadata import ManifestReader
from isotherm.remote.storage.layout.names import LOCAL_TIERED_STORAGE
from isotherm.types import TopicIdPartition
from oracle.consumed_records import ConsumedRecord, consume_all
from oracle.kafka import java_command, run_tool
from oracle.tools import CONSOLE_CONSUMER
from tests.support.conditions import wait_until
from tests.support.embedded_replica import EmbeddedReplica
from tests.support.s3_server import S3Server, find_versitygw

TIMEOUT_S = 300
TOPIC = "history"
READ_UNCOMMITTED, READ_COMMITTED = "read_uncommitted", "read_committed"


class Left(NamedTuple):
    """What a cluster has left behind. `expected` has the records below the end of the tier, as a
    consumer of the cluster got them, by isolation level."""

    bucket: Path
    ends: dict[int, int]
    stable_ends: dict[int, int]
    expected: dict[str, list[ConsumedRecord]]


def write(producer: Producer, *values: bytes, partition: int = 0) -> None:
    """Each value gets a batch of its own."""
    for value in values:
        producer.produce(TOPIC, value, b"k", partition)
        assert producer.flush(TIMEOUT_S) == 0


def run_transaction(producer: Producer, *values: bytes, commit: bool = True) -> None:
    producer.begin_transaction()
    write(producer, *values)
    (producer.commit_transaction if commit else producer.abort_transaction)(TIMEOUT_S)


@pytest.fixture
def left(open_tiers: Any, tmp_path: Path) -> Left:
    tiers = open_tiers(tmp_path / "cluster")
    tiers.create_topic(TOPIC, partitions=2)
    plain = Producer({**tiers.client, "linger.ms": 0})
    producer = Producer(
        {**tiers.client, "linger.ms": 0, "transactional.id": "t", "transaction.timeout.ms": 900_000}
    )
    producer.init_transactions(TIMEOUT_S)
    for number in range(5):
        write(plain, b"a-%d" % number, partition=0)
        write(plain, b"b-%d" % number, partition=1)
    run_transaction(producer, b"committed")
    run_transaction(producer, b"aborted", commit=False)
    write(plain, *(b"between-%d" % number for number in range(3)))
    # Its first records are tiered, its end is not: the bucket does not say how it ended.
    run_transaction(producer, b"undecided-1", b"undecided-2")
    ends = {}
    for partition in (0, 1):
        log = tiers.log(TOPIC, partition)
        active = log.segments()[-1].base_offset
        wait_until(
            lambda log=log, active=active: log.highest_offset_in_remote_storage + 1 == active
        )
        ends[partition] = active
    stable_ends = dict(ends)
    expected = {
        level: [
            message
            for message in consume_all(tiers.broker.bootstrap_servers, TOPIC, isolation_level=level)
            if message.offset < ends[message.partition]
        ]
        for level in (READ_UNCOMMITTED, READ_COMMITTED)
    }
    (first,) = (e.offset for e in expected[READ_UNCOMMITTED] if e.value == b"undecided-1")
    stable_ends[0] = first
    expected[READ_COMMITTED] = [
        e for e in expected[READ_COMMITTED] if e.offset < stable_ends[e.partition]
    ]
    tiers.stop()
    return Left(tiers.directory / "bucket", ends, stable_ends, expected)


@pytest.fixture
def replica(left: Left, tmp_path: Path) -> Iterator[EmbeddedReplica]:
    with EmbeddedReplica(tmp_path / "scratch", left.bucket) as started:
        yield started


@pytest.mark.parametrize("level", [READ_UNCOMMITTED, READ_COMMITTED])
def test_consumers_get_what_the_cluster_gave_them(
    left: Left, replica: EmbeddedReplica, level: str
) -> None:
    assert len(left.expected[level]) > 10
    assert (
        consume_all(replica.bootstrap_servers, TOPIC, isolation_level=level)
        == (left.expected[level])
    )


def test_offsets_are_those_of_the_tier(left: Left, replica: EmbeddedReplica) -> None:
    admin = AdminClient({"bootstrap.servers": replica.bootstrap_servers})

    def listed(spec: Any, level: IsolationLevel) -> dict[int, int]:
        asked = {TopicPartition(TOPIC, end): spec for end in left.ends}
        answers = admin.list_offsets(asked, isolation_level=level)
        return {place.partition: each.result(TIMEOUT_S).offset for place, each in answers.items()}

    uncommitted, committed = IsolationLevel.READ_UNCOMMITTED, IsolationLevel.READ_COMMITTED
    assert listed(OffsetSpec.earliest(), uncommitted) == dict.fromkeys(left.ends, 0)
    assert listed(OffsetSpec.latest(), uncommitted) == left.ends
    assert listed(OffsetSpec.latest(), committed) == left.stable_ends
    middle = left.expected[READ_UNCOMMITTED][3]
    at_time = OffsetSpec.for_timestamp(middle.timestamp_ms)
    assert listed(at_time, uncommitted)[0] <= middle.offset
    assert listed(at_time, uncommitted)[0] >= 1


def test_a_group_shares_and_commits(left: Left, replica: EmbeddedReplica) -> None:
    settings = {
        "bootstrap.servers": replica.bootstrap_servers,
        "group.id": "readers",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
    }
    expected = len(left.expected[READ_COMMITTED])
    first = Consumer(settings)
    first.subscribe([TOPIC])
    got = [each for _ in range(4) if (each := first.poll(TIMEOUT_S)) is not None]
    first.commit(asynchronous=False)
    first.close()
    second = Consumer(settings)
    second.subscribe([TOPIC])
    while len(got) < expected:
        message = second.poll(TIMEOUT_S)
        assert message is not None
        assert message.error() is None
        got.append(message)
    second.close()
    assert len({(each.partition(), each.offset()) for each in got}) == expected


def test_changes_are_refused_and_name_the_reason(replica: EmbeddedReplica) -> None:
    client = {"bootstrap.servers": replica.bootstrap_servers}
    errors: list[Any] = []
    producer = Producer({**client, "linger.ms": 0})
    producer.produce(TOPIC, b"v", on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(TIMEOUT_S) == 0
    assert errors[0].name() == "POLICY_VIOLATION"
    admin = AdminClient(client)
    with pytest.raises(KafkaException, match="read replica"):
        admin.create_topics([NewTopic("new", 1, 1)])["new"].result(TIMEOUT_S)
    (described,) = admin.describe_configs([ConfigResource(ResourceType.TOPIC, TOPIC)]).values()
    assert described.result(TIMEOUT_S)["remote.storage.enable"].value == "true"


def test_nothing_is_written_to_the_bucket(left: Left, tmp_path: Path) -> None:
    def objects() -> dict[Path, tuple[int, int]]:
        files = (path for path in left.bucket.rglob("*") if path.is_file())
        return {file: (file.stat().st_size, file.stat().st_mtime_ns) for file in files}

    before = objects()
    with EmbeddedReplica(tmp_path / "scratch", left.bucket) as replica:
        consume_all(replica.bootstrap_servers, TOPIC)
    assert objects() == before


def test_a_bucket_without_a_history_is_refused(left: Left, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="no segment of a topic is in the bucket"):
        EmbeddedReplica(tmp_path / "s1", tmp_path / "empty").start()
    layout = {"rsm.config.layout": LOCAL_TIERED_STORAGE}
    with pytest.raises(UnsupportedVersionError, match="no manifests"):
        EmbeddedReplica(tmp_path / "s2", left.bucket, layout).start()
    # Uploads that a crash has ended: no segment is whole.
    for manifest in left.bucket.glob("*/*/*.rsm-manifest"):
        manifest.unlink()
    with pytest.raises(ConfigError, match="no segment of a topic is in the bucket"):
        EmbeddedReplica(tmp_path / "s3", left.bucket).start()


def test_an_empty_bucket_that_is_allowed_is_served_once_it_has_a_history(
    left: Left, tmp_path: Path
) -> None:
    bucket = tmp_path / "empty"
    bucket.mkdir()
    scratch = tmp_path / "scratch"
    with EmbeddedReplica(scratch, bucket, list_interval_s=0.01, allows_empty=True) as replica:
        assert not histories(replica)
        for topic in left.bucket.iterdir():
            topic.rename(bucket / topic.name)
        ends = {(TOPIC, number): (0, end) for number, end in left.ends.items()}
        wait_until(lambda: histories(replica) == ends, lambda: str(histories(replica)))
        got = consume_all(replica.bootstrap_servers, TOPIC, isolation_level=READ_COMMITTED)
    assert got == left.expected[READ_COMMITTED]


@pytest.mark.oracle
def test_kafkas_console_consumer_reads_all(
    kafka_tools: Path, left: Left, replica: EmbeddedReplica
) -> None:
    expected = [each.value for each in left.expected[READ_COMMITTED]]
    printed = run_tool(
        CONSOLE_CONSUMER, "--bootstrap-server", replica.bootstrap_servers, "--topic", TOPIC,
        "--from-beginning", f"--max-messages={len(expected)}", f"--timeout-ms={TIMEOUT_S * 1000}",
        "--command-property", "isolation.level=read_committed",
    )  # fmt: skip
    lines = sorted(line for line in printed.splitlines() if line.encode() in expected)
    assert lines == sorted(value.decode() for value in expected if value is not None)


def histories(replica: EmbeddedReplica) -> dict[tuple[str, int], tuple[int, int]]:
    """The log start and the end of each partition of a topic."""
    return {
        (topic.name, number): (partition.log.log_start_offset, partition.log.log_end_offset)
        for topic in replica.node.services.replica_manager.topics()
        if not topic.name.startswith("__")
        for number, partition in topic.partitions.items()
    }


def records_of(replica: EmbeddedReplica, topic: str, partition: int) -> list[bytes | None]:
    start, end = histories(replica)[topic, partition]
    consumer = Consumer({"bootstrap.servers": replica.bootstrap_servers, "group.id": "x"})
    consumer.assign([TopicPartition(topic, partition, start)])
    messages = [consumer.poll(TIMEOUT_S) for _ in range(start, end)]
    consumer.close()
    assert [message and message.offset() for message in messages] == list(range(start, end))
    return [message and message.value() for message in messages]


def test_what_a_bucket_gains_and_loses_is_seen_without_a_restart(
    tiers: Any, tmp_path: Path
) -> None:
    def write(topic: str, *values: bytes, partition: int = 0) -> None:
        tiers.produce(topic, *((b"k", value) for value in values), partition=partition)

    tiers.create_topic("kept")
    write("kept", b"0", b"1", b"2", b"3")
    tiers.expect_remote_ends("kept", 0, 1, 2)
    with EmbeddedReplica(
        tmp_path / "scratch", tiers.directory / "bucket", list_interval_s=0.01
    ) as replica:

        def expect(**ends: tuple[int, int]) -> None:
            expected = {(name[:-2], int(name[-1])): each for name, each in ends.items()}
            wait_until(lambda: histories(replica) == expected, lambda: str(histories(replica)))

        expect(kept_0=(0, 3))
        consumer = Consumer({"bootstrap.servers": replica.bootstrap_servers, "group.id": "tail"})
        consumer.assign([TopicPartition("kept", 0, 3)])
        write("kept", b"4", b"5")
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        assert (message.offset(), message.value()) == (3, b"3")
        consumer.close()
        # Partitions and topics that are new. Partition 1 has no record yet.
        tiers.expand("kept", 3)
        write("kept", b"0", b"1", partition=2)
        tiers.create_topic("anew")
        write("anew", b"0", b"1", b"2")
        expect(kept_0=(0, 5), kept_1=(0, 0), kept_2=(0, 1), anew_0=(0, 2))
        write("kept", b"0", b"1", partition=1)
        expect(kept_0=(0, 5), kept_1=(0, 1), kept_2=(0, 1), anew_0=(0, 2))
        assert records_of(replica, "kept", 0) == [b"0", b"1", b"2", b"3", b"4"]
        assert records_of(replica, "kept", 1) == [b"0"]
        assert records_of(replica, "anew", 0) == [b"0", b"1"]
        # What retention and deletion take away.
        tiers.delete_records("kept", 2)
        expect(kept_0=(2, 5), kept_1=(0, 1), kept_2=(0, 1), anew_0=(0, 2))
        assert records_of(replica, "kept", 0) == [b"2", b"3", b"4"]
        tiers.delete_topic("anew")
        expect(kept_0=(2, 5), kept_1=(0, 1), kept_2=(0, 1))
        tiers.create_topic("anew")
        write("anew", b"again-0", b"again-1")
        expect(kept_0=(2, 5), kept_1=(0, 1), kept_2=(0, 1), anew_0=(0, 1))
        assert records_of(replica, "anew", 0) == [b"again-0"]


def test_the_end_of_a_history_that_becomes_shorter_is_told(left: Left, tmp_path: Path) -> None:
    with EmbeddedReplica(tmp_path / "scratch", left.bucket, list_interval_s=0.01) as replica:
        consumer = Consumer({"bootstrap.servers": replica.bootstrap_servers, "group.id": "x"})
        place = TopicPartition(TOPIC, 1)
        start, end = consumer.get_watermark_offsets(place, TIMEOUT_S)
        assert end == left.ends[1]
        *_, last = sorted(left.bucket.glob(f"{TOPIC}-*/1/*.rsm-manifest"))
        last.unlink()
        wait_until(lambda: histories(replica)[TOPIC, 1] == (start, end - 1), "the shorter history")
        assert consumer.get_watermark_offsets(place, TIMEOUT_S, cached=False) == (start, end - 1)
        consumer.close()


def test_a_first_segment_that_comes_later_is_served(left: Left, tmp_path: Path) -> None:
    first, *_ = sorted(left.bucket.glob(f"{TOPIC}-*/1/*.rsm-manifest"))
    first.rename(tmp_path / "manifest")
    with EmbeddedReplica(tmp_path / "scratch", left.bucket, list_interval_s=0.01) as replica:
        end = left.ends[1]
        wait_until(lambda: histories(replica).get((TOPIC, 1)) == (1, end), "all but the first")
        (tmp_path / "manifest").rename(first)
        wait_until(lambda: histories(replica)[TOPIC, 1] == (0, end), "the whole history")
        assert records_of(replica, TOPIC, 1) == [
            each.value for each in left.expected[READ_UNCOMMITTED] if each.partition == 1
        ]


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Partition 1 is not read before the event."""
    may_read = threading.Event()
    read_partition = ManifestReader.read_partition

    def read(reader: ManifestReader, partition: TopicIdPartition, *others: Any) -> Any:
        if partition.partition == 1:
            assert may_read.wait(TIMEOUT_S)
        return read_partition(reader, partition, *others)

    monkeypatch.setattr(ManifestReader, "read_partition", read)
    yield may_read
    may_read.set()


def test_a_partition_is_served_while_another_one_is_not_read(
    left: Left, held: threading.Event, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unread_partitions, "FIRST_WAIT_S", 0.1)
    monkeypatch.setattr(unread_partitions, "REST_WAIT_S", 0.1)
    expected: dict[int, list[bytes | None]] = {
        number: [e.value for e in left.expected[READ_UNCOMMITTED] if e.partition == number]
        for number in left.ends
    }
    with EmbeddedReplica(tmp_path / "scratch", left.bucket) as replica:
        client = {"bootstrap.servers": replica.bootstrap_servers}
        # Both are there from the start.
        admin = AdminClient(client)
        assert set(admin.list_topics(TOPIC, timeout=TIMEOUT_S).topics[TOPIC].partitions) == {0, 1}
        consumer = Consumer(
            {
                **client,
                "group.id": "x",
                "auto.offset.reset": "error",
                "isolation.level": READ_UNCOMMITTED,
            }
        )
        # One begins where the history does, the other at an offset that it knows: neither an empty
        # log nor an end that is not the end is shown.
        consumer.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING), TopicPartition(TOPIC, 1, 2)])
        got: dict[int, list[bytes | None]] = {0: [], 1: []}

        def poll() -> None:
            message = consumer.poll(TIMEOUT_S)
            assert message is not None
            assert message.error() is None
            got[message.partition() or 0].append(message.value())

        while len(got[0]) < len(expected[0]):
            poll()
        place = TopicPartition(TOPIC, 1)
        with pytest.raises(KafkaException, match="NOT_LEADER_FOR_PARTITION"):
            admin.list_offsets({place: OffsetSpec.latest()})[place].result(TIMEOUT_S)
        assert got == {0: expected[0], 1: []}
        held.set()
        while len(got[1]) < len(expected[1]) - 2:
            poll()
        consumer.close()
        assert got == {0: expected[0], 1: expected[1][2:]}
        wait_until(lambda: len(histories(replica)) == 2)
        end = admin.list_offsets({place: OffsetSpec.latest()})[place].result(TIMEOUT_S).offset
        assert end == left.ends[1]


@pytest.mark.oracle
def test_javas_consumer_goes_on_when_a_partition_is_read(
    kafka_tools: Path,
    left: Left,
    held: threading.Event,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It keeps a fetch session, in which the unread partition has an error."""
    monkeypatch.setattr(unread_partitions, "FIRST_WAIT_S", 0.1)
    monkeypatch.setattr(unread_partitions, "REST_WAIT_S", 0.1)
    expected = {
        number: sorted(
            (e.value or b"").decode()
            for e in left.expected[READ_COMMITTED]
            if e.partition == number
        )
        for number in left.ends
    }
    printed = tmp_path / "printed.txt"
    with EmbeddedReplica(tmp_path / "scratch", left.bucket) as replica:
        command = java_command(
            CONSOLE_CONSUMER, "--bootstrap-server", replica.bootstrap_servers, "--topic", TOPIC,
            "--from-beginning", f"--max-messages={len(left.expected[READ_COMMITTED])}",
            "--command-property", "isolation.level=read_committed",
        )  # fmt: skip
        with printed.open("wb") as output, subprocess.Popen(command, stdout=output) as process:
            try:
                wait_until(lambda: sorted(printed.read_text().splitlines()) == expected[0])
                held.set()
                assert process.wait(TIMEOUT_S) == 0
            finally:
                process.kill()
    assert sorted(printed.read_text().splitlines()) == sorted(expected[0] + expected[1])


def test_a_store_that_is_away_at_the_start_is_waited_for(
    left: Left, held: threading.Event, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with EmbeddedReplica(tmp_path / "scratch", left.bucket) as replica:
        wait_until(lambda: len(histories(replica)) == 1)
        left.bucket.rename(tmp_path / "away")
        held.set()
        wait_until(lambda: "cannot be read" in caplog.text, "a failed reading")
        (tmp_path / "away").rename(left.bucket)
        got = consume_all(replica.bootstrap_servers, TOPIC, isolation_level=READ_COMMITTED)
        assert got == left.expected[READ_COMMITTED]


def test_a_bucket_of_an_s3_server_is_read_and_listed_again(left: Left, tmp_path: Path) -> None:
    binary = find_versitygw()
    if binary is None:
        pytest.skip("versitygw is not there: scripts/s3-server.sh install, or set VERSITYGW")
    with S3Server(binary, tmp_path / "buckets") as server:
        folder = server.bucket_folder / "kafka"
        shutil.copytree(left.bucket, folder)
        settings = {f"rsm.config.{key}": text for key, text in server.config.items()}
        url = settings.pop("rsm.config.url") + "/kafka"
        with EmbeddedReplica(tmp_path / "s", url, settings, list_interval_s=0.01) as replica:
            got = consume_all(replica.bootstrap_servers, TOPIC, isolation_level=READ_COMMITTED)
            assert got == left.expected[READ_COMMITTED]
            wait_until(lambda: len(histories(replica)) == len(left.ends), "the first reading")
            assert histories(replica) == {(TOPIC, n): (0, end) for n, end in left.ends.items()}
            first, second, *_ = sorted(folder.glob(f"{TOPIC}-*/0/*.rsm-manifest"))
            for path in first.parent.glob(f"{first.stem}.*"):
                path.unlink()
            start = int(second.name[:20])
            wait_until(lambda: histories(replica)[TOPIC, 0] == (start, left.ends[0]))


def test_of_two_topics_with_one_name_the_newest_is_served_from_the_start(
    left: Left, open_tiers: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    later = open_tiers(tmp_path / "later")
    later.create_topic(TOPIC)
    later.produce(TOPIC, (b"k", b"later-0"), (b"k", b"later-1"))
    later.expect_remote_ends(TOPIC, 0)
    later.stop()
    for folder in (tmp_path / "later" / "bucket").iterdir():
        shutil.copytree(folder, left.bucket / folder.name, dirs_exist_ok=True)
    with EmbeddedReplica(tmp_path / "scratch", left.bucket) as replica:
        assert histories(replica) == {(TOPIC, 0): (0, 1)}
        assert records_of(replica, TOPIC, 0) == [b"later-0"]
    assert "an older topic of this name is ignored" in caplog.text


def test_a_store_that_is_away_leaves_what_was_known(
    left: Left, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with EmbeddedReplica(tmp_path / "scratch", left.bucket, list_interval_s=0.01) as replica:
        wait_until(lambda: len(histories(replica)) == len(left.ends), "the first reading")
        left.bucket.rename(tmp_path / "away")
        wait_until(lambda: "background task failed" in caplog.text, "a failed listing")
        before_s = replica.node.metrics.value(STATE_AGE)
        admin = AdminClient({"bootstrap.servers": replica.bootstrap_servers})
        assert set(admin.list_topics(TOPIC, timeout=TIMEOUT_S).topics[TOPIC].partitions) == {0, 1}
        assert replica.node.metrics.value(STATE_AGE) >= before_s
        (tmp_path / "away").rename(left.bucket)
        wait_until(lambda: "background task works again" in caplog.text, "the next listing")
        got = consume_all(replica.bootstrap_servers, TOPIC, isolation_level=READ_COMMITTED)
        assert got == left.expected[READ_COMMITTED]
