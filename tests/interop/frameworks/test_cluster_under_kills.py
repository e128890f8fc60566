"""Kafka Streams with exactly_once_v2, and groups of three clients that read its output, on a mixed
cluster with brokers killed in turn: each kill moves coordinators from one kind of broker to the
other.

COORDINATORS_SOAK_S is the duration of the input, 20 minutes by default.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from oracle.jars import OracleUnavailableError
from oracle.java_program import JavaProgram, class_path
from oracle.mixed_cluster import ISOTHERM, KAFKA, OTHER_ISOTHERM, MixedCluster
from oracle.topics import wait_until
from suites.building import run_step
from suites.go_modules import module_source
from suites.results import SuiteUnavailableError
from tests.support.conditions import go_on_for

FOLDER = Path(__file__).parent
GO_READER = FOLDER.parent / "franz_go" / "reader"
DURATION_S = float(os.environ.get("COORDINATORS_SOAK_S", "1200"))
RECORDS_PER_S = 50
KEYS = 200
PAUSE_S = 10  # of the feed, with all brokers up, after each start
GUARD_S = 600
MEMBERS = 2  # of each group
TOPICS = ("input", "output")
PARTITIONS = 2
REPLICAS = [[ISOTHERM, KAFKA, OTHER_ISOTHERM], [KAFKA, OTHER_ISOTHERM, ISOTHERM]]

pytestmark = [pytest.mark.oracle, pytest.mark.soak, pytest.mark.timeout(int(DURATION_S) + 1800)]

Records = dict[tuple[int, int], tuple[str, str]]
"""Key and value of each record by partition and offset, in their order."""


class GroupProcess:
    """A group member that writes the records that it reads to a file; see GroupReader.java."""

    def __init__(self, command: list[str], path: Path) -> None:
        self._path = path
        self._log = path.with_suffix(".log").open("ab")
        self._process = subprocess.Popen(
            [*command, str(path)], stdin=subprocess.PIPE, stdout=self._log, stderr=self._log
        )

    def lines(self) -> list[tuple[int, int]]:
        if not self._path.exists():
            return []
        text = self._path.read_text()
        whole = text[: text.rfind("\n") + 1]
        return [(int(first), int(second)) for first, second in map(str.split, whole.splitlines())]

    def require_running(self) -> None:
        assert self._process.poll() is None, self._path.with_suffix(".log").read_text()[-3000:]

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(300)
        finally:
            self._process.kill()
            self._process.wait()
            self._log.close()


@pytest.fixture
def go_reader(tmp_path: Path) -> Path:
    try:
        module_source(GO_READER)
    except SuiteUnavailableError as error:
        pytest.skip(str(error))
    binary = tmp_path / "reader"
    run_step(["go", "build", "-o", str(binary), "."], GO_READER)
    return binary


@pytest.fixture
def java_classes() -> str:
    sources = [FOLDER / "StreamsCount.java", FOLDER / "GroupReader.java"]
    try:
        return class_path(FOLDER / "kafka.xml", sources)
    except OracleUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture
def cluster(kafka_tools: Path, tmp_path: Path) -> Iterator[MixedCluster]:
    # Streams creates its topics with the brokers' defaults, which are the controllers'.
    defaults = {"default.replication.factor": "3", "min.insync.replicas": "2"}
    with MixedCluster(tmp_path, controller_settings=defaults) as cluster:
        yield cluster


class Feed(threading.Thread):
    """Writes numbers, each once, at RECORDS_PER_S until `ends` is set."""

    def __init__(self, cluster: MixedCluster) -> None:
        super().__init__()
        self.failed: list[KafkaError] = []
        self.count = 0
        self.ends = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": cluster.servers,
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
                "delivery.timeout.ms": 600_000,
                "log_level": 0,
            }
        )

    def run(self) -> None:
        while not self.ends.wait(0.1):
            for _ in range(RECORDS_PER_S // 10):
                self._producer.produce(
                    "input",
                    b"%d" % self.count,
                    b"%d" % (self.count % KEYS),
                    on_delivery=lambda error, _: self.failed.append(error) if error else None,
                )
                self.count += 1
            self._producer.poll(0)
        assert self._producer.flush(GUARD_S) == 0


class CommittedOffsets(threading.Thread):
    """Checks repeatedly that the groups' offsets in "output" never go back."""

    def __init__(self, cluster: MixedCluster, groups: list[str]) -> None:
        super().__init__()
        self.went_back: list[str] = []
        self.looks = 0
        self.ends = threading.Event()
        self.newest = dict.fromkeys(groups, [-1] * PARTITIONS)
        self._servers = cluster.servers

    def run(self) -> None:
        while not self.ends.wait(0.5):
            for group in self.newest:
                self._look(group)

    def _look(self, group: str) -> None:
        found = committed(self._servers, group)
        if found is None:
            return
        self.looks += 1
        before = self.newest[group]
        if any(new < old for new, old in zip(found, before, strict=True)):
            self.went_back.append(f"{group}: {found} after {before}")
        self.newest[group] = found


