"""How long does a broker take to start and to stop?

    1,000 segments     one partition, started after a clean stop
    1,000 partitions   of ten topics, each with a record, started after a clean stop
    killed             started after SIGKILL, with the given MiB past the recovery point, in a
                       producer's batches, or in batches of one record as in the metadata topic of a
                       tier

Each side starts on files that the same client made on it. A start lasts from the creation of the
process, with imports or JVM, to the answer of a Metadata request; a stop from SIGTERM to the end of
the process. Changes of a round stay for the next one. In the first seconds one client sends a
request every millisecond, while another produces its first record: the former's waits show whether
work left over from the start delays requests.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Producer

from bench import topics
from bench.harness import Question, describe, keep, ratio_ranges, ratios, summarize
from bench.servers import SERVERS, KafkaServer, Server
from oracle.kafka import KafkaOracle
from oracle.topics import create_topic

ROUNDS = 3
START_TIMEOUT_S = 300
POLL_S = 0.005
RECORD_SIZE = 1000
SEGMENT_BYTES = 1_048_576
SINGLE_BATCHES = 400_000
SMALL_SIZE = 100
# On a busy machine a request for more may exceed the client's timeout.
PARTITIONS_OF_A_TOPIC_MAX = 250

FIRST_SECONDS = 2.0
FIRST_RECORD = {"topic": "first", "size": RECORD_SIZE}

# Metadata 1 about no topic, as client "b".
METADATA_REQUEST = struct.pack(">ihhihci", 15, 3, 1, 1, 1, b"b", 0)


@dataclass(frozen=True, slots=True)
class Case:
    """A state of the broker before its start.

    `fill` runs once. `disturb` runs in each round on the running broker, which is then killed if
    `is_killed`, and stopped otherwise.
    """

    name: str
    fill: Callable[[Server], None]
    disturb: Callable[[Server], None] = lambda server: None
    is_killed: bool = False


def build_cases(scale: float) -> Sequence[Case]:
    count = int(1000 * scale)
    size = int(256 * scale) << 20
    single = int(SINGLE_BATCHES * scale)
    return (
        Case(f"{count:,} segments", partial(_fill_segments, count=count)),
        Case(f"{count:,} partitions", partial(fill_partitions, count=count)),
        Case(
            f"killed, {size >> 20} MiB to recover",
            partial(topics.create, topic="killed", config={"segment.bytes": str(1 << 30)}),
            partial(_produce, topic="killed", size=size),
            is_killed=True,
        ),
        Case(
            f"killed, {single:,} batches to recover",
            partial(topics.create, topic="single", config={"segment.bytes": str(1 << 30)}),
            partial(_produce, topic="single", size=single * SMALL_SIZE, is_single=True),
            is_killed=True,
        ),
    )


def _fill_segments(server: Server, *, count: int) -> None:
    topics.create(server, topic="segments", config={"segment.bytes": str(SEGMENT_BYTES)})
    _produce(server, topic="segments", size=count * SEGMENT_BYTES)


def fill_partitions(server: Server, *, count: int, config: Mapping[str, str] | None = None) -> None:
    """Create ten topics or more with `count` partitions in all, and write a record to each.
    `config` is that of the topics."""
    topics_count = max(10, count // PARTITIONS_OF_A_TOPIC_MAX)
    for number in range(topics_count):
        create_topic(
            server.bootstrap_server,
            f"partitions-{number}",
            count // topics_count,
            dict(config or {}),
        )
    producer = Producer({"bootstrap.servers": server.bootstrap_server})
    for number in range(topics_count):
        for partition in range(count // topics_count):
            producer.produce(f"partitions-{number}", b"x" * 100, partition=partition)
    assert producer.flush(120) == 0


def _produce(server: Server, *, topic: str, size: int, is_single: bool = False) -> None:
    """Produce `size` bytes; with `is_single` as small records, each in its own batch."""
    producer = Producer(
        {
            "bootstrap.servers": server.bootstrap_server,
            "linger.ms": 5,
            "queue.buffering.max.messages": 1_000_000,
            "log_level": 0,
            **({"batch.num.messages": 1} if is_single else {}),
        }
    )
    value = bytes(SMALL_SIZE if is_single else RECORD_SIZE)
    for _ in range(size // len(value)):
        while True:
            with contextlib.suppress(BufferError):
                producer.produce(topic, value, partition=0)
                break
            producer.poll(0.1)
    assert producer.flush(START_TIMEOUT_S) == 0


def measure(case: Case, server: Server) -> dict[str, float]:
    """End the broker, start it again, and time both."""
    case.disturb(server)
    metrics = {}
    if case.is_killed:
        psutil.Process(server.pid).kill()
        stop(server)
    else:
        began = time.perf_counter()
        stop(server)
        metrics["stop_s"] = time.perf_counter() - began
    metrics["start_s"] = start(server)
    metrics["start_cpu_s"] = cpu_s(server)
    return metrics | _first_seconds(server)


def _first_seconds(server: Server) -> dict[str, float]:
    host, port = server.bootstrap_server.split(":")
    first = threading.Thread(target=_produce, args=(server,), kwargs=FIRST_RECORD)
    first.start()
    waits_ms = []
    with socket.create_connection((host, int(port)), timeout=START_TIMEOUT_S) as connection:
        end = time.perf_counter() + FIRST_SECONDS
        while (sent_s := time.perf_counter()) < end:
            connection.sendall(METADATA_REQUEST)
            (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
            connection.recv(size, socket.MSG_WAITALL)
            waits_ms.append((time.perf_counter() - sent_s) * 1000)
            time.sleep(0.001)
    first.join()
    waits_ms.sort()
    return {"wait_p99_ms": waits_ms[len(waits_ms) * 99 // 100], "wait_max_ms": waits_ms[-1]}


def stop(server: Server) -> None:
    """Stop the server cleanly; its own `stop` may kill it."""
    if isinstance(server, KafkaServer):
        KafkaOracle.stop(server)  # KafkaServer.stop kills
    else:
        server.stop()


def start(server: Server) -> float:
    """Start the server; return the seconds until it answers.

    The server's own polling is too coarse for that.
    """
    began = time.perf_counter()
    starting = threading.Thread(target=server.start)
    starting.start()
    while not _answers(server.bootstrap_server):
        assert time.perf_counter() - began < START_TIMEOUT_S, server.name
        time.sleep(POLL_S)
    seconds = time.perf_counter() - began
    starting.join()
    return seconds


def _answers(address: str) -> bool:
    host, port = address.split(":")
    try:
        with socket.create_connection((host, int(port)), timeout=START_TIMEOUT_S) as connection:
            connection.sendall(METADATA_REQUEST)
            head = connection.recv(12, socket.MSG_WAITALL)
            return len(head) == 12 and struct.unpack_from(">i", head, 8) == (1,)
    except OSError:
        return False


def cpu_s(server: Server) -> float:
    """The CPU-seconds of the server's process since its start, user and system."""
    times = psutil.Process(server.pid).cpu_times()
    return float(times.user + times.system)


