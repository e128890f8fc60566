"""How much longer does a healthy client wait while others send malformed or very large requests?

One client writes a record, reads it again, pauses, and repeats. A latency covers both requests.
Another process meanwhile attacks the broker in one of several ways, as fast as answers come.
Client, attacker and server share the machine's processors, so part of the client's wait is the
attacker's own work.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import socket
import statistics
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

from bench import load
from bench.harness import Case, Question, main
from bench.logins import connect
from bench.servers import Server
from isotherm.record.batch import build_batch
from oracle.raw_requests import ask, read_answer, request_frame
from oracle.topics import create_topic, delete_topic

RECORDED = Path(__file__).parents[1] / "tests" / "fault" / "recorded_requests.txt"
TOPIC = "healthy"
DURATION_S = 4.0
PAUSE_S = 0.002
VALUE = bytes(1000)
PRODUCE, FETCH, METADATA, DESCRIBE_CONFIGS = 0, 1, 3, 32
# Isotherm refuses more, Kafka does not.
THINGS = 19_000


class HealthyClient:
    """Writes to one topic and reads it again, over one connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._answers = self._socket.makefile("rb")
        self._batch = bytes(build_batch([(1_700_000_000_000, b"key", VALUE, ())])).hex()

    def write_and_read(self) -> None:
        topic = {"name": TOPIC, "partition_data": [{"index": 0, "records": self._batch}]}
        fields = {"acks": 1, "timeout": 30_000, "topic_data": [topic]}
        answer = read_answer(PRODUCE, 9, self._ask(request_frame(PRODUCE, 9, fields)))
        offset = answer.responses[0].partition_responses[0].base_offset
        partition = {
            "partition": 0,
            "fetch_offset": offset,
            "partition_max_bytes": 100_000,
            "current_leader_epoch": -1,
            "last_fetched_epoch": -1,
        }
        topics = [{"topic": TOPIC, "partitions": [partition]}]
        fields = {"max_wait": 1000, "min_bytes": 1, "max_bytes": 100_000, "session_epoch": -1}
        fetched = self._ask(request_frame(FETCH, 12, {**fields, "topics": topics}))
        assert len(fetched) > len(VALUE)

    def _ask(self, frame: bytes) -> bytes:
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)
        (size,) = struct.unpack(">i", self._answers.read(4))
        return self._answers.read(size)


def broken_requests(server: str, rng: random.Random) -> None:
    """Send recorded requests of real clients with three bytes changed, each on a connection of
    its own.
    """
    frames = [bytes.fromhex(line) for line in RECORDED.read_text(encoding="ascii").split()]
    while True:
        frame = bytearray(rng.choice(frames))
        for _ in range(3):
            frame[rng.randrange(8, len(frame))] = rng.randrange(256)
        with contextlib.suppress(OSError):
            ask(server, bytes(frame), timeout_s=0.05)


def long_requests(server: str, rng: random.Random) -> None:
    """Valid requests for thousands of items."""
    topics = [{"name": f"absent-{number}"} for number in range(THINGS)]
    resources = [{"resource_type": 2, "resource_name": TOPIC}] * THINGS
    frames = [
        request_frame(METADATA, 12, {"topics": topics, "allow_auto_topic_creation": False}),
        request_frame(DESCRIBE_CONFIGS, 4, {"resources": resources}),
    ]
    while True:
        ask(server, rng.choice(frames), timeout_s=60)


def large_nonsense(server: str, rng: random.Random) -> None:
    """A valid header, and ten megabytes of garbage."""
    while True:
        filler = bytes([rng.choice((0, 1, 255))])
        with contextlib.suppress(OSError):
            ask(server, request_frame(METADATA, 12, {})[:15] + filler * 10_000_000, timeout_s=60)


Attack: TypeAlias = Callable[[str, random.Random], None]
ATTACKS: dict[str, Attack | None] = {
    "none": None,
    "broken requests": broken_requests,
    "requests for 19,000 things": long_requests,
    "10 MB of nonsense": large_nonsense,
}


@contextlib.contextmanager
def attacked(attack: Callable[..., None] | None, *arguments: object) -> Iterator[None]:
    """Run `attack(*arguments)` in a process of its own while the block runs."""
    if attack is None:
        yield
        return
    process = multiprocessing.get_context("spawn").Process(
        target=attack, args=arguments, daemon=True
    )
    process.start()
    try:
        time.sleep(1)  # it starts an interpreter first
        yield
        assert process.is_alive(), "the attacker has given up"
    finally:
        process.kill()
        process.join()


def measure(server: Server, *, attack: Attack | None, duration_s: float) -> load.Metrics:
    with attacked(attack, server.bootstrap_server, random.Random(1)):
        client = HealthyClient(connect(server.bootstrap_server, {}))
        client.write_and_read()
        latencies = []
        end_s = time.perf_counter() + duration_s
        while (started_s := time.perf_counter()) < end_s:
            client.write_and_read()
            latencies.append((time.perf_counter() - started_s) * 1000)
            time.sleep(PAUSE_S)
    return figures(latencies, duration_s)


def figures(latencies: Sequence[float], duration_s: float) -> load.Metrics:
    """Rates and latency percentiles of a healthy client, from latencies in ms."""
    percentiles = statistics.quantiles(latencies, n=100)
    return {
        "records_per_s": len(latencies) / duration_s,
        "mb_per_s": len(latencies) * len(VALUE) / 1e6 / duration_s,
        "latency_p50_ms": percentiles[49],
        "latency_p99_ms": percentiles[98],
        "latency_max_ms": max(latencies),
    }


def prepare(server: Server) -> None:
    create_topic(server.bootstrap_server, TOPIC, 1, {"retention.ms": "-1"})


def finish(server: Server) -> None:
    delete_topic(server.bootstrap_server, TOPIC)


def build_cases(scale: float) -> Sequence[Case]:
    """One case for each of ATTACKS."""
    duration_s = DURATION_S * scale
    return [
        Case(
            name=f"attacked by {name}" if attack else "no attack",
            parameters={"duration_s": duration_s, "record_size": len(VALUE)},
            bytes_moved=1_000_000,
            prepare=prepare,
            measure=partial(measure, attack=attack, duration_s=duration_s),
            finish=finish,
        )
        for name, attack in ATTACKS.items()
    ]


QUESTION = Question(
    "hostile_clients",
    "How much longer does a healthy client wait while others send malformed or very large"
    " requests?",
    build_cases,
)

if __name__ == "__main__":
    main(QUESTION)
