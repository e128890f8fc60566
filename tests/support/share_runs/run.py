"""The correctness run of share groups: consumers work while brokers and consumers are killed.

    python -m tests.support.share_runs.run --cluster III --faults 30 --seed 7

Kafka's own client and confluent-kafka read a topic of numbered records in two groups, of explicit
and of implicit acknowledgement; in a third one a record stays at the start of the share partition
while those behind it are acknowledged. They accept, release and reject records, and hold some until
their locks end. Every fault waits until all consumers work again. In the end each group must have
ended all records; then the broker is killed once more, and must still know that. `deliveries`
checks what the consumers logged.

Exit status: 0 none found · 1 anomalies, the folder is kept.
"""

from __future__ import annotations

import argparse
import contextlib
import enum
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from confluent_kafka import Message, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.coordinator_partition import coordinator_partition
from isotherm.client.node_address import NodeAddress
from isotherm.client.node_connection import NodeConnection
from isotherm.errors import PeerDisconnectedError, PeerTimeoutError
from isotherm.protocol.api_keys import ApiKey, request_class
from isotherm.protocol.entities import entity_of
from isotherm.testing.broker_process import BrokerProcess
from isotherm.testing.local_servers import free_ports
from oracle.cluster_members import IsothermMember, KafkaMember
from oracle.jars import resolve_jars
from oracle.java_program import compiled
from oracle.kafka import java_command
from oracle.mixed_cluster import MixedCluster
from oracle.program import Program
from oracle.topics import create_topic
from tests.support.conditions import go_on_for, wait_until
from tests.support.share_runs.deliveries import (
    Deliveries,
    Line,
    Place,
    Produced,
    anomalies,
    deliveries,
    read_lines,
)
from tests.support.share_runs.share_worker import PINNED, PINNED_MIN, release_path

TOPIC: Final = "tasks"
PARTITIONS: Final = 2
OFFSETS, STATES = "__consumer_offsets", "__share_group_state"
OFFSETS_PARTITIONS: Final = 3
PARTITION_COUNTS: Final = {TOPIC: PARTITIONS, OFFSETS: OFFSETS_PARTITIONS, STATES: 1}
PLACES: Final = [
    (topic, partition) for topic, count in PARTITION_COUNTS.items() for partition in range(count)
]
TURNS: Final = {TOPIC: 0, OFFSETS: 1, STATES: 0}
TOPIC_CONFIGS: Final[Mapping[str, Mapping[str, str]]] = {
    TOPIC: {},
    OFFSETS: {"cleanup.policy": "compact"},
    STATES: {"cleanup.policy": "delete"},
}
GROUPS: Final = ("explicit", "implicit")
"""The groups are named by their mode."""
ALL_GROUPS: Final = (*GROUPS, PINNED)
COUNT_MAX: Final = 5
TIMEOUT_S: Final = 300.0
PROGRESS: Final = dict.fromkeys(GROUPS, 20) | {PINNED: PINNED_MIN}
"""How many acknowledgements of each consumer of a group succeed after a fault."""
BROKER_SETTINGS: Final[Mapping[str, str]] = {
    "auto.create.topics.enable": "false",
    "group.share.min.heartbeat.interval.ms": "500",
    "group.share.heartbeat.interval.ms": "500",
    # A killed consumer keeps its partitions until its session ends.
    "group.share.min.session.timeout.ms": "3000",
    "group.share.session.timeout.ms": "3000",
    "group.share.min.record.lock.duration.ms": "1000",
    "group.share.delivery.count.limit": str(COUNT_MAX),
    "share.coordinator.state.topic.num.partitions": "1",
    "offsets.topic.num.partitions": str(OFFSETS_PARTITIONS),
}
GROUP_CONFIG: Final[Mapping[str, str]] = {
    "share.auto.offset.reset": "earliest",
    "share.record.lock.duration.ms": "1000",
}
# What is held stays so until a process ends.
PINNED_CONFIG: Final = {**GROUP_CONFIG, "share.record.lock.duration.ms": "60000"}
CLUSTER_KINDS: Final = {"I": IsothermMember, "K": KafkaMember}
_SOURCE = Path(__file__).with_name("ShareWorker.java")
ANOMALIES_SHOWN: Final = 20
_PRODUCED_AT_ONCE = 40
_PAUSE_S = 0.1


class Fault(enum.Enum):
    LEADER = "leader"
    """The broker that leads the topic's first partition is killed; a single broker is it."""
    GROUP_COORDINATOR = "group-coordinator"
    SHARE_COORDINATOR = "share-coordinator"
    JAVA = "java"
    """The consumers of Kafka's own client are killed."""
    PYTHON = "python"
    MOVE = "move"
    """The partitions of a cluster get other leaders: no process is killed."""
    EVERYTHING = "everything"
    """The leader and all consumers: who consumes then begins after every answer."""


