"""Frameworks that process exactly once, at work on a tiered topic while its broker is killed."""

from __future__ import annotations

import json
import os
import random
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from isotherm.testing.broker_process import ISOTHERM, BrokerProcess
from isotherm.testing.local_servers import free_ports
from oracle.jars import OracleUnavailableError
from oracle.java_program import JavaProgram, class_path
from oracle.kafka import EAGER_SETTINGS, KafkaOracle
from oracle.program import Program
from oracle.python_program import SupervisedPython, environment
from oracle.tiered_topic import fully_tiered
from oracle.topics import wait_until
from tests.interop.frameworks.exactness import copy_by_spring
from tests.support import conditions

FOLDER = Path(__file__).parent
PARTITIONS = 2
KEYS = 500
VALUE_BYTES = 500
TIMEOUT_S = 300
KAFKA_SETTINGS = {
    **EAGER_SETTINGS,
    "log.cleaner.enable": "true",
    "rlmm.config.remote.log.metadata.topic.num.partitions": "3",
}
STORES = ("config", "offset", "status")
GUARD_S = 240
"""The limit of one wait: after a kill a framework waits for its own timeouts."""
TOPIC_CONFIG = {
    "remote.storage.enable": "true",
    "local.retention.bytes": "1",
    "retention.ms": "-1",
    "internal.segment.bytes": "131072",
    "file.delete.delay.ms": "100",
}


class Broker(Protocol):
    """A broker process that keeps its address over restarts."""

    bootstrap_servers: str
    log_dir: Path

    def start(self) -> None: ...
    def kill(self) -> None: ...


class IsothermBroker:
    def __init__(self, directory: Path, program: Sequence[str] = ISOTHERM) -> None:
        self._directory = directory
        self._program = program
        self.log_dir = directory / "log"
        self.bootstrap_servers = f"127.0.0.1:{free_ports(1)[0]}"
        self.lives: list[BrokerProcess] = []

    def start(self) -> None:
        settings = {
            "listeners": f"PLAINTEXT://{self.bootstrap_servers}",
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": "0",
        }
        self.lives.append(BrokerProcess(self._directory, settings, program=self._program))

    def kill(self) -> None:
        self.lives[-1].kill()


class KafkaBroker:
    def __init__(self, directory: Path) -> None:
        self._kafka = KafkaOracle(directory, KAFKA_SETTINGS)
        self.log_dir = self._kafka.log_dir
        self.bootstrap_servers = self._kafka.bootstrap_server

    def start(self) -> None:
        self._kafka.start()

    def kill(self) -> None:
        self._kafka.kill()


@dataclass(frozen=True, slots=True)
class Load:
    """The input of a run. All `kills` fall between its first record and its last."""

    records: int
    kills: int
    seed: int


def value_of(number: int) -> str:
    return f"{number:08d}".ljust(VALUE_BYTES, ".")


def key_of(number: int) -> str:
    return f"key-{number % KEYS}"


def numbers_by_key(records: int) -> dict[str, list[str]]:
    return {
        key_of(first): [value_of(number) for number in range(first, records, KEYS)]
        for first in range(min(KEYS, records))
    }


@contextmanager
def skipped_without_parts() -> Iterator[None]:
    try:
        yield
    except OracleUnavailableError as error:
        if os.environ.get("ISOTHERM_REQUIRE_ORACLE") == "1":
            pytest.fail(f"the frameworks are required: {error}")
        pytest.skip(str(error))


Records = dict[int, list[tuple[str | None, str]]]
"""Keys and values by partition, in the order of offsets."""


