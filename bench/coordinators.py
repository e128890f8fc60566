"""What does it cost a group that its coordinator moves?

    killed     kills a broker that leads a group's partition of __consumer_offsets and the partition
               that the group reads, while a producer writes every 20 ms. The seconds last until the
               group has read and committed a record written after the kill: from the kill, and from
               the announcement of the new leader. A round has the medians of several kills, since a
               client that retries every second takes a second more or less by chance.
    loaded     elects a broker that follows a partition of __consumer_offsets with 10,000 groups and
               100,000 committed offsets: seconds from the request until it answers for a group, and
               the growth of its resident memory.

A side is a controller of Apache Kafka and three brokers of one kind. Rounds go A B A B; the other
side's cluster is stopped meanwhile, because six brokers do not fit two processors. The broker that
loads is started just before, so that its memory has nothing of an earlier load.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from bench.harness import Question, describe, keep, ratio_ranges, ratios, summarize
from isotherm.client.node_address import NodeAddress
from isotherm.client.node_connection import NodeConnection
from isotherm.errors import PeerDisconnectedError, PeerTimeoutError
from isotherm.protocol.api_keys import ApiKey, request_class
from isotherm.protocol.entities import entity_of
from oracle.cluster_members import IsothermMember, KafkaMember
from oracle.mixed_cluster import MixedCluster

ROUNDS = 3
KILLS, KILLS_QUICK = 5, 1
GROUPS = 10_000
OFFSETS_PER_GROUP = 10
FILLERS = 8
TOPIC, OFFSETS = "read", "__consumer_offsets"
LEADER, SUCCESSOR, OTHER = 1, 2, 3
KINDS: Mapping[str, Any] = {"isotherm": IsothermMember, "kafka": KafkaMember}
SETTINGS = {"offsets.topic.num.partitions": "1", "group.initial.rebalance.delay.ms": "0"}
PRODUCE_INTERVAL_S = 0.02
POLL_S = 0.002
GUARD_S = 240


class Writer(threading.Thread):
    """Writes the time into the topic repeatedly."""

    def __init__(self, servers: str) -> None:
        super().__init__(daemon=True)
        self.ends = threading.Event()
        self._producer = Producer(
            {"bootstrap.servers": servers, "linger.ms": 0, "retry.backoff.ms": 50, "log_level": 0}
        )

    def run(self) -> None:
        while not self.ends.wait(PRODUCE_INTERVAL_S):
            self._producer.produce(TOPIC, b"%d" % time.monotonic_ns(), partition=0)
            self._producer.poll(0)


class LeaderWatch(threading.Thread):
    """Notes when a broker first reports a new leader of the partition."""

    def __init__(self, servers: Sequence[str], old: int) -> None:
        super().__init__(daemon=True)
        self.seen_at: float | None = None
        self._connections = [connect(server) for server in servers]
        self._old = old

    def run(self) -> None:
        request = entity_of(
            request_class(ApiKey.METADATA, 9),
            {
                "topics": [{"name": OFFSETS}],
                "allow_auto_topic_creation": False,
                "include_cluster_authorized_operations": False,
                "include_topic_authorized_operations": False,
            },
        )
        while self.seen_at is None:
            for connection in self._connections:
                response = connection.send(request)
                leaders = {
                    partition.leader_id
                    for topic in response.topics
                    for partition in topic.partitions
                }
                if leaders and not leaders & {self._old, -1}:
                    self.seen_at = time.monotonic()
            time.sleep(0.005)


def connect(server: str) -> NodeConnection:
    host, _, port = server.rpartition(":")
    return NodeConnection(
        NodeAddress(host, int(port)),
        client_id="bench",
        connect_timeout_s=10,
        request_timeout_s=30,
        response_bytes_max=1 << 24,
    )


def create_topics(cluster: MixedCluster) -> None:
    cluster.create(TOPIC, *[[LEADER, SUCCESSOR, OTHER]] * OFFSETS_PER_GROUP)
    # A client that looks for a coordinator makes the brokers create the other topic.
    consumer = Consumer({"bootstrap.servers": cluster.servers, "group.id": "first", "log_level": 0})
    with contextlib.suppress(KafkaException):
        consumer.committed([TopicPartition(TOPIC, 0)], timeout=30)
    consumer.close()
    cluster.await_isr(OFFSETS, {LEADER, SUCCESSOR, OTHER})


def measure_kills(cluster: MixedCluster, kills: int) -> dict[str, float]:
    kills_measured = []
    for number in range(kills):
        kills_measured.append(measure_kill(cluster))
        figures = " ".join(f"{key}={value:.3f}" for key, value in kills_measured[-1].items())
        print(f"          kill {number} {figures}", file=sys.stderr, flush=True)
    return {
        key: statistics.median(measured[key] for measured in kills_measured)
        for key in kills_measured[0]
    }


def measure_kill(cluster: MixedCluster) -> dict[str, float]:
    for topic in (TOPIC, OFFSETS):
        cluster.move_leader(topic, 0, LEADER)
    writer = Writer(cluster.servers)
    writer.start()
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.servers,
            "group.id": "measured",
            "enable.auto.commit": False,
            "auto.offset.reset": "latest",
            "log_level": 0,
        }
    )
    consumer.subscribe([TOPIC])
    _read_and_commit(consumer, time.monotonic_ns())
    others = [m.bootstrap_server for n, m in cluster.members.items() if n != LEADER]
    watch = LeaderWatch(others, LEADER)
    watch.start()
    killed_at, after_ns = time.monotonic(), time.monotonic_ns()
    cluster.members[LEADER].kill()
    _read_and_commit(consumer, after_ns)
    ended_at = time.monotonic()
    watch.join()
    writer.ends.set()
    writer.join()
    consumer.close()
    assert watch.seen_at is not None
    cluster.members[LEADER].start()
    for topic in (TOPIC, OFFSETS):
        cluster.await_isr(topic, {LEADER, SUCCESSOR, OTHER})
    return {
        "killed_s": ended_at - killed_at,
        "after_election_s": ended_at - watch.seen_at,
    }


def _read_and_commit(consumer: Consumer, after_ns: int) -> None:
    """Return when a record written after that time is read and its offset committed."""
    deadline = time.monotonic() + GUARD_S
    while time.monotonic() < deadline:
        message = consumer.poll(0.1)
        if message is None or message.error() or int(message.value() or b"0") <= after_ns:
            continue
        try:
            consumer.commit(message, asynchronous=False)
        except KafkaException:
            continue
        return
    raise TimeoutError("the group does not go on")


def fill_groups(cluster: MixedCluster, groups: int) -> None:
    """Commit the offsets of groups, one request each."""
    cluster.move_leader(OFFSETS, 0, LEADER)
    server = cluster.members[LEADER].bootstrap_server
    with ThreadPoolExecutor(FILLERS) as executor:
        shares = [range(first, groups, FILLERS) for first in range(FILLERS)]
        for filled in [executor.submit(_fill, server, share) for share in shares]:
            filled.result()


def _fill(server: str, numbers: range) -> None:
    connection = connect(server)
    for number in numbers:
        request = entity_of(
            request_class(ApiKey.OFFSET_COMMIT, 8),
            {
                "group_id": _group(number),
                "generation_id_or_member_epoch": -1,
                "member_id": "",
                "group_instance_id": None,
                "topics": [
                    {
                        "name": TOPIC,
                        "partitions": [
                            {
                                "partition_index": index,
                                "committed_offset": number + index,
                                "committed_leader_epoch": -1,
                                "committed_metadata": "",
                            }
                            for index in range(OFFSETS_PER_GROUP)
                        ],
                    }
                ],
            },
        )
        deadline = time.monotonic() + GUARD_S
        while True:
            (topic,) = connection.send(request).topics
            if not any(partition.error_code for partition in topic.partitions):
                break
            # The coordinator may be loading still.
            assert time.monotonic() < deadline, topic.partitions[0].error_code
    connection.close()


def _group(number: int) -> str:
    return f"group-{number:05d}"


def measure_load(cluster: MixedCluster, groups: int) -> dict[str, float]:
    cluster.move_leader(OFFSETS, 0, LEADER)
    successor = cluster.members[SUCCESSOR]
    successor.kill()
    successor.start()
    cluster.await_isr(OFFSETS, {LEADER, SUCCESSOR, OTHER})
    process = psutil.Process(successor.pid)
    connection = connect(successor.bootstrap_server)
    last = _group(groups - 1)
    _committed(connection, last)  # the APIs are warm
    resident_before = process.memory_info().rss
    cpu_before = sum(process.cpu_times()[:2])
    began = time.monotonic()
    mover = threading.Thread(target=cluster.move_leader, args=(OFFSETS, 0, SUCCESSOR))
    mover.start()
    deadline = began + GUARD_S
    while _committed(connection, last) != groups - 1 + OFFSETS_PER_GROUP - 1:
        assert time.monotonic() < deadline, "the coordinator does not load"
        time.sleep(POLL_S)
    loaded_s = time.monotonic() - began
    cpu_s = sum(process.cpu_times()[:2]) - cpu_before
    mover.join()
    resident = process.memory_info().rss
    connection.close()
    return {
        "loaded_s": loaded_s,
        "loaded_cpu_s": cpu_s,
        "loaded_mb": (resident - resident_before) / 1e6,
        "resident_mb": resident / 1e6,
    }


def _committed(connection: NodeConnection, group: str) -> int | None:
    """The group's last offset, None while the broker does not coordinate it."""
    request = entity_of(
        request_class(ApiKey.OFFSET_FETCH, 8),
        {
            "groups": [
                {
                    "group_id": group,
                    "topics": [{"name": TOPIC, "partition_indexes": (OFFSETS_PER_GROUP - 1,)}],
                }
            ],
            "require_stable": False,
        },
    )
    try:
        (group_offsets,) = connection.send(request).groups
    except (PeerDisconnectedError, PeerTimeoutError):
        return None
    if group_offsets.error_code:
        return None
    return int(group_offsets.topics[0].partitions[0].committed_offset)