CONSUMERS: Final = (Fault.JAVA, Fault.PYTHON)
GROUPS_OF: Final = {Fault.JAVA: GROUPS, Fault.PYTHON: ALL_GROUPS}


class Brokers(Protocol):
    @property
    def servers(self) -> str: ...
    def kill(self, fault: Fault) -> None:
        """Kill the broker that the fault names."""

    def start(self) -> None:
        """Start it again."""

    def close(self) -> None: ...


class SingleBroker:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        listener = f"PLAINTEXT://127.0.0.1:{free_ports(1)[0]}"
        self._settings = {**BROKER_SETTINGS, "listeners": listener}
        self._broker = BrokerProcess(directory, self._settings)
        self.servers = self._broker.bootstrap_servers
        create_topic(self.servers, TOPIC, PARTITIONS, {})

    def kill(self, fault: Fault) -> None:
        self._broker.kill()

    def start(self) -> None:
        self._broker = BrokerProcess(self._directory, self._settings)

    def close(self) -> None:
        self._broker.kill()


class ClusterOfBrokers:
    """Brokers with ids from 1 on, each an Isotherm (I) or Apache Kafka (K), and a controller."""

    def __init__(self, directory: Path, kinds: str) -> None:
        ids = list(range(1, len(kinds) + 1))
        settings = {
            **BROKER_SETTINGS,
            "share.coordinator.state.topic.replication.factor": str(len(ids)),
            "share.coordinator.state.topic.min.isr": "2",
            "remote.log.storage.system.enable": "false",
        }
        members = {each: CLUSTER_KINDS[kind] for each, kind in zip(ids, kinds, strict=True)}
        self._cluster = MixedCluster(directory, members, settings, BROKER_SETTINGS)
        self.servers = self._cluster.servers
        self._killed = 0
        self._ids = ids
        self._moves = 0
        for topic, config in TOPIC_CONFIGS.items():
            replicas = []
            for partition in range(PARTITION_COUNTS[topic]):
                turn = self._turn(topic, partition)
                replicas.append(ids[turn:] + ids[:turn])
            self._cluster.create(topic, *replicas, **config)

    def move(self) -> None:
        """Give each partition the next broker as its leader."""
        self._moves += 1
        for topic, partition in PLACES:
            self._cluster.move_leader(topic, partition, self._ids[self._turn(topic, partition)])

    def _turn(self, topic: str, partition: int) -> int:
        """The position of a partition's leader. One of the topic's partitions has its leader and
        its share coordinator at one broker, the other at two."""
        return (self._moves + partition + TURNS[topic]) % len(self._ids)

    def kill(self, fault: Fault) -> None:
        topic, partition = TOPIC, 0
        if fault is Fault.GROUP_COORDINATOR:
            topic, partition = OFFSETS, coordinator_partition(GROUPS[0], OFFSETS_PARTITIONS)
        elif fault is Fault.SHARE_COORDINATOR:
            topic = STATES
        wait_until(lambda: self._cluster.leader(topic, partition) >= 0, f"leader of {topic}")
        self._killed = self._cluster.leader(topic, partition)
        self._cluster.members[self._killed].kill()

    def start(self) -> None:
        self._cluster.members[self._killed].start()
        everyone = set(self._cluster.members)
        for topic, partition in PLACES:
            self._cluster.await_isr(topic, everyone, partition)

    def close(self) -> None:
        self._cluster.close()


class Workers:
    """The two processes of consumers; a process that is killed is followed by one with new
    names."""

    def __init__(self, directory: Path, servers: str) -> None:
        self._directory = directory
        self._arguments = (servers, TOPIC)
        self._lives: Counter[Fault] = Counter()
        self._programs: dict[Fault, Program] = {}
        self.names: dict[Fault, str] = {}
        for fault in CONSUMERS:
            self.start(fault)

    @property
    def consumers(self) -> list[tuple[str, str]]:
        """The group and the name of each consumer that is alive."""
        return [
            (group, f"{name}-{group}")
            for fault, name in self.names.items()
            for group in GROUPS_OF[fault]
        ]

    def lines(self) -> list[Line]:
        return read_lines(sorted(self._directory.glob("*.deliveries")))

    def start(self, fault: Fault) -> None:
        self._lives[fault] += 1
        name = f"{fault.value}{self._lives[fault]}"
        log = self._directory / f"{name}.deliveries"
        log.touch()
        groups = [f"{mode}:{mode}" for mode in GROUPS_OF[fault]]
        arguments = [*self._arguments, str(log), name, *groups]
        if fault is Fault.JAVA:
            classes = compiled(resolve_jars(), [_SOURCE])
            command = java_command("ShareWorker", *arguments, classes=classes)
        else:
            module = "tests.support.share_runs.share_worker"
            command = [sys.executable, "-m", module, *arguments]
        self._programs[fault] = Program(command, self._directory / f"{name}.log")
        self.names[fault] = name

    def release(self) -> None:
        """End what consumers hold, of this life and of later ones."""
        for name in self.names.values():
            release_path(self._directory / f"{name}.deliveries").touch()

    def require_running(self) -> None:
        for program in self._programs.values():
            program.require_running()

    def stop(self) -> None:
        for program in self._programs.values():
            program.end_input(TIMEOUT_S)
            assert program.has_succeeded, program.log_end()

    def kill(self, faults: Iterable[Fault] = CONSUMERS) -> None:
        for fault in faults:
            if fault in self._programs:
                self._programs[fault].kill()