def run_case(case: Case, names: Sequence[str], rounds: int, directory: Path) -> dict[str, Any]:
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    with contextlib.ExitStack() as stack:
        servers = []
        for name in names:
            (directory / name).mkdir(parents=True)
            server: Server = SERVERS[name](directory / name)
            stack.callback(server.stop)
            server.start()
            create_topic(server.bootstrap_server, "first", 1, {})
            case.fill(server)
            servers.append(server)
        for round_number in range(rounds + 1):
            for server in servers:
                metrics = measure(case, server)
                if round_number:
                    measured[server.name].append(metrics)
                    figures = " ".join(f"{key}={value:.3f}" for key, value in metrics.items())
                    print(f"{case.name:<28} {server.name:<9} {figures}", file=sys.stderr)
    sides = {name: summarize(runs) for name, runs in measured.items()}
    return {
        "case": case.name,
        "sides": sides,
        "ratios": ratios(sides),
        "ratio_ranges": ratio_ranges(sides),
    }


QUESTION = Question(
    "start_stop", "How long does a broker take to start and to stop?", lambda scale: ()
)


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION.text)
    parser.add_argument("--quick", action="store_true", help="an eighth of the data, one round")
    parser.add_argument("--rounds", type=int, help=f"default {ROUNDS}")
    parser.add_argument("--only", choices=sorted(SERVERS), help="measure one side alone")
    parser.add_argument("--case", help="measure the cases whose name contains this")
    options = parser.parse_args()
    names = [options.only] if options.only else list(SERVERS)
    rounds = options.rounds or (1 if options.quick else ROUNDS)
    document = describe(QUESTION, rounds)
    document["starting"] = []
    for case in build_cases(0.125 if options.quick else 1.0):
        if options.case is None or options.case in case.name:
            with tempfile.TemporaryDirectory(prefix="isotherm-bench-") as directory:
                document["starting"].append(run_case(case, names, rounds, Path(directory)))
    keep(document, is_whole=not (options.quick or options.only or options.case))


if __name__ == "__main__":
    main()
