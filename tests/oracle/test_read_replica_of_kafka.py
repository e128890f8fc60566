"""A read replica in front of Apache Kafka: clients get through it what they get from the broker."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from isotherm.broker.cluster.replica_cluster import PARTITIONS, STATE_AGE
from isotherm.broker.cluster.replica_peers import Peer
from isotherm.broker.cluster.replica_settings import Tail
from isotherm.broker.cluster.upstream_cluster import METADATA_LAG
from isotherm.cli.main import app
from isotherm.client.node_address import NodeAddress
from isotherm.clock import SystemClock
from isotherm.errors import ConfigError, RemoteStorageNotReadyError
from isotherm.remote.storage.layout.names import LOCAL_TIERED_STORAGE
from isotherm.storage_view.cluster_storage import StorageReader
from isotherm.storage_view.partition_storage import StorageSums
from isotherm.testing.local_servers import free_ports
from isotherm.types import REMOTE_LOG_METADATA_TOPIC
from oracle.consumed_records import consume_all
from oracle.kafka import EAGER_SETTINGS, KafkaOracle, run_tool, running_kafka
from oracle.tiered_topic import TieredTopic, fill_tiered_topic, make_tiered_topic
from oracle.tools import CONSOLE_CONSUMER
from oracle.topics import create_topic, delete_topic
from tests.oracle.moving_topic import committed_records, moving_topic
from tests.support.browser import DRIVER, NO_BROWSER, open_browser
from tests.support.conditions import wait_until
from tests.support.console_server import running_console
from tests.support.embedded_replica import EmbeddedReplica

TIMEOUT_S = 300


@pytest.fixture(params=[Tail.PROXY, Tail.LEADER])
def replica(
    request: pytest.FixtureRequest,
    kafka: KafkaOracle,
    kafka_tiered_topic: TieredTopic,
    tmp_path: Path,
) -> Iterator[EmbeddedReplica]:
    with EmbeddedReplica(
        tmp_path, kafka.remote_dir, upstream=kafka.bootstrap_server, tail=request.param
    ) as started:
        yield started


@pytest.fixture
def proxy(
    kafka: KafkaOracle, kafka_tiered_topic: TieredTopic, tmp_path: Path
) -> Iterator[EmbeddedReplica]:
    with EmbeddedReplica(tmp_path, kafka.remote_dir, upstream=kafka.bootstrap_server) as started:
        yield started


def remote_bytes(replica: EmbeddedReplica) -> float:
    """The bytes that the replica has read from the bucket for its clients."""
    name = "kafka_server_brokertopicmetrics_remotefetchbytes_total"
    return replica.node.metrics.registry.get_sample_value(name, {"topic": ""}) or 0.0


def test_consumers_get_what_kafka_gives_them(
    kafka_tiered_topic: TieredTopic, replica: EmbeddedReplica
) -> None:
    got = consume_all(replica.bootstrap_servers, kafka_tiered_topic.name)
    assert got == list(kafka_tiered_topic.expected)
    # Clients that see the brokers too may read there.
    assert replica.tail is Tail.LEADER or remote_bytes(replica) > 0
    metrics = replica.node.metrics
    assert metrics.value(PARTITIONS) >= len(kafka_tiered_topic.local_start_offsets)
    before_s = metrics.value(STATE_AGE)
    wait_until(lambda: metrics.value(STATE_AGE) < before_s, "another look at the cluster")


def test_records_of_the_metadata_topic_that_are_not_applied_are_counted(
    kafka: KafkaOracle, proxy: EmbeddedReplica
) -> None:
    metrics = proxy.node.metrics
    wait_until(lambda: metrics.value(METADATA_LAG) == 0, "all records")
    # Its follower ends, and nothing is applied any more.
    proxy.node._replica.tier_metadata.close()
    make_tiered_topic(kafka, "not-applied", partitions=1, records=2500)
    wait_until(lambda: metrics.value(METADATA_LAG) > 0, "records that are not applied")
    delete_topic(kafka.bootstrap_server, "not-applied")


def test_tools_count_the_tier_through_the_replica(
    kafka: KafkaOracle, kafka_tiered_topic: TieredTopic, proxy: EmbeddedReplica
) -> None:
    name = kafka_tiered_topic.name

    def sums_of(server: str) -> StorageSums:
        with closing(StorageReader({"bootstrap.servers": server}, SystemClock())) as reader:
            return reader.read().topics[name].sums

    def tier(server: str) -> tuple[int, int, int]:
        sums = sums_of(server)
        return sums.remote_bytes, sums.remote_segments, sums.missing_offsets

    through_kafka = tier(kafka.bootstrap_server)
    assert through_kafka[0] > 0
    assert tier(proxy.bootstrap_servers) == through_kafka
    printed = CliRunner().invoke(app, ["top", "--once", "-b", proxy.bootstrap_servers]).output
    assert name[:12] in printed
    assert "offsets missing" not in printed
    # The replica has none of the leader's files: what is not tiered may be one active segment.
    assert sums_of(kafka.bootstrap_server).copy_lag_offsets == 0
    assert sums_of(proxy.bootstrap_servers).copy_lag_offsets is None
    described = ["topics", "describe-storage", name, "-b", proxy.bootstrap_servers]
    assert "unknown" in CliRunner().invoke(app, described).output
    lines = CliRunner().invoke(app, [*described, "--json"]).output.splitlines()
    assert json.loads(lines[0])["copy_lag_bytes"] is None


@pytest.mark.skipif(DRIVER is None, reason=NO_BROWSER)
def test_console_shows_the_tier_through_the_replica(
    kafka_tiered_topic: TieredTopic, proxy: EmbeddedReplica
) -> None:
    servers = {"bootstrap.servers": proxy.bootstrap_servers}
    with (
        running_console(lambda: StorageReader(servers, SystemClock())) as address,
        open_browser() as browser,
    ):
        browser.go(f"{address}/#/topics/{kafka_tiered_topic.name}")
        browser.wait(lambda: "Not copied yet" in browser.text())
        figures = browser.text("dl.figures")
        assert "a read replica does not show the leader's bytes" in figures
        assert browser.text("table").count(str(proxy.node.services.config.node_id)) > 0
        browser.go(f"{address}/#/topics")
        browser.wait(lambda: kafka_tiered_topic.name in browser.text())
        assert "unknown" in browser.text("table")


def test_replica_is_the_only_broker_that_clients_see(
    kafka: KafkaOracle, kafka_tiered_topic: TieredTopic, proxy: EmbeddedReplica
) -> None:
    admin = AdminClient({"bootstrap.servers": proxy.bootstrap_servers})
    create_topic(kafka.bootstrap_server, "not-tiered", 1, {})
    for _ in range(5):
        seen = admin.list_topics(timeout=TIMEOUT_S)
        assert list(seen.brokers) == [proxy.config.node_id]
        assert "not-tiered" not in seen.topics
    leaders = {e.leader for e in seen.topics[kafka_tiered_topic.name].partitions.values()}
    assert leaders == {proxy.config.node_id}
    assert (
        seen.cluster_id
        == AdminClient({"bootstrap.servers": kafka.bootstrap_server})
        .list_topics(timeout=TIMEOUT_S)
        .cluster_id
    )


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_javas_consumer_reads_all_in_a_group(
    kafka_tiered_topic: TieredTopic, proxy: EmbeddedReplica, protocol: str
) -> None:
    count = len(kafka_tiered_topic.expected)
    printed = run_tool(
        CONSOLE_CONSUMER, "--bootstrap-server", proxy.bootstrap_servers,
        "--topic", kafka_tiered_topic.name, "--group", f"java-{protocol}", "--from-beginning",
        f"--max-messages={count}", f"--timeout-ms={TIMEOUT_S * 1000}",
        "--command-property", f"group.protocol={protocol}",
        "--formatter-property", "print.offset=true",
        "--formatter-property", "print.partition=true",
        "--formatter-property", "print.value=false",
    )  # fmt: skip
    places = {
        (int(line.split("\t")[0].partition(":")[2]), int(line.split("\t")[1].partition(":")[2]))
        for line in printed.splitlines()
        if line.startswith("Partition:")
    }
    assert places == {(each.partition, each.offset) for each in kafka_tiered_topic.expected}


def test_a_group_goes_to_and_fro(
    kafka: KafkaOracle, kafka_tiered_topic: TieredTopic, proxy: EmbeddedReplica
) -> None:
    servers = [kafka.bootstrap_server, proxy.bootstrap_servers] * 3
    expected = {(each.partition, each.offset) for each in kafka_tiered_topic.expected}
    got: list[tuple[int, int]] = []
    for number, server in enumerate(servers):
        is_last = number == len(servers) - 1
        wanted = len(expected) - len(got) if is_last else 900
        consumer = Consumer(
            {
                "bootstrap.servers": server,
                "group.id": "to-and-fro",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        consumer.subscribe([kafka_tiered_topic.name])
        for _ in range(wanted):
            message = consumer.poll(TIMEOUT_S)
            assert message is not None
            assert message.error() is None
            got.append((message.partition() or 0, message.offset() or 0))
        consumer.commit(asynchronous=False)
        consumer.close()
    assert len(got) == len(expected)
    assert set(got) == expected


def test_a_topic_that_is_written_tiered_and_trimmed_is_read_without_gap_or_repetition(
    kafka: KafkaOracle, replica: EmbeddedReplica, request: pytest.FixtureRequest
) -> None:
    server, topic = kafka.bootstrap_server, f"moving-{id(replica)}"
    with moving_topic(server, topic, before=60, meanwhile=90) as writer:
        writer.start()
        admin = AdminClient({"bootstrap.servers": replica.bootstrap_servers})
        wait_until(lambda: topic in admin.list_topics(timeout=TIMEOUT_S).topics, "the new topic")
        consumer = Consumer(
            {
                "bootstrap.servers": replica.bootstrap_servers,
                "group.id": "moving",
                "enable.auto.commit": False,
                # Metadata is looked at again all the time, as in a consumer that runs for weeks.
                "topic.metadata.refresh.interval.ms": 500,
            }
        )
        consumer.assign([TopicPartition(topic, 0, 0)])
        got: list[tuple[int, bytes | None]] = []
        count = committed_records(60 + 90)

        def take() -> bool:
            for message in consumer.consume(500, 0.2):
                if message.error() is not None:
                    raise KafkaException(message.error())
                got.append((message.offset() or 0, message.value()))
            return len(got) >= count

        wait_until(take, lambda: f"{count} records, {len(got)} so far")
        consumer.close()
        assert got == [(e.offset, e.value) for e in consume_all(server, topic)]


def test_a_topic_that_is_made_anew_is_read_anew(kafka: KafkaOracle, proxy: EmbeddedReplica) -> None:
    server, topic = kafka.bootstrap_server, "made-anew"
    first = make_tiered_topic(kafka, topic, partitions=1, records=2500)
    wait_until(lambda: topic in topics_of(proxy), "the first topic")
    assert consume_all(proxy.bootstrap_servers, topic) == list(first.expected)
    first_id = topics_of(proxy)[topic]
    delete_topic(server, topic)
    wait_until(lambda: topic not in topics_of(proxy), "the end of the first topic")
    fill_tiered_topic(server, kafka.log_dir, topic, 1, 3500)
    wait_until(lambda: topics_of(proxy).get(topic) not in (None, first_id), "the second topic")
    assert consume_all(proxy.bootstrap_servers, topic) == consume_all(server, topic)


def topics_of(replica: EmbeddedReplica) -> dict[str, Any]:
    images = replica.node.services.metadata.image.topics_by_name
    return {name: image.topic_id for name, image in images.items()}


def test_a_bucket_of_another_cluster_and_a_taken_id_are_refused(
    kafka: KafkaOracle, kafka_tiered_topic: TieredTopic, tmp_path: Path
) -> None:
    layout = {"rsm.config.layout": "local-tiered-storage"}
    (tmp_path / "other").mkdir()
    server = kafka.bootstrap_server
    with pytest.raises(ConfigError, match="that of another cluster"):
        EmbeddedReplica(tmp_path / "s", tmp_path / "other", layout, upstream=server).start()
    with pytest.raises(ConfigError, match="has the id of the replica"):
        EmbeddedReplica(tmp_path / "t", kafka.remote_dir, {"node.id": "1"}, upstream=server).start()


@pytest.mark.slow
def test_history_is_served_while_the_cluster_is_away(kafka_tools: Path, tmp_path: Path) -> None:
    few = {"rlmm.config.remote.log.metadata.topic.num.partitions": "2"}
    with running_kafka(tmp_path / "kafka", {**EAGER_SETTINGS, **few}) as kafka:
        topic = make_tiered_topic(kafka, "away", partitions=1, records=2500)
        server = kafka.bootstrap_server
        with EmbeddedReplica(tmp_path / "scratch", kafka.remote_dir, upstream=server) as replica:
            kafka.kill()
            consumer = Consumer({"bootstrap.servers": replica.bootstrap_servers, "group.id": "x"})
            consumer.assign([TopicPartition("away", 0, 0)])
            tiered = [each for each in topic.expected if each.offset < topic.local_start_offsets[0]]
            got: list[int] = []
            while len(got) < len(tiered):
                message = consumer.poll(TIMEOUT_S)
                assert message is not None
                assert message.error() is None, message.error()
                got.append(message.offset() or 0)
            assert got == [each.offset for each in tiered]
            # It heals by itself.
            kafka.start()
            while len(got) < len(topic.expected):
                message = consumer.poll(TIMEOUT_S)
                assert message is not None
                if message.error() is None:
                    got.append(message.offset() or 0)
            assert got == [each.offset for each in topic.expected]
            consumer.close()


@pytest.fixture
def kafka_without_metadata_topic(kafka_tools: Path, tmp_path: Path) -> Iterator[KafkaOracle]:
    """Its broker is to make the topic with more replicas than there are brokers, and goes on
    trying."""
    prefix = "rlmm.config.remote.log.metadata.topic"
    topic = {f"{prefix}.replication.factor": "3", f"{prefix}.num.partitions": "2"}
    with running_kafka(tmp_path / "kafka", {**EAGER_SETTINGS, **topic}) as started:
        yield started


@pytest.mark.slow
def test_the_metadata_topic_of_a_new_cluster_is_waited_for(
    kafka_without_metadata_topic: KafkaOracle, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    server, bucket = kafka_without_metadata_topic.bootstrap_server, tmp_path / "bucket"
    bucket.mkdir()
    layout = {"rsm.config.layout": LOCAL_TIERED_STORAGE}
    not_at_all = {"rlmm.config.remote.log.metadata.initialization.retry.max.timeout.ms": "0"}
    with pytest.raises(ConfigError, match="no such metadata topic"):
        EmbeddedReplica(tmp_path / "s", bucket, {**layout, **not_at_all}, upstream=server).start()
    with ThreadPoolExecutor(1) as pool:
        given_up = EmbeddedReplica(tmp_path / "t", bucket, layout, upstream=server)
        start = pool.submit(given_up.start)
        wait_until(lambda: "has no metadata topic yet" in caplog.text, "the line of the log")
        given_up.node.give_up_start()
        with pytest.raises(RemoteStorageNotReadyError, match="given up"):
            start.result(TIMEOUT_S)
        caplog.clear()
        replica = EmbeddedReplica(tmp_path / "u", bucket, layout, upstream=server)
        start = pool.submit(replica.start)
        wait_until(lambda: "has no metadata topic yet" in caplog.text, "the line of the log")
        assert not start.done()
        create_topic(server, REMOTE_LOG_METADATA_TOPIC, 2, {})
        start.result(TIMEOUT_S)
    replica.stop()
    assert caplog.text.count("has no metadata topic yet") == 1


@pytest.mark.slow
def test_a_cluster_without_tiered_storage_is_refused_at_once(
    kafka_tools: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    off, bucket = {"remote.log.storage.system.enable": "false"}, tmp_path / "bucket"
    bucket.mkdir()
    with (
        running_kafka(tmp_path / "kafka", off) as kafka,
        pytest.raises(ConfigError, match="the cluster has no tiered storage"),
    ):
        EmbeddedReplica(tmp_path / "s", bucket, upstream=kafka.bootstrap_server).start()
    assert "has no metadata topic yet" not in caplog.text


def test_kcat_reads_all(kafka_tiered_topic: TieredTopic, proxy: EmbeddedReplica) -> None:
    if shutil.which("kcat") is None:
        pytest.skip("kcat is not installed: apt-get install kcat")
    command = [
        "kcat", "-C", "-b", proxy.bootstrap_servers, "-t", kafka_tiered_topic.name,
        "-o", "beginning", "-e", "-q", "-f", "%p %o\n",
    ]  # fmt: skip
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    places = [tuple(map(int, line.split())) for line in printed.splitlines()]
    assert sorted(places) == [(e.partition, e.offset) for e in kafka_tiered_topic.expected]


def test_aiokafka_reads_all_in_a_group(
    kafka_tiered_topic: TieredTopic, proxy: EmbeddedReplica
) -> None:
    """It does not follow a preferred read replica."""
    aiokafka = pytest.importorskip("aiokafka")

    async def places() -> list[tuple[int, int]]:
        consumer = aiokafka.AIOKafkaConsumer(
            kafka_tiered_topic.name,
            bootstrap_servers=proxy.bootstrap_servers,
            group_id="aiokafka",
            auto_offset_reset="earliest",
        )
        await consumer.start()
        found: list[tuple[int, int]] = []
        while len(found) < len(kafka_tiered_topic.expected):
            for records in (await consumer.getmany(timeout_ms=1000)).values():
                found += [(record.partition, record.offset) for record in records]
        await consumer.stop()
        return found

    assert sorted(asyncio.run(places())) == [
        (each.partition, each.offset) for each in kafka_tiered_topic.expected
    ]


def test_replicas_share_partitions_and_take_over(
    kafka: KafkaOracle, kafka_tiered_topic: TieredTopic, tmp_path: Path
) -> None:
    topic = "shared"
    create_topic(kafka.bootstrap_server, topic, 12, {"remote.storage.enable": "true"})
    ports = free_ports(2)
    ids = (1_000_001, 1_000_002)
    racks = dict(zip(ids, ("east", "west"), strict=True))
    peers = {
        n: Peer(NodeAddress("127.0.0.1", p), racks[n]) for n, p in zip(ids, ports, strict=True)
    }
    first, second = (
        EmbeddedReplica(
            tmp_path / str(node_id),
            kafka.remote_dir,
            {"node.id": str(node_id)},
            upstream=kafka.bootstrap_server,
            listener=f"PLAINTEXT://127.0.0.1:{port}",
            peers=peers,
        )
        for node_id, port in zip(ids, ports, strict=True)
    )

    def leaders(replica: EmbeddedReplica) -> list[int]:
        admin = AdminClient({"bootstrap.servers": replica.bootstrap_servers})
        partitions = admin.list_topics(topic, timeout=TIMEOUT_S).topics[topic].partitions
        return [partitions[number].leader for number in sorted(partitions)]

    with first, second:
        wait_until(lambda: set(leaders(first)) == set(leaders(second)) == set(ids), "both")
        assert leaders(first) == leaders(second)
        got = consume_all(first.bootstrap_servers, kafka_tiered_topic.name)
        assert got == list(kafka_tiered_topic.expected)
        # Whoever leads the partition, a consumer reads from the replica in its rack.
        for replica, rack in ((first, "east"), (second, "west")):
            others = second if replica is first else first
            before = remote_bytes(others)
            got = consume_all(first.bootstrap_servers, kafka_tiered_topic.name, rack=rack)
            assert got == list(kafka_tiered_topic.expected)
            assert remote_bytes(others) == before
        owned = [leader == ids[0] for leader in leaders(first)]
        second.stop()
        wait_until(lambda: set(leaders(first)) == {ids[0]}, "the replica that is left")
        assert any(owned)
        got = consume_all(first.bootstrap_servers, kafka_tiered_topic.name)
        assert got == list(kafka_tiered_topic.expected)
    delete_topic(kafka.bootstrap_server, topic)