class Tasks:
    """The numbered records that are produced. `places` has each once it is acknowledged."""

    def __init__(self, servers: str) -> None:
        self.places: dict[Place, Produced] = {}
        self._count = 0
        self._begun_ns = 0
        self._producer = Producer(
            {"bootstrap.servers": servers, "enable.idempotence": True, "log_level": 0}
        )

    def produce(self) -> None:
        self._begun_ns = time.monotonic_ns()
        for _ in range(_PRODUCED_AT_ONCE):
            self._count += 1
            self._producer.produce(TOPIC, b"%d" % self._count, on_delivery=self._on_delivery)
        assert self._producer.flush(TIMEOUT_S) == 0

    def _on_delivery(self, error: object, message: Message) -> None:
        assert error is None, error
        partition, offset, value = message.partition(), message.offset(), message.value()
        assert partition is not None
        assert offset is not None
        assert value is not None
        self.places[partition, offset] = Produced(int(value), self._begun_ns)


@dataclass
class ShareReport:
    anomalies: list[str] = field(default_factory=list)
    faults: Counter[Fault] = field(default_factory=Counter)
    records: int = 0
    groups: dict[str, Deliveries] = field(default_factory=dict)
    archived: int = 0
    """Records that reached the limit of deliveries."""

    def lines(self) -> list[str]:
        faults = " ".join(f"{fault.value}={count}" for fault, count in self.faults.items())
        found = [f"records={self.records} archived={self.archived} {faults}"]
        for group, each in self.groups.items():
            count = sum(map(len, each.got.values()))
            found.append(
                f"group={group} deliveries={count} answered={dict(each.acknowledgements)}"
                f" errors={dict(each.errors)}"
            )
        return [*found, *self.anomalies[:ANOMALIES_SHOWN]]


def run(
    brokers: Brokers, directory: Path, faults: Sequence[Fault], say: Callable[[str], None]
) -> ShareReport:
    """Play the faults one after the other, and check the history. Closes nothing of `brokers`."""
    configure_groups(brokers.servers)
    directory.mkdir(parents=True, exist_ok=True)
    tasks = Tasks(brokers.servers)
    report = ShareReport(faults=Counter(faults))
    kills_ns: list[int] = []
    workers = Workers(directory, brokers.servers)
    try:
        await_progress(workers, tasks)
        for fault in faults:
            await_work(workers, tasks)
            say(f"fault={fault.value}")
            kills_ns.append(time.monotonic_ns())
            play(fault, brokers, workers)
            await_progress(workers, tasks)
        workers.release()
        try:
            await_end(brokers.servers)
        except AssertionError as stuck:
            report.anomalies.append(f"stuck: {stuck}")
        workers.stop()
        # What is over is on disk.
        brokers.kill(Fault.LEADER)
        brokers.start()
        wait_until(lambda: is_known(lags(brokers.servers)), "the groups' lags")
        left = {place: lag for place, lag in lags(brokers.servers).items() if lag}
        if left and not report.anomalies:
            report.anomalies.append(f"what had ended has not: lags={left}")
    finally:
        workers.kill()
    report.records = len(tasks.places)
    lines = workers.lines()
    for group in ALL_GROUPS:
        found = report.groups[group] = deliveries(lines, group)
        report.archived += sum(
            any(delivery.delivery_count == COUNT_MAX for delivery in got)
            for got in found.got.values()
        )
        wrong = anomalies(found, tasks.places, COUNT_MAX, kills_ns)
        report.anomalies += [f"group={group} {each}" for each in wrong]
    return report


def play(fault: Fault, brokers: Brokers, workers: Workers) -> None:
    """Kill what the fault names, and start it again."""
    if fault is Fault.MOVE:
        assert isinstance(brokers, ClusterOfBrokers), "only a cluster has other leaders"
        brokers.move()
        return
    consumers = CONSUMERS if fault is Fault.EVERYTHING else (fault,)
    killed = [consumer for consumer in consumers if consumer in CONSUMERS]
    has_broker = fault not in CONSUMERS
    if has_broker:
        brokers.kill(fault)
    workers.kill(killed)
    if has_broker:
        brokers.start()
    for each in killed:
        workers.start(each)