def committed(servers: str, group: str) -> list[int] | None:
    """The offset in each partition, -1 without one; None while no coordinator answers."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group, "log_level": 0})
    asked = [TopicPartition("output", index) for index in range(PARTITIONS)]
    try:
        return [max(-1, each.offset) for each in consumer.committed(asked, timeout=60)]
    except KafkaException:
        return None
    finally:
        consumer.close()


def read_all(cluster: MixedCluster, topic: str) -> Records:
    """All records of committed transactions."""
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.servers,
            "group.id": "unused",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
    found: Records = {}
    ended: set[int] = set()

    def is_read() -> bool:
        for message in consumer.consume(5000, 1.0):
            error, partition = message.error(), message.partition() or 0
            if error is None:
                ended.discard(partition)
                key, value = message.key() or b"", message.value() or b""
                found[partition, message.offset() or 0] = (key.decode(), value.decode())
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(partition)
        return len(ended) == PARTITIONS

    wait_until(is_read, f"the ends of {topic}", GUARD_S)
    consumer.close()
    return found


def by_key(records: Records) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for key, value in records.values():
        found[key].append(value)
    return found


def kill_in_turn(cluster: MixedCluster, look: Callable[[], None]) -> int:
    """Repeatedly kill a broker, start it again and wait until it has caught up; return the
    number of kills.
    """
    ends_at = time.monotonic() + DURATION_S
    kills = 0
    while time.monotonic() < ends_at:
        for member in cluster.members.values():
            member.kill()
            kills += 1
            go_on_for(PAUSE_S)  # with two
            member.start()
            for topic in TOPICS:
                for index in range(PARTITIONS):
                    cluster.await_isr(topic, set(cluster.members), index)
            go_on_for(PAUSE_S)
            look()
            print(f"kills={kills} left_s={ends_at - time.monotonic():.0f}", flush=True)
            if time.monotonic() >= ends_at:
                break
    return kills


@dataclass
class Clients:
    """All clients that run while the cluster loses brokers. `stop` ends those that still run."""

    cluster: MixedCluster
    folder: Path
    stack: ExitStack
    readers: dict[str, list[GroupProcess]] = field(default_factory=dict)

    def start(self, java_classes: str, go_reader: Path) -> None:
        servers = self.cluster.servers
        java = ["java", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx128m"]
        programs = {
            "java": [*java, "-cp", java_classes, "GroupReader"],
            "librdkafka": [sys.executable, str(FOLDER / "group_reader.py")],
        }
        commands = {
            f"{name}-{protocol}": [*program, servers, "output", f"{name}-{protocol}", protocol]
            for name, program in programs.items()
            for protocol in ("classic", "consumer")
        }
        commands["franz-go"] = [str(go_reader), servers, "output", "franz-go"]
        self.streams = JavaProgram(
            java_classes,
            "StreamsCount",
            servers,
            str(self.folder / "state"),
            log_path=self.folder / "StreamsCount.log",
        )
        self.stack.callback(self.streams.kill)
        for group, command in commands.items():
            self.readers[group] = []
            for number in range(MEMBERS):
                reader = GroupProcess(command, self.folder / f"{group}-{number}.txt")
                self.stack.callback(reader.stop)
                self.readers[group].append(reader)
        self.feed, self.offsets = Feed(self.cluster), CommittedOffsets(self.cluster, [*commands])
        for thread in (self.feed, self.offsets):
            thread.start()
            self.stack.callback(thread.join)
            self.stack.callback(thread.ends.set)

    def look(self) -> None:
        self.streams.require_running()
        for members in self.readers.values():
            for member in members:
                member.require_running()
        assert not self.feed.failed, self.feed.failed
        assert not self.offsets.went_back, self.offsets.went_back

    def read_by(self, group: str) -> Counter[tuple[int, int]]:
        """The number of reads of each partition and offset."""
        return Counter(place for each in self.readers[group] for place in each.lines())

    def end_feed(self) -> Records:
        """End the input; return the output of Streams once it is complete."""
        self.feed.ends.set()
        self.feed.join()
        wait_until(
            lambda: len(read_all(self.cluster, "output")) >= self.feed.count, "output", GUARD_S
        )
        self.streams.end_input(120)
        return read_all(self.cluster, "output")

    def await_groups(self, written: Records) -> None:
        """Return when each group has read and committed all these records."""
        last = [max(o for p, o in written if p == index) for index in range(PARTITIONS)]

        def has_ended(group: str) -> bool:
            found = committed(self.cluster.servers, group) or [-1] * PARTITIONS
            is_committed = all(o > end for o, end in zip(found, last, strict=True))
            return is_committed and self.read_by(group).keys() >= written.keys()

        for group in self.readers:
            wait_until(lambda group=group: has_ended(group), f"the end of {group}", GUARD_S)  # type: ignore[misc]


def test_streams_and_groups_are_exact_while_coordinators_move(
    cluster: MixedCluster, java_classes: str, go_reader: Path, tmp_path: Path
) -> None:
    for topic in TOPICS:
        cluster.create(topic, *REPLICAS)
    with ExitStack() as stack:
        clients = Clients(cluster, tmp_path, stack)
        clients.start(java_classes, go_reader)
        kills = kill_in_turn(cluster, clients.look)
        written = clients.end_feed()
        clients.await_groups(written)
    read = {group: clients.read_by(group) for group in clients.readers}
    count = clients.feed.count
    figures = {
        "records": count,
        "kills": kills,
        "looks": clients.offsets.looks,
        "read again": {group: each.total() - len(each) for group, each in read.items()},
    }
    print(json.dumps(figures))

    expected: dict[str, list[str]] = defaultdict(list)
    for number in range(count):
        expected[str(number % KEYS)].append(str(number))
    assert by_key(read_all(cluster, "input")) == expected
    assert by_key(written) == {
        key: [f"{value} {position}" for position, value in enumerate(values, start=1)]
        for key, values in expected.items()
    }
    for each in read.values():
        assert each.keys() == written.keys()
    assert not clients.feed.failed
    assert not clients.offsets.went_back
