"""What does a read replica spare the brokers, how fast does it serve, and how soon?

    producers    a producer at half of Kafka's capacity (acks=all): alone, while four consumers read
                 the cluster's history through the broker, and while they read it through the
                 replica. Acknowledgements and the broker's CPU, as ratios of alone, and the
                 broker's CPU beyond alone for each GB read. Broker and producer have one half of
                 the processors, replica and consumers the other, as if on two machines
    cold         one and four consumers read the history: Kafka's own remote reads, and the replica
    start        from the start of a replica to its first record, by the number of segments in its
                 tier: in front of the cluster, and over the bucket alone
    memory       the replica's memory while 32 consumers read

Apache Kafka has its history in LocalTieredStorage. The sides run in turn; the first round of cold
reads warms up. Otherwise client, broker and replica share the machine's processors. Times beside
other load say little; CPU-seconds hold.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from bench import fetch_client, load, open_loop
from bench.cold_consume import TIERED_CONFIG
from bench.fetch_client import FetchClient
from bench.harness import Question, describe, keep, warm_up
from bench.history_readers import HISTORY, PRESENT, readers
from bench.latency import kafkas_capacity_mb_per_s
from bench.logins import connect
from bench.replica_servers import ReplicaServer, await_tier, plant_history
from bench.servers import KafkaServer, Server, ServerUsage
from bench.topics import create, create_filled
from oracle.tiered_topic import fully_tiered
from oracle.topics import create_topic, wait_until

QUESTION = Question(
    "replica",
    "What does a read replica spare the brokers, how fast does it serve, and how soon?",
    lambda scale: (),
)
ROUNDS = 3
RECORD_SIZE = 1024
MIB = 1 << 20
SHARE, READERS = 0.5, 4
SEGMENTS = (1_000, 10_000, 100_000)
MANY, MANY_PARTITIONS = "many-segments", 100
MEMORY_CONSUMERS, MEMORY_TOPICS = 32, 8
START_TIMEOUT_S = 300
POLL_S = 0.02


class Size(NamedTuple):
    """How much is measured."""

    rounds: int
    history_bytes: int
    seconds: float
    segments: Sequence[int]


WHOLE = Size(ROUNDS, 400_000_000, 10.0, SEGMENTS)
QUICK = Size(1, 160_000_000, 4.0, SEGMENTS[:2])

Figures = Mapping[str, float]
Rows = list[dict[str, Any]]


def row(part: str, case: str, runs: Sequence[Figures]) -> dict[str, Any]:
    """A row of the result: each figure with the values of all rounds."""
    figures = {name: [round(run[name], 3) for run in runs] for name in runs[0]}
    shown = " ".join(f"{name}={statistics.median(values):g}" for name, values in figures.items())
    print(f"{part:<10} {case:<36} {shown}", file=sys.stderr, flush=True)
    return {"part": part, "case": case, "figures": figures}


@contextlib.contextmanager
def replica_of(
    directory: Path, path: Path, upstream: str | None, topic: str = HISTORY
) -> Iterator[ReplicaServer]:
    server = ReplicaServer(directory, path, upstream)
    server.start()
    try:
        first_record_s(server, topic)
        yield server
    finally:
        server.stop()


def first_record_s(server: ReplicaServer, topic: str) -> float:
    """Seconds until partition 0 of the topic gives its first record. RuntimeError after
    START_TIMEOUT_S."""
    began = time.monotonic()
    while time.monotonic() - began < START_TIMEOUT_S:
        server.check_runs()
        try:
            client = FetchClient(connect(server.bootstrap_server, {}), topic, MIB)
            client.fetch()
        except (OSError, RuntimeError):  # it does not listen yet, or does not know the topic
            time.sleep(POLL_S)
            continue
        client.close()
        if client.next_offset:
            return time.monotonic() - began
    raise RuntimeError(f"the replica serves no record server={server.bootstrap_server}")


def halves() -> tuple[set[int], set[int]]:
    """The processors of broker and producer, and those of replica and consumers. All for both if
    there is one."""
    processors = sorted(os.sched_getaffinity(0))
    middle = len(processors) // 2
    return set(processors[:middle] or processors), set(processors[middle:])


def pin(server: Server | ReplicaServer, processors: set[int]) -> None:
    """Keep all threads of the server, and those that they begin, on these processors."""
    for thread in psutil.Process(server.pid).threads():
        with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile
            os.sched_setaffinity(thread.id, processors)


@contextlib.contextmanager
def on_processors(processors: set[int]) -> Iterator[None]:
    """Processes that this thread starts in the block stay on these processors."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, processors)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextlib.contextmanager
