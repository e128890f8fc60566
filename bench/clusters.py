"""The two sides of bench/replication.py: three brokers of one kind, with a controller of Apache
Kafka.

Both sides have Kafka's defaults, except for the settings below. Kafka's brokers have the heap and
the collector of its own start script. Each side has its own folder as the remote tier.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from bench.servers import KAFKA_HEAP, START_TIMEOUT_S
from oracle.cluster_members import IsothermMember, KafkaMember, Member
from oracle.kafka_cluster import ControllerOracle
from oracle.raw_requests import ask, outcomes, read_answer, request_frame
from oracle.topics import wait_until

SIDES = ("isotherm", "kafka")
NODE_IDS = (1, 2, 3)
TIMEOUT_S = 180.0
ALTER_PARTITION_REASSIGNMENTS = 45

SETTINGS: Mapping[str, str] = {
    # The tier works within seconds.
    "remote.log.manager.task.interval.ms": "500",
    "log.initial.task.delay.ms": "500",
    "log.segment.delete.delay.ms": "1000",
    "rlmm.config.remote.log.metadata.topic.num.partitions": "3",
    "rlmm.config.remote.log.metadata.topic.replication.factor": "3",
    "rlmm.config.remote.log.metadata.topic.min.isr": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    # Kafka's defaults: test brokers have smaller values.
    "replica.lag.time.max.ms": "30000",
    "num.network.threads": "3",
    "num.io.threads": "8",
    "background.threads": "10",
    "log.cleaner.enable": "true",
}


class Cluster:
    """Three brokers and their controller. `running_clusters` starts them. Not thread-safe."""

    def __init__(self, name: str, controller: ControllerOracle, members: Sequence[Member]) -> None:
        self.name = name
        self.controller = controller
        self.members = {member.node_id: member for member in members}
        self.bootstrap_server = ",".join(member.bootstrap_server for member in members)
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap_server, "log_level": 0})

    @property
    def pids(self) -> list[int]:
        """The process ids of the brokers, without the controller's."""
        return [member.pid for member in self.members.values()]

    def create(
        self,
        topic: str,
        *,
        partitions: int = 1,
        replicas: Sequence[int] = NODE_IDS,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic; return when all replicas are in sync.

        The preferred leaders rotate over the brokers.
        """
        turned = [list(replicas[i:]) + list(replicas[:i]) for i in range(len(replicas))]
        new = NewTopic(
            topic,
            partitions,
            replica_assignment=[turned[i % len(turned)] for i in range(partitions)],
            config={"min.insync.replicas": "2", "retention.ms": "-1", **(config or {})},
        )
        try:
            self.admin.create_topics([new])[topic].result(TIMEOUT_S)
        except KafkaException as error:
            # On a busy machine the client may have repeated the request.
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        self.await_isr(topic, set(replicas), partitions)

    def delete(self, topic: str) -> None:
        """Delete a topic; return when its files are gone."""
        self.admin.delete_topics([topic])[topic].result(TIMEOUT_S)
        wait_until(
            lambda: not any(any(self.log_dir(node_id).glob(f"{topic}-*")) for node_id in NODE_IDS),
            f"the files of {topic} to be deleted",
            TIMEOUT_S,
        )

    def log_dir(self, node_id: int) -> Path:
        return self.members[node_id].data_dir

    def local_bytes(self, node_id: int, topic: str) -> int:
        """The bytes of partition 0's segments on a broker's disk, without those that wait for
        deletion.
        """
        size = 0
        for path in (self.log_dir(node_id) / f"{topic}-0").glob("*.log"):
            with contextlib.suppress(FileNotFoundError):  # deleted since the listing
                size += path.stat().st_size
        return size

    def leader(self, topic: str) -> int:
        """The node id of partition 0's leader; -1 if it has none."""
        return int(self.admin.list_topics(topic, timeout=60).topics[topic].partitions[0].leader)

    def in_sync(self, topic: str, partition: int = 0) -> set[int]:
        partitions = self.admin.list_topics(topic, timeout=60).topics[topic].partitions
        return set(partitions[partition].isrs) if partition in partitions else set()

    def replicas(self, topic: str) -> set[int]:
        return set(self.admin.list_topics(topic, timeout=60).topics[topic].partitions[0].replicas)

    def await_isr(self, topic: str, expected: set[int], partitions: int = 1) -> None:
        wait_until(
            lambda: all(self.in_sync(topic, number) == expected for number in range(partitions)),
            f"in-sync replicas {expected} of {topic}",
            TIMEOUT_S,
        )

    def reassign(self, topic: str, replicas: Sequence[int]) -> None:
        """Assign these replicas to partition 0; return when the controller has accepted."""
        fields = {
            "timeout": 60_000,
            "topics": [
                {"name": topic, "partitions": [{"partition_index": 0, "replicas": list(replicas)}]}
            ],
        }
        frame = request_frame(ALTER_PARTITION_REASSIGNMENTS, 0, fields)
        server, _, _ = self.bootstrap_server.partition(",")
        answer = ask(server, frame, timeout_s=60)
        assert isinstance(answer, bytes), answer
        results = outcomes(read_answer(ALTER_PARTITION_REASSIGNMENTS, 0, answer))
        assert all(result.error_code == 0 for result in results.values()), results


class BrokersUsage:
    """Resources of the brokers' processes between two moments. No broker may restart in between."""

    def __init__(self, cluster: Cluster) -> None:
        self._processes = [psutil.Process(pid) for pid in cluster.pids]
        self._cpu_s_at_start = self._cpu_s()

    def cpu_s(self) -> float:
        """CPU-seconds of all brokers, user and system, since this object was made."""
        return self._cpu_s() - self._cpu_s_at_start

    def resident_mb(self) -> float:
        """The mean resident memory of a broker, in 10^6 bytes."""
        return (
            sum(process.memory_info().rss for process in self._processes)
            / 1e6
            / len(self._processes)
        )

    def proportional_mb(self) -> float:
        """The mean proportional set size (PSS) of a broker: shared pages are divided among their
        processes.
        """
        sizes = [process.memory_full_info().pss for process in self._processes]
        return float(sum(sizes)) / 1e6 / len(sizes)

    def _cpu_s(self) -> float:
        times = [process.cpu_times() for process in self._processes]
        return float(sum(t.user + t.system for t in times))


@contextlib.contextmanager
def running_clusters(names: Sequence[str], directory: Path) -> Iterator[list[Cluster]]:
    """Start the named sides. Only the measured one has work; the others are idle."""
    with contextlib.ExitStack() as stack:
        clusters = []
        for name in names:
            bucket = directory / name / "bucket"
            bucket.mkdir(parents=True)
            controller = ControllerOracle(directory / name / "controller")
            stack.callback(controller.kill)
            controller.start()
            members = [
                _member(name, directory / name, controller, node_id, bucket) for node_id in NODE_IDS
            ]
            clusters.append(Cluster(name, controller, members))
        members = [member for cluster in clusters for member in cluster.members.values()]
        for member in members:
            stack.callback(member.kill)
        with ThreadPoolExecutor(len(members)) as executor:
            for started in [executor.submit(member.start) for member in members]:
                started.result()
        yield clusters


def _member(
    name: str, directory: Path, controller: ControllerOracle, node_id: int, bucket: Path
) -> Member:
    folder = directory / f"broker-{node_id}"
    if name == "isotherm":
        return IsothermMember(folder, controller, node_id, bucket, SETTINGS)
    member = KafkaMember(
        folder, controller, node_id, bucket, SETTINGS, heap=KAFKA_HEAP, java_options=()
    )
    member.start_timeout_s = START_TIMEOUT_S
    return member
