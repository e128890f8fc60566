"""A cluster of one controller and three brokers: Isotherm, Apache Kafka, Isotherm.

Every acknowledged record is read back, no matter which kind of broker led, copied or was killed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import ConfigResource

from isotherm.client.node_address import NodeAddress
from isotherm.client.node_connection import NodeConnection
from isotherm.protocol.api_keys import ApiKey, request_class
from isotherm.protocol.entities import entity_of
from isotherm.remote.metadata.topic.kafka_topic import KafkaMetadataTopic
from isotherm.remote.metadata.wire.events import iterate_records
from isotherm.remote.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentState
from isotherm.segment.leader_epoch_checkpoint import read_leader_epoch_checkpoint
from isotherm.types import REMOTE_LOG_METADATA_AUDIT_TOPIC, REMOTE_LOG_METADATA_TOPIC
from oracle.cluster_members import TIER_SETTINGS, IsothermMember, KafkaMember
from oracle.kafka import run_tool
from oracle.mixed_cluster import ISOTHERM, KAFKA, OTHER_ISOTHERM, MixedCluster
from oracle.topics import wait_until
from tests.support.cluster.quiet_logs import NewLines
from tests.support.schedules.oracle import FoldedTopic

pytestmark = [pytest.mark.oracle, pytest.mark.slow]

TOPICS = "org.apache.kafka.tools.TopicCommand"
REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
CLUSTER = "org.apache.kafka.tools.ClusterTool"
ELECT = "org.apache.kafka.tools.LeaderElectionCommand"
TIMEOUT_S = 300
VALUE = b"x" * 200


class Cluster(MixedCluster):
    def reassign(self, directory: Path, topic: str, replicas: list[int]) -> None:
        """Reassign a partition with Kafka's own tool, and elect the first of the replicas."""
        partition = {"topic": topic, "partition": 0}
        plan, which = directory / "plan.json", directory / "which.json"
        moved = {"version": 1, "partitions": [{**partition, "replicas": replicas}]}
        plan.write_text(json.dumps(moved))
        which.write_text(json.dumps({"partitions": [partition]}))
        server = self.members[ISOTHERM].bootstrap_server
        run_tool(REASSIGN, "--bootstrap-server", server, "--execute",
                 "--reassignment-json-file", plan)  # fmt: skip
        self.await_isr(topic, set(replicas))
        if self.leader(topic) != replicas[0]:
            run_tool(ELECT, "--bootstrap-server", server, "--election-type", "preferred",
                     "--path-to-json-file", which)  # fmt: skip
        self.await_leader(topic, replicas[0])

    def directory(self, node_id: int, topic: str) -> Path:
        member = self.members[node_id]
        data = member.data_dir if isinstance(member, IsothermMember) else member.log_dir
        return data / f"{topic}-0"

    def copied(self, topic: str) -> list[Path]:
        return sorted(self.bucket.glob(f"kafka-tiered-storage/{topic}-0-*/*.log"))