def configure_groups(servers: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    for group in ALL_GROUPS:
        config = PINNED_CONFIG if group == PINNED else GROUP_CONFIG
        entries = [
            ConfigEntry(name, text, incremental_operation=AlterConfigOpType.SET)
            for name, text in config.items()
        ]
        resource = ConfigResource(ResourceType.GROUP, group, incremental_configs=entries)
        admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)


def await_work(workers: Workers, tasks: Tasks) -> None:
    """Return while consumers are at work, so that a fault meets acknowledgements just answered."""
    before = _handled(workers).total()
    tasks.produce()
    wait_until(lambda: _handled(workers).total() > before, "acknowledgements", timeout_s=TIMEOUT_S)


def await_progress(workers: Workers, tasks: Tasks) -> None:
    """Produce until each living consumer has handled records that it got from here on."""
    before = _handled(workers)

    def has_progress() -> bool:
        workers.require_running()
        tasks.produce()
        handled = _handled(workers)
        return all(
            handled[consumer] >= before[consumer] + PROGRESS[consumer[0]]
            # One that holds a record goes on when it is released.
            for consumer in workers.consumers
            if consumer[0] != PINNED or not before[consumer]
        )

    def behind() -> str:
        handled = _handled(workers)
        missing = {consumer: handled[consumer] - before[consumer] for consumer in workers.consumers}
        return f"acknowledgements of all consumers since the last fault: {missing}"

    wait_until(has_progress, behind, timeout_s=TIMEOUT_S, pause_s=_PAUSE_S)


def _handled(workers: Workers) -> Counter[tuple[str, str]]:
    lines = workers.lines()
    found: Counter[tuple[str, str]] = Counter()
    for group in ALL_GROUPS:
        for consumer, count in deliveries(lines, group).handled_counts.items():
            found[group, consumer] = count
    return found


def await_end(servers: str) -> None:
    """Wait until no group has a record left to deliver."""
    last: dict[tuple[str, int], int] = {}

    def is_over() -> bool:
        last.clear()
        last.update(lags(servers))
        return is_known(last) and not any(last.values())

    wait_until(is_over, lambda: f"the end of all records: lags={last}", timeout_s=TIMEOUT_S)


def is_known(lag_by_place: Mapping[tuple[str, int], int]) -> bool:
    return bool(lag_by_place) and min(lag_by_place.values()) >= 0


def lags(servers: str) -> dict[tuple[str, int], int]:
    """The number of records that have not ended, by group and partition; empty while one cannot be
    had. The state's start moves with the next write alone, as Kafka's does, so it does not tell."""
    found = {}
    for group in ALL_GROUPS:
        answer = _ask_coordinator(servers, group)
        if answer is None:
            return {}
        places = [place for topic in answer.topics for place in topic.partitions]
        if len(places) != PARTITIONS or any(place.error_code.value for place in places):
            return {}
        found.update({(group, place.partition_index): place.lag for place in places})
    return found


def _ask_coordinator(servers: str, group: str) -> Any:
    """What the group's coordinator says of its offsets; None if no broker is it."""
    fields = {"groups": [{"group_id": group, "topics": None}]}
    request = entity_of(request_class(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, 1), fields)
    for server in servers.split(","):
        host, _, port = server.rpartition(":")
        connection = NodeConnection(
            NodeAddress(host, int(port)),
            client_id="share-run",
            connect_timeout_s=5,
            request_timeout_s=60,
            response_bytes_max=1 << 20,
        )
        with (
            contextlib.closing(connection),
            contextlib.suppress(PeerDisconnectedError, PeerTimeoutError),
        ):
            (answer,) = connection.send(request).groups
            if answer.error_code is ErrorCode.none:
                return answer
    go_on_for(_PAUSE_S)
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.share_runs.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--cluster", default="", help="a letter for each broker, I or K; default: one broker")
    add("--faults", type=int, default=10)
    add("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    directory = Path(tempfile.mkdtemp(prefix="isotherm-share-run-"))
    print(f"seed={options.seed} directory={directory}", flush=True)
    kinds = [each for each in Fault if options.cluster or each is not Fault.MOVE]
    faults = random.Random(options.seed).choices(kinds, k=options.faults)
    brokers: Brokers
    if options.cluster:
        brokers = ClusterOfBrokers(directory / "brokers", options.cluster)
    else:
        brokers = SingleBroker(directory / "broker")
    with contextlib.closing(brokers):
        report = run(brokers, directory / "workers", faults, print)
    print("\n".join(report.lines()))
    return 1 if report.anomalies else 0


if __name__ == "__main__":
    sys.exit(main())