def pinned_readers(address: str, records: int, processors: set[int]) -> Iterator[Synchronized[int]]:
    with contextlib.ExitStack() as stack:
        with on_processors(processors):
            read_bytes = stack.enter_context(readers(address, records, READERS))
        yield read_bytes


def measure_producers(kafka: KafkaServer, replica: ReplicaServer, size: Size) -> Rows:
    records_per_s = SHARE * kafkas_capacity_mb_per_s() * 1e6 / RECORD_SIZE
    records = records_of(size)
    of_broker, of_replica = halves()
    pin(kafka, of_broker)
    pin(replica, of_replica)
    sides: Mapping[str, Callable[[], contextlib.AbstractContextManager[Any]]] = {
        "alone": contextlib.nullcontext,
        "read through the broker": lambda: pinned_readers(
            kafka.bootstrap_server, records, of_replica
        ),
        "read through the replica": lambda: pinned_readers(
            replica.bootstrap_server, records, of_replica
        ),
    }
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    for _ in range(size.rounds):
        for name, reading in sides.items():
            with reading() as read_bytes:
                before = read_bytes.value if read_bytes else 0
                began, usage = time.monotonic(), ServerUsage(kafka)
                with on_processors(of_broker):
                    sent = open_loop.run(
                        kafka.bootstrap_server,
                        PRESENT,
                        records_per_s=records_per_s,
                        record_size=RECORD_SIZE,
                        seconds=size.seconds,
                        receives=False,
                    )
                cpu_s, took_s = usage.cpu_s(), time.monotonic() - began
                read = (read_bytes.value if read_bytes else 0) - before
            alone = runs["alone"][-1] if runs["alone"] else None
            figures = {
                "publish_p50_ms": sent["publish_p50_ms"],
                "publish_p99_ms": sent["publish_p99_ms"],
                "broker_cpu_s": cpu_s,
                "read_mb_per_s": read / 1e6 / took_s,
            }
            base = figures if name == "alone" else alone
            assert base is not None, "alone is measured first"
            figures["p99_times_alone"] = figures["publish_p99_ms"] / base["publish_p99_ms"]
            figures["broker_cpu_times_alone"] = figures["broker_cpu_s"] / base["broker_cpu_s"]
            beyond_s = figures["broker_cpu_s"] - base["broker_cpu_s"]
            figures["broker_cpu_s_per_gb_read"] = beyond_s / (read / 1e9) if read else 0.0
            runs[name].append(figures)
    return [row("producers", name, figures) for name, figures in runs.items()]


def measure_cold(kafka: KafkaServer, replica: ReplicaServer, size: Size) -> Rows:
    rows = []
    records = records_of(size)
    servers: Sequence[Server | ReplicaServer] = (kafka, replica)
    for consumers in (1, READERS):
        runs: dict[str, list[dict[str, float]]] = {server.name: [] for server in servers}
        for number in range(size.rounds + 1):
            for server in servers:
                usage = ServerUsage(server)
                read = fetch_client.run(
                    server.bootstrap_server,
                    HISTORY,
                    records=records,
                    fetch_bytes=MIB,
                    consumers=consumers,
                )
                gigabytes = consumers * read["bytes"] / 1e9
                figures = {"mb_per_s": read["mb_per_s"], "cpu_s_per_gb": usage.cpu_s() / gigabytes}
                if number:
                    runs[server.name].append(figures)
        rows += [row("cold", f"{name} x{consumers}", figures) for name, figures in runs.items()]
    return rows


def measure_memory(
    kafka: KafkaServer, replica: ReplicaServer, topics: Sequence[str], records: int
) -> Rows:
    usage = ServerUsage(replica)
    idle_mb, peak_mb = usage.resident_mb(), 0.0
    ends = threading.Event()

    def watch() -> None:
        nonlocal peak_mb
        while not ends.is_set():
            peak_mb = max(peak_mb, usage.resident_mb())
            time.sleep(0.1)

    def read(topic: str) -> None:
        fetch_client.run(
            replica.bootstrap_server,
            topic,
            records=records,
            fetch_bytes=MIB,
            consumers=MEMORY_CONSUMERS // MEMORY_TOPICS,
        )

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with ThreadPoolExecutor(len(topics)) as pool:
            list(pool.map(read, topics))
    finally:
        ends.set()
        watcher.join()
    figures = {"idle_mb": idle_mb, "peak_mb": peak_mb}
    return [row("memory", f"{MEMORY_CONSUMERS} consumers, {len(topics)} topics", [figures])]