@pytest.fixture(scope="module")
def cluster(kafka_tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def isotherms(kafka_tools: Path, tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster", dict.fromkeys((1, 2, 3), IsothermMember)) as cluster:
        yield cluster


def produce(cluster: Cluster, topic: str, start: int, count: int) -> None:
    failed: list[KafkaError] = []
    producer = Producer(
        {
            "bootstrap.servers": cluster.servers,
            "acks": "all",
            "enable.idempotence": True,
            "log_level": 0,
        }
    )
    for number in range(start, start + count):
        producer.produce(
            topic,
            b"%09d" % number + VALUE,
            on_delivery=lambda error, _: failed.append(error) if error else None,
        )
        producer.poll(0)
    assert producer.flush(TIMEOUT_S) == 0
    assert failed == []


def read(cluster: Cluster, topic: str, count: int, start: int = 0) -> list[int]:
    """The numbers of all records from offset `start` on, in the order of their offsets."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.servers,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, 0, start)])
    found: list[int] = []

    def is_read() -> bool:
        for message in consumer.consume(5000, 1.0):
            error = message.error()
            if error is None:
                found.append(int((message.value() or b"")[:9]))
            elif error.code() == KafkaError._PARTITION_EOF and len(found) >= count:
                return True
        return False

    wait_until(is_read, f"{count} records of {topic}", TIMEOUT_S)
    consumer.close()
    return found


@pytest.mark.parametrize("leader", [ISOTHERM, KAFKA])
def test_logs_of_replicas_are_the_same_bytes(cluster: Cluster, leader: int) -> None:
    topic = f"same-bytes-{leader}"
    others = [node_id for node_id in cluster.members if node_id != leader]
    cluster.create(topic, [leader, *others])
    produce(cluster, topic, 0, 5_000)
    names = [path.name for path in sorted(cluster.directory(leader, topic).glob("*.log"))]
    assert names == ["00000000000000000000.log"]
    expected = (cluster.directory(leader, topic) / names[0]).read_bytes()
    assert len(expected) > 5_000 * len(VALUE)

    for other in others:
        path = cluster.directory(other, topic) / names[0]
        wait_until(lambda path=path: path.read_bytes() == expected, f"equal {path}", TIMEOUT_S)
    assert read(cluster, topic, 5_000) == list(range(5_000))


@pytest.mark.parametrize("leader", [ISOTHERM, pytest.param(KAFKA, marks=pytest.mark.nightly)])
def test_nothing_acknowledged_is_lost_with_a_killed_leader(cluster: Cluster, leader: int) -> None:
    topic = f"killed-{leader}"
    others = [node_id for node_id in cluster.members if node_id != leader]
    logs = NewLines(cluster.members.values())
    cluster.create(topic, [leader, *others])
    produce(cluster, topic, 0, 2_000)
    assert cluster.leader(topic) == leader
    cluster.members[leader].kill()
    try:
        produce(cluster, topic, 2_000, 2_000)
        assert cluster.leader(topic) in others
    finally:
        cluster.members[leader].start()
    cluster.await_isr(topic, set(cluster.members))
    assert read(cluster, topic, 4_000) == list(range(4_000))
    assert logs.for_operators() == []


def test_each_kind_serves_the_history_that_the_other_copied(
    cluster: Cluster, tmp_path: Path
) -> None:
    topic = "history"
    cluster.create(
        topic,
        [ISOTHERM, KAFKA, OTHER_ISOTHERM],
        **{
            "remote.storage.enable": "true",
            "segment.bytes": "1048576",
            "local.retention.bytes": "1",
            "file.delete.delay.ms": "100",
        },
    )
    produce(cluster, topic, 0, 20_000)
    wait_until(lambda: len(cluster.copied(topic)) >= 3, "segments that Isotherm copied", TIMEOUT_S)
    await_local_start(cluster, ISOTHERM, topic)

    cluster.reassign(tmp_path, topic, [KAFKA, ISOTHERM, OTHER_ISOTHERM])
    await_local_start(cluster, KAFKA, topic)
    assert read(cluster, topic, 20_000) == list(range(20_000))
    copied_before = len(cluster.copied(topic))
    produce(cluster, topic, 20_000, 20_000)
    wait_until(
        lambda: len(cluster.copied(topic)) >= copied_before + 3,
        "segments that Kafka copied",
        TIMEOUT_S,
    )
    await_local_start(cluster, KAFKA, topic)

    cluster.reassign(tmp_path, topic, [OTHER_ISOTHERM, KAFKA, ISOTHERM])
    await_local_start(cluster, OTHER_ISOTHERM, topic)
    assert read(cluster, topic, 40_000) == list(range(40_000))


def await_local_start(cluster: Cluster, node_id: int, topic: str) -> None:
    """Wait until the first segments are gone from a broker's disk, so that it reads them from
    the bucket.
    """
    first = cluster.directory(node_id, topic) / "00000000000000000000.log"
    wait_until(lambda: not first.exists(), f"{first} to be gone", TIMEOUT_S)


def test_a_new_replica_takes_history_from_the_bucket(cluster: Cluster, tmp_path: Path) -> None:
    topic = "grown"
    cluster.create(
        topic,
        [KAFKA, ISOTHERM],
        **{
            "remote.storage.enable": "true",
            "segment.bytes": "1048576",
            "local.retention.bytes": "1",
            "file.delete.delay.ms": "100",
            "min.insync.replicas": "1",
        },
    )
    produce(cluster, topic, 0, 20_000)
    wait_until(lambda: len(cluster.copied(topic)) >= 3, "copied segments", TIMEOUT_S)
    await_local_start(cluster, KAFKA, topic)

    cluster.reassign(tmp_path, topic, [OTHER_ISOTHERM, KAFKA])
    names = sorted(path.name for path in cluster.directory(OTHER_ISOTHERM, topic).glob("*.log"))
    assert names[0] > "00000000000000000000.log"
    assert read(cluster, topic, 20_000) == list(range(20_000))


TIERED = {
    "remote.storage.enable": "true",
    "segment.bytes": "1048576",
    "local.retention.bytes": "1",
    "file.delete.delay.ms": "100",
}


def write_tiered(cluster: Cluster, topic: str, leaders: list[int]) -> int:
    """Write a tiered topic with an epoch of each of `leaders`; return the number of records."""
    cluster.create(topic, [leaders[0], *sorted({*cluster.members} - {leaders[0]})], **TIERED)
    count = 0
    for leader in leaders:
        cluster.move_leader(topic, 0, leader)
        produce(cluster, topic, count, 8_000)
        count += 8_000
    directory = cluster.directory(ISOTHERM, topic)
    wait_until(
        lambda: first_local(directory) > 8_000, "epochs that are only in the bucket", TIMEOUT_S
    )
    return count


def first_local(directory: Path) -> int:
    return min(int(path.stem) for path in directory.glob("*.log"))


@pytest.mark.parametrize(
    "damaged", [pytest.param(None, marks=pytest.mark.nightly), b"0\n7\nnot epochs"]
)
def test_member_restores_leader_epochs_that_are_lost(
    cluster: Cluster, damaged: bytes | None
) -> None:
    topic = f"epochs-{'lost' if damaged is None else 'unreadable'}"
    count = write_tiered(cluster, topic, [ISOTHERM, KAFKA, OTHER_ISOTHERM])
    member = cluster.members[ISOTHERM]
    member.stop()
    directory = cluster.directory(ISOTHERM, topic)
    path = directory / "leader-epoch-checkpoint"
    before = read_leader_epoch_checkpoint(path.read_bytes())
    assert len(before) == 3
    assert first_local(directory) > before[1].start_offset
    path.unlink() if damaged is None else path.write_bytes(damaged)
    produce(cluster, topic, count, 1_000)
    member.start()

    cluster.await_isr(topic, set(cluster.members))
    after = read_leader_epoch_checkpoint(path.read_bytes())
    assert after[: len(before)] == before
    assert not list(directory.parent.glob(f"{topic}-0.*-stray"))
    cluster.move_leader(topic, 0, ISOTHERM)
    produce(cluster, topic, count + 1_000, 1_000)
    assert read(cluster, topic, count + 2_000) == list(range(count + 2_000))


@pytest.mark.nightly
def test_member_without_leader_epochs_begins_anew_behind_what_the_tier_has_dropped(
    cluster: Cluster,
) -> None:
    topic = "epochs-dropped"
    count = write_tiered(cluster, topic, [ISOTHERM, OTHER_ISOTHERM])
    member = cluster.members[ISOTHERM]
    member.stop()
    directory = cluster.directory(ISOTHERM, topic)
    (directory / "leader-epoch-checkpoint").unlink()
    # Each ends below `start`: a segment has fewer than 6,000 records.
    copied_then = cluster.copied(topic)
    produce(cluster, topic, count, 12_000)
    start = count + 6_000
    await_local_start(cluster, OTHER_ISOTHERM, topic)
    dropped = cluster.admin.delete_records([TopicPartition(topic, 0, start)])
    (deleted,) = dropped.values()
    assert deleted.result(TIMEOUT_S).low_watermark == start
    wait_until(
        lambda: not set(copied_then) & set(cluster.copied(topic)),
        "the remote segments to be dropped",
        TIMEOUT_S,
    )
    member.start()

    cluster.await_isr(topic, set(cluster.members))
    assert len(list(directory.parent.glob(f"{topic}-0.*-stray"))) == 1
    cluster.move_leader(topic, 0, ISOTHERM)
    produce(cluster, topic, count + 12_000, 1_000)
    found = read(cluster, topic, count + 13_000 - start, start)
    assert found == list(range(start, count + 13_000))


def test_brokers_of_both_kinds_describe_the_cluster_alike(cluster: Cluster) -> None:
    topic = "described"
    cluster.create(topic, [OTHER_ISOTHERM, KAFKA, ISOTHERM])
    texts = [
        run_tool(
            TOPICS, "--bootstrap-server", member.bootstrap_server, "--describe", "--topic", topic
        )
        for member in cluster.members.values()
    ]
    assert re.search(r"Partition: 0\s+Leader: 3\s+Replicas: 3,2,1\s+Isr: 3,2,1", texts[0])
    # Kafka's broker also returns settings of the whole cluster; the rest is the same.
    assert len({re.sub(r"Configs: .*", "", text) for text in texts}) == 1, texts


def shown_by(server: str) -> tuple[object, object, object]:
    """API versions, supported and finalized features, as a client gets them."""
    host, _, port = server.partition(":")
    connection = NodeConnection(
        NodeAddress(host, int(port)),
        client_id="test",
        connect_timeout_s=TIMEOUT_S,
        request_timeout_s=TIMEOUT_S,
        response_bytes_max=1 << 20,
    )
    asking = {"client_software_name": "test", "client_software_version": "1"}
    answer = connection.send(entity_of(request_class(ApiKey.API_VERSIONS, 4), asking))
    connection.close()
    return (
        {key.api_key: (key.min_version, key.max_version) for key in answer.api_keys},
        {
            feature.name: (feature.min_version, feature.max_version)
            for feature in answer.supported_features
        },
        {feature.name: feature.max_version_level for feature in answer.finalized_features},
    )


def test_brokers_of_both_kinds_show_the_same_versions_and_features(cluster: Cluster) -> None:
    ours, theirs = (shown_by(cluster.members[each].bootstrap_server) for each in (ISOTHERM, KAFKA))
    assert ours == theirs


def cleanup_policy(cluster: Cluster, topic: str) -> str:
    """The cleanup policy of a topic that the brokers create by themselves. Waits for the topic."""
    wait_until(lambda: topic in cluster.admin.list_topics(timeout=300).topics, topic, TIMEOUT_S)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    (found,) = cluster.admin.describe_configs([resource]).values()
    return str(found.result(TIMEOUT_S)["cleanup.policy"].value)


def test_brokers_of_another_kind_keep_the_metadata_topic_as_kafka_has_it(cluster: Cluster) -> None:
    assert cleanup_policy(cluster, REMOTE_LOG_METADATA_TOPIC) == "delete"


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_isotherm_brokers_alone_keep_their_metadata_topic_bounded(isotherms: Cluster) -> None:
    """Leaders are killed while segments are copied; the compacted topic and the audit topic must
    agree.
    """
    topics = ["bounded-1", "bounded-2", "bounded-3"]
    for number, topic in enumerate(topics):
        isotherms.create(
            topic,
            [(number + turn) % 3 + 1 for turn in range(3)],
            **{
                "remote.storage.enable": "true",
                "segment.bytes": "1048576",
                "local.retention.bytes": "1",
                "file.delete.delay.ms": "100",
            },
        )
    assert cleanup_policy(isotherms, REMOTE_LOG_METADATA_TOPIC) == "compact"
    assert cleanup_policy(isotherms, REMOTE_LOG_METADATA_AUDIT_TOPIC) == "delete"
    count = 0
    for node_id, member in isotherms.members.items():
        for topic in topics:
            produce(isotherms, topic, count, 6_000)
        wait_until(lambda: isotherms.copied(topics[0]) != [], "a copied segment", TIMEOUT_S)
        member.kill()
        for topic in topics:
            produce(isotherms, topic, count + 6_000, 2_000)
        member.start()
        count += 8_000
        for topic in topics:
            isotherms.await_isr(topic, set(isotherms.members))
        assert node_id in isotherms.members
    for topic in topics:
        await_local_start(isotherms, isotherms.leader(topic), topic)
        assert read(isotherms, topic, count) == list(range(count))
    wait_until(lambda: not history_differs(isotherms), "the history to be applied", TIMEOUT_S)
    states = folded_states(isotherms, REMOTE_LOG_METADATA_TOPIC)
    finished = [
        segment
        for segment, state in states.items()
        if state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
    ]
    assert {segment.topic_id_partition.topic for segment in finished} == set(topics)
    for member in isotherms.members.values():
        assert isinstance(member, IsothermMember)
        assert "Traceback" not in member.log_text


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_kafka_broker_that_joins_keeps_the_bounded_metadata_topic_as_it_is(
    isotherms: Cluster, tmp_path: Path
) -> None:
    """While it is registered no segment is copied, history is read, and nothing is lost."""
    isotherms.create(
        "tiered",
        [1, 2, 3],
        **{
            "remote.storage.enable": "true",
            "segment.bytes": "1048576",
            "local.retention.bytes": "1",
            "file.delete.delay.ms": "100",
        },
    )
    produce(isotherms, "tiered", 0, 12_000)
    await_local_start(isotherms, isotherms.leader("tiered"), "tiered")
    joined = KafkaMember(
        tmp_path / "broker-4",
        isotherms.controller,
        4,
        isotherms.bucket,
        {**TIER_SETTINGS, "remote.log.storage.system.enable": "false"},
    )
    try:
        joined.start()
        refusal = "the compacted metadata topic is not written to while registered brokers do not"
        leader = isotherms.members[isotherms.leader("tiered")]
        # The leader has a segment to copy, and finds that it must not.
        produce(isotherms, "tiered", 12_000, 6_000)
        wait_until(lambda: f"{refusal} support it brokers=4" in leader.log_text,
                 "the broker to be named", TIMEOUT_S)  # fmt: skip
        ends = metadata_ends(isotherms)
        produce(isotherms, "tiered", 18_000, 12_000)
        assert read(isotherms, "tiered", 30_000) == list(range(30_000))
        assert metadata_ends(isotherms) == ends
    finally:
        joined.kill()
    server = isotherms.members[1].bootstrap_server
    run_tool(CLUSTER, "unregister", "--bootstrap-server", server, "--id", "4")
    wait_until(lambda: metadata_ends(isotherms) != ends, "segments to be copied", TIMEOUT_S)
    assert read(isotherms, "tiered", 30_000) == list(range(30_000))
    wait_until(lambda: not history_differs(isotherms), "the history to be applied", TIMEOUT_S)


def metadata_ends(cluster: Cluster) -> dict[str, list[int]]:
    """The end of each partition of the two metadata topics."""
    found = {}
    for name in (REMOTE_LOG_METADATA_TOPIC, REMOTE_LOG_METADATA_AUDIT_TOPIC):
        topic = KafkaMetadataTopic({"bootstrap.servers": cluster.servers}, topic=name)
        found[name] = [topic.offsets(number)[1] for number in range(topic.partition_count)]
        topic.close()
    return found


def history_differs(cluster: Cluster) -> bool:
    """Whether the two topics fold to different states, although both are being written to."""
    return folded_states(cluster, REMOTE_LOG_METADATA_AUDIT_TOPIC) != folded_states(
        cluster, REMOTE_LOG_METADATA_TOPIC
    )


def folded_states(cluster: Cluster, name: str) -> dict[RemoteLogSegmentId, RemoteLogSegmentState]:
    topic = KafkaMetadataTopic({"bootstrap.servers": cluster.servers, "log_level": 0}, topic=name)
    states = {}
    for number in range(topic.partition_count):
        folded, records = FoldedTopic(), list(iterate_records(topic, number))
        if name == REMOTE_LOG_METADATA_AUDIT_TOPIC:
            for record in records:
                folded.fold_audited(record)
        else:
            assert all(record.key is not None for record in records)
            folded.fold(records)
        states |= {segment: each.state for segment, each in folded.segments.items()}
    topic.close()
    return states