@dataclass
class Run:
    """A broker, a framework's process, and the records that pass through both."""

    broker: Broker
    folder: Path
    load: Load
    programs: list[Program] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._watcher = self._reader("read_uncommitted")
        self._watched: list[Callable[[], object]] = []

    def create_topics(self, *names: str, partitions: int = PARTITIONS) -> None:
        topics = [NewTopic(name, partitions, 1, config=TOPIC_CONFIG) for name in names]
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap_servers})
        for future in admin.create_topics(topics).values():
            future.result(TIMEOUT_S)

    def start_program(self, pom: str, source: str, main: str, *arguments: str) -> JavaProgram:
        """Start the Java program. Skips the test if Java, Maven or an artifact is not available."""
        with skipped_without_parts():
            classes = class_path(FOLDER / f"{pom}.xml", [FOLDER / source])
        log_path = self.folder / f"{main.rpartition('.')[2]}.log"
        program = JavaProgram(classes, main, *arguments, log_path=log_path)
        self.programs.append(program)
        self.watch(program.require_running)
        return program

    def start_python(self, name: str, *arguments: str) -> SupervisedPython:
        """Start `<name>_count.py` in an environment of `<name>.txt`.

        It is restarted when it ends, as a supervisor does for its users. Skips the test if a
        package is not available.
        """
        with skipped_without_parts():
            python = environment(FOLDER / f"{name}.txt")
        source = FOLDER / f"{name}_count.py"
        program = SupervisedPython(python, source, *arguments, log_path=self.folder / f"{name}.log")
        self.programs.append(program)
        self.watch(program.start_again_if_ended)
        return program

    def watch(self, look: Callable[[], object]) -> None:
        """Call `look` repeatedly while a test waits."""
        self._watched.append(look)

    def feed_topic(self, topic: str) -> Callable[[range], None]:
        """Write numbers to a topic, each exactly once also when the broker dies."""
        producer = Producer(
            {
                "bootstrap.servers": self.broker.bootstrap_servers,
                "enable.idempotence": True,
                "partitioner": "murmur2_random",
                # A batch has to fit a segment.
                "batch.size": 32768,
                "log_level": 0,
            }
        )

        def check(error: KafkaError | None, _message: Message) -> None:
            assert error is None, error

        def feed(numbers: range) -> None:
            for number in numbers:
                producer.produce(topic, value_of(number), key_of(number), on_delivery=check)

        self.watch(lambda: producer.poll(0))
        return feed

    @staticmethod
    def feed_file(path: Path) -> Callable[[range], None]:
        """Write numbers to a file, one in a line."""

        def feed(numbers: range) -> None:
            with path.open("a") as lines:
                lines.writelines(f"{value_of(number)}\n" for number in numbers)

        return feed

    def fed(self) -> dict[str, list[str]]:
        """Values of each key as `feed_topic` has written them."""
        return numbers_by_key(self.load.records)

    def feed_and_kill(
        self, feed: Callable[[range], None], output: str, dies: Program | None = None
    ) -> None:
        """Feed all numbers in parts, and kill the broker while a part is on its way to `output`,
        except the last.

        The first time `dies` is killed too, and leaves open transactions.
        """
        rng = random.Random(self.load.seed)
        part = -(-self.load.records // (self.load.kills + 1))
        for first in range(0, self.load.records, part):
            numbers = range(first, min(first + part, self.load.records))
            wanted = self.written(output) + rng.randrange(1, len(numbers))
            feed(numbers)
            if numbers.stop < self.load.records:
                self.await_progress(lambda goal=wanted: self.written(output) >= goal)  # type: ignore[misc]
                if dies and not first:
                    dies.kill()
                self.broker.kill()
                self.broker.start()
                if dies and not first:
                    dies.start()

    def written(self, topic: str) -> int:
        """The number of records and markers, also of open transactions, as far as the broker
        answers.
        """
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                return sum(
                    self._watcher.get_watermark_offsets(partition, TIMEOUT_S)[1]
                    for partition in self._partitions(self._watcher, topic)
                )
            except KafkaException:
                # A started broker answers before it leads all its partitions.
                if time.monotonic() > deadline:
                    raise

    def await_progress(self, is_done: Callable[[], bool]) -> None:
        def looked() -> bool:
            for look in self._watched:
                look()
            return is_done()

        conditions.wait_until(looked, self.programs[-1].log_end, timeout_s=GUARD_S)

    def await_committed(self, topic: str, count: int) -> None:
        """Return once that many different values of committed transactions can be read."""
        reader = self._assigned(topic)
        found: set[bytes] = set()

        def take() -> bool:
            messages = reader.consume(1000, 0.1)
            found.update(message.value() for message in messages if message.error() is None)
            return len(found) >= count

        try:
            self.await_progress(take)
        finally:
            reader.close()

    def await_tiered(self, *topics: str, partitions: int = PARTITIONS) -> None:
        """Return once only active segments are left on the broker's disk."""
        for topic in topics:
            wait_until(
                lambda name=topic: fully_tiered(self.broker.log_dir, name, partitions),  # type: ignore[misc]
                f"the tiering of topic={topic}",
            )

    def committed(self, topic: str) -> Records:
        """All records that a read_committed consumer gets."""
        reader = self._assigned(topic)
        found: Records = defaultdict(list)
        open_partitions = {each.partition for each in reader.assignment()}
        while open_partitions:
            for message in reader.consume(1000, 0.2):
                error = message.error()
                if error is None:
                    key = message.key()
                    value = message.value().decode()
                    found[message.partition()].append((key and key.decode(), value))
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    open_partitions.discard(message.partition())
        reader.close()
        return found

    def _assigned(self, topic: str) -> Consumer:
        reader = self._reader("read_committed")
        reader.assign(self._partitions(reader, topic))
        return reader

    def _reader(self, isolation_level: str) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self.broker.bootstrap_servers,
                "group.id": "unused",
                "isolation.level": isolation_level,
                "enable.partition.eof": True,
                "check.crcs": True,
                "log_level": 0,
            }
        )

    @staticmethod
    def _partitions(reader: Consumer, topic: str) -> list[TopicPartition]:
        count = len(reader.list_topics(topic, TIMEOUT_S).topics[topic].partitions)
        return [TopicPartition(topic, p, 0) for p in range(count)]