def measure_start(directory: Path, size: Size) -> Rows:
    rows = []
    for segments in size.segments:
        folder = directory / f"start-{segments}"
        bucket = folder / "bucket"
        kafka = KafkaServer(folder / "kafka")
        (folder / "kafka").mkdir(parents=True)
        try:
            kafka.start()
            await_tier(kafka.bootstrap_server)
            config = {"remote.storage.enable": "true", "retention.ms": "-1"}
            create_topic(kafka.bootstrap_server, MANY, MANY_PARTITIONS, config)
            plant_history(kafka.bootstrap_server, bucket, MANY, segments)
            for side, upstream in (("cluster", kafka.bootstrap_server), ("bucket alone", None)):
                runs = []
                for _ in range(size.rounds):
                    server = ReplicaServer(folder, bucket, upstream)
                    server.start()
                    try:
                        usage = ServerUsage(server)
                        figures = {"first_record_s": first_record_s(server, MANY)}
                        figures |= {"cpu_s": usage.cpu_s(), "resident_mb": usage.resident_mb()}
                        runs.append(figures)
                    finally:
                        server.stop()
                rows.append(row("start", f"{side}, {segments:,} segments", runs))
        finally:
            kafka.stop()
    return rows


def records_of(size: Size) -> int:
    return int(size.history_bytes / RECORD_SIZE / load.BATCH_RECORDS) * load.BATCH_RECORDS


def prepare(kafka: KafkaServer, topics: Mapping[str, int]) -> None:
    """Fill the topics, each with so many records, until only the tier has them."""
    for topic, records in topics.items():
        create_filled(
            kafka,
            topic=topic,
            records=records,
            record_size=RECORD_SIZE,
            compression="none",
            config=TIERED_CONFIG,
        )
    wait_until(
        lambda: all(fully_tiered(kafka.log_dir, topic, 1) for topic in topics), "the tiering"
    )


def measure(parts: Sequence[str], size: Size, directory: Path) -> Rows:
    rows: Rows = []
    if parts != ["start"]:
        records = records_of(size)
        small = {f"memory-{number}": records // 2 for number in range(MEMORY_TOPICS)}
        (directory / "kafka").mkdir(parents=True)
        kafka = KafkaServer(directory / "kafka")
        try:
            kafka.start()
            warm_up(kafka, size.history_bytes)
            prepare(kafka, {HISTORY: records, **(small if "memory" in parts else {})})
            create(kafka, topic=PRESENT)
            upstream = kafka.bootstrap_server
            with replica_of(directory / "replica", kafka.remote_dir, upstream) as replica:
                if "producers" in parts:
                    rows += measure_producers(kafka, replica, size)
                if "cold" in parts:
                    rows += measure_cold(kafka, replica, size)
            if "memory" in parts:
                with replica_of(directory / "replica", kafka.remote_dir, upstream) as replica:
                    rows += measure_memory(kafka, replica, list(small), records // 2)
        finally:
            kafka.stop()
    if "start" in parts:
        rows += measure_start(directory, size)
    return rows


PARTS = ("producers", "cold", "start", "memory")


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION.text)
    parser.add_argument("--quick", action="store_true", help="less of all, one round, not stored")
    parser.add_argument("--rounds", type=int, help=f"default {ROUNDS}")
    parser.add_argument("--part", choices=PARTS, help="measure this alone; not stored")
    parser.add_argument("--segments", type=int, help="of the start; not stored")
    options = parser.parse_args()
    size = QUICK if options.quick else WHOLE
    size = size._replace(rounds=options.rounds or size.rounds)
    if options.segments:
        size = size._replace(segments=[options.segments])
    document = describe(QUESTION, size.rounds)
    parts = [options.part] if options.part else list(PARTS)
    with tempfile.TemporaryDirectory(prefix="isotherm-bench-") as directory:
        document["replica"] = measure(parts, size, Path(directory))
    keep(document, is_whole=not (options.quick or options.part or options.segments))


if __name__ == "__main__":
    main()