@contextlib.contextmanager
def running(name: str, root: Path) -> Iterator[MixedCluster]:
    kinds = dict.fromkeys((LEADER, SUCCESSOR, OTHER), KINDS[name])
    with MixedCluster(root, kinds, SETTINGS) as cluster:
        create_topics(cluster)
        yield cluster


def run(names: Sequence[str], rounds: int, groups: int, kills: int) -> list[dict[str, Any]]:
    """Run the rounds.

    Each round of a side has a new cluster, so nothing stays warm between rounds.
    """
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for number in range(rounds):
        for name in names:
            with (
                tempfile.TemporaryDirectory(prefix="isotherm-bench-") as directory,
                running(name, Path(directory) / "cluster") as cluster,
            ):
                metrics = measure_kills(cluster, kills)
                fill_groups(cluster, groups)
                metrics |= measure_load(cluster, groups)
            figures = " ".join(f"{key}={value:.3f}" for key, value in metrics.items())
            print(f"{name:<9} {number} {figures}", file=sys.stderr, flush=True)
            measured[name].append(metrics)
    sides = {name: summarize(runs) for name, runs in measured.items()}
    case = f"{groups:,} groups, {groups * OFFSETS_PER_GROUP:,} offsets"
    return [
        {
            "case": case,
            "sides": sides,
            "ratios": ratios(sides),
            "ratio_ranges": ratio_ranges(sides),
        }
    ]


QUESTION = Question(
    "coordinators", "What does it cost a group that its coordinator moves?", lambda scale: ()
)


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION.text)
    parser.add_argument(
        "--quick", action="store_true", help="an eighth of the data, one round, one kill"
    )
    parser.add_argument("--rounds", type=int, help=f"default {ROUNDS}")
    parser.add_argument("--only", choices=sorted(KINDS), help="measure one side alone")
    options = parser.parse_args()
    names = [options.only] if options.only else list(KINDS)
    rounds = options.rounds or (1 if options.quick else ROUNDS)
    document = describe(QUESTION, rounds)
    groups = GROUPS // 8 if options.quick else GROUPS
    document["coordinators"] = run(names, rounds, groups, KILLS_QUICK if options.quick else KILLS)
    keep(document, is_whole=not (options.quick or options.only))


if __name__ == "__main__":
    main()
