"""How long does the first record after a start wait for its acknowledgement?

    quiet           nothing else runs on the machine
    busy            two loops beside it take all that two processors have
    not compiled    quiet, and the broker finds no machine code of its kernels; Isotherm alone

A round starts the broker, waits until it answers a Metadata request, and then times one record:
from the first byte that a new connection sends until the answer. The client is a single raw
connection that knows its partition, so that the broker is timed and not a client's start.
Ninety-nine records follow; the slowest of them shows whether the first one's wait was merely moved.
The topic exists before the rounds, with a record in it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.harness import Question, describe, keep, ratio_ranges, ratios, summarize
from bench.servers import SERVERS, IsothermServer, Server
from bench.start_stop import start, stop
from isotherm.kernels import machine_code
from isotherm.record.batch import NewRecord, build_batch
from oracle.topics import create_topic

ROUNDS = 7
BUSY_LOOPS = 2
RECORDS_AFTER = 99
TIMEOUT_S = 60
TOPIC = "first"
QUESTION = Question(
    "first_record",
    "How long does the first record after a start wait for its acknowledgement?",
    lambda scale: (),
)
# Errors of a broker that does not lead its partitions yet: UNKNOWN_TOPIC_OR_PARTITION,
# LEADER_NOT_AVAILABLE, NOT_LEADER_OR_FOLLOWER. The record is sent again, as clients do, but sooner.
NOT_YET = (3, 5, 6)
CASES = ("quiet", "busy", "not compiled")


def produce_request(correlation_id: int) -> bytes:
    """Produce 8 of one record of 100 bytes to partition 0, acks=1."""
    records = bytes(
        build_batch([NewRecord(int(time.time() * 1000), b"key", bytes(100))], base_offset=0)
    )
    topic = TOPIC.encode()
    body = struct.pack(">hhihch", 0, 8, correlation_id, 1, b"b", -1)  # header 1, transactional id
    body += struct.pack(">hii", 1, 30_000, 1)
    body += struct.pack(">h", len(topic)) + topic
    body += struct.pack(">iii", 1, 0, len(records)) + records
    return struct.pack(">i", len(body)) + body


def seconds_to_acknowledgement(connection: socket.socket, number: int) -> float:
    request = produce_request(number)
    began = time.perf_counter()
    while True:
        connection.sendall(request)
        (size,) = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))
        answer = connection.recv(size, socket.MSG_WAITALL)
        # correlation id, topics, name, partitions, partition, error code
        (error_code,) = struct.unpack_from(">h", answer, 4 + 4 + 2 + len(TOPIC) + 4 + 4)
        if not error_code:
            return time.perf_counter() - began
        if error_code not in NOT_YET or time.perf_counter() - began > TIMEOUT_S:
            raise RuntimeError(f"record is refused error_code={error_code}")
        time.sleep(0.001)


def produce_first(server: Server) -> dict[str, float]:
    host, port = server.bootstrap_server.split(":")
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_S) as connection:
        waits = [
            seconds_to_acknowledgement(connection, number) for number in range(RECORDS_AFTER + 1)
        ]
    return {
        "first_record_ms": waits[0] * 1000,
        "slowest_after_ms": max(waits[1:]) * 1000,
        "hundred_records_ms": sum(waits) * 1000,
    }


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@contextlib.contextmanager
def nothing_compiled(directory: Path) -> Iterator[None]:
    """Run brokers from a copy of the package without compiled kernels."""
    package = Path(machine_code.__file__).parents[1]
    shutil.copytree(package, directory / "isotherm", ignore=shutil.ignore_patterns("__pycache__"))
    before = dict(os.environ)
    os.environ.update(PYTHONPATH=str(directory), PYTHONDONTWRITEBYTECODE="1")
    os.environ.update(XDG_CACHE_HOME=str(directory / "cache"), TMPDIR=str(directory))
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def forget_what_is_compiled(directory: Path) -> None:
    for folder in directory.rglob("__pycache__"):
        shutil.rmtree(folder, ignore_errors=True)


def run_case(case: str, names: Sequence[str], rounds: int, directory: Path) -> dict[str, Any]:
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    with contextlib.ExitStack() as stack:
        package = directory / "package"
        if case == "not compiled":
            stack.enter_context(nothing_compiled(package))
        servers = []
        for name in names:
            (directory / name).mkdir(parents=True)
            server: Server = SERVERS[name](directory / name)
            stack.callback(server.stop)
            server.start()
            create_topic(server.bootstrap_server, TOPIC, 1, {})
            produce_first(server)
            servers.append(server)
        for round_number in range(rounds + 1):
            for server in servers:
                stop(server)
                forget_what_is_compiled(package)
                with busy_loops(BUSY_LOOPS if case == "busy" else 0):
                    start(server)
                    metrics = produce_first(server)
                if round_number:
                    measured[server.name].append(metrics)
                    figures = " ".join(f"{key}={value:.1f}" for key, value in metrics.items())
                    print(f"{case:<14} {server.name:<9} {figures}", file=sys.stderr)
    sides = {name: summarize(runs) for name, runs in measured.items()}
    return {
        "case": case,
        "sides": sides,
        "ratios": ratios(sides),
        "ratio_ranges": ratio_ranges(sides),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION.text)
    parser.add_argument("--quick", action="store_true", help="one round, not stored")
    parser.add_argument("--rounds", type=int, help=f"default {ROUNDS}")
    parser.add_argument("--only", choices=sorted(SERVERS), help="measure one side alone")
    parser.add_argument("--case", choices=CASES)
    options = parser.parse_args()
    rounds = options.rounds or (1 if options.quick else ROUNDS)
    document = describe(QUESTION, rounds)
    document["results"] = []
    for case in [options.case] if options.case else CASES:
        names = [options.only] if options.only else list(SERVERS)
        if case == "not compiled":
            names = [IsothermServer.name]
        with tempfile.TemporaryDirectory(prefix="isotherm-bench-") as directory:
            document["results"].append(run_case(case, names, rounds, Path(directory)))
    keep(document, is_whole=not (options.quick or options.only or options.case))


if __name__ == "__main__":
    main()