SHORT = Load(records=4_000, kills=2, seed=1)
# Each record is a transaction of its own, and few of them reveal a fault. Each partition gets
# more than three batches in each life of the broker.
SHORT_BY_TRANSACTION = replace(SHORT, records=1_500)
LONG = Load(records=20_000, kills=5, seed=2)
LONG_TIMEOUT_S = 900
BROKERS = {"isotherm": IsothermBroker, "kafka": KafkaBroker}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test of a framework on both kinds of broker; outside the soak only a short form."""
    if "run" in metafunc.fixturenames:
        long = (pytest.mark.soak, pytest.mark.timeout(LONG_TIMEOUT_S))
        runs = [
            pytest.param(("isotherm", LONG), id="isotherm", marks=long),
            # Apache Kafka shows that the program and its test are right.
            pytest.param(("kafka", SHORT), id="kafka", marks=long),
        ]
        if metafunc.definition.get_closest_marker("soak") is None:
            runs.append(pytest.param(("isotherm", SHORT), id="short", marks=pytest.mark.slow))
        metafunc.parametrize("run", runs, indirect=True)


@pytest.fixture
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Run]:
    name, load = request.param
    load = replace(load, seed=int(os.environ.get("FRAMEWORKS_SEED", load.seed)))
    try:
        broker = BROKERS[name](tmp_path / name)
        broker.start()
    except OracleUnavailableError as error:
        pytest.skip(str(error))
    with ended(Run(broker, tmp_path, load)) as run:
        yield run


@pytest.fixture
def broken_run(fault: str, work: Callable[[Run], None], tmp_path: Path) -> Iterator[Run]:
    """A run on a broker with one of the faults of broken_broker.py."""
    load = SHORT_BY_TRANSACTION if work is copy_by_spring else SHORT
    program = (str(FOLDER / "broken_broker.py"), fault)
    broker = IsothermBroker(tmp_path / "isotherm", program)
    broker.start()
    with ended(Run(broker, tmp_path, load)) as run:
        yield run


@contextmanager
def ended(run: Run) -> Iterator[Run]:
    try:
        yield run
    finally:
        for program in run.programs:
            program.kill()
        run.broker.kill()


class Connect:
    """A distributed worker of Kafka Connect.

    It restarts failed tasks, which Connect leaves to its operator.
    """

    def __init__(self, run: Run) -> None:
        self._url = f"http://127.0.0.1:{free_ports(1)[0]}"
        self._names: list[str] = []
        self._next_look = 0.0
        settings = {
            "bootstrap.servers": run.broker.bootstrap_servers,
            "listeners": self._url,
            "group.id": "connect",
            "exactly.once.source.support": "enabled",
            "key.converter": "org.apache.kafka.connect.storage.StringConverter",
            "value.converter": "org.apache.kafka.connect.storage.StringConverter",
            "plugin.discovery": "only_scan",
            "scheduled.rebalance.max.delay.ms": "0",
            "offset.storage.partitions": "2",
            "status.storage.partitions": "1",
            **{f"{kind}.storage.topic": f"connect-{kind}" for kind in STORES},
            **{f"{kind}.storage.replication.factor": "1" for kind in STORES},
        }
        path = run.folder / "connect.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        self.program = run.start_program(
            "kafka", "ExactSink.java", "org.apache.kafka.connect.cli.ConnectDistributed", str(path)
        )
        self._run = run
        run.watch(self._restart_failed)

    def create(self, name: str, config: Mapping[str, str]) -> None:
        def is_there() -> bool:
            try:
                self._ask("PUT", f"/connectors/{name}/config", config)
            except OSError:
                return False
            return True

        self._run.await_progress(is_there)
        self._names.append(name)

    def _restart_failed(self) -> None:
        """Restart failed connectors; look at most once a second."""
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + 1
        for name in self._names:
            try:
                status = self._ask("GET", f"/connectors/{name}/status")
                parts = [status["connector"], *status["tasks"]]
                if any(part["state"] == "FAILED" for part in parts):
                    query = "includeTasks=true&onlyFailed=true"
                    self._ask("POST", f"/connectors/{name}/restart?{query}")
            except OSError:
                continue  # the worker does not answer while the broker is away

    def _ask(self, method: str, path: str, body: Mapping[str, str] | None = None) -> Any:
        request = urllib.request.Request(
            self._url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            return json.loads(answer.read() or b"null")


@pytest.fixture
def connect(run: Run) -> Connect:
    return Connect(run)
