"""How long does a client that is connected wait while others attack, and how large does the broker
get?

    python -m bench.security_cases [--rounds N] [ATTACK...]

Each attack runs against Isotherm and Apache Kafka in turn, in a process of its own. Its clients
announce more than they send, send more than is read, compress well, read nothing, or subscribe with
costly patterns. One healthy client asks for the API versions again and again. Printed are its
longest wait, and by how much the broker's resident memory grew, at most. A wait of 60 seconds means
that no answer came. Client, attacker and broker share the machine's processors. Brokers are new for
each attack, so that no memory is left of another.

An attack ends after ATTACK_S at the latest, which the table says with a star. A broker that does
not start is tried again on other ports. An attack that fails leaves its cells empty, and the exit
status is 1.

Both have their defaults, and a 1 GiB heap is Kafka's. A PLAINTEXT listener has no ACLs here: each
of its clients is one that has logged in, with all rights.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import resource
import socket
import struct
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from bench.secured_servers import NEW_SERVERS, PLAINTEXT, SASL_PLAINTEXT
from bench.servers import ServerUsage, running
from isotherm.protocol.api_keys import ApiKey
from isotherm.record.batch import build_batch
from isotherm.record.compression import CompressionType
from oracle.raw_requests import ask, receive_frame, request_frame
from oracle.topics import create_topic

TOPIC = "attacked"
PARTITIONS = 10
PAUSE_S = 0.01
HOLD_S = 5.0
"""How long an attacker stays connected after its last byte."""
TIMEOUT_S = 60
ATTACK_S = 90.0
STARTS_MAX = 3
T0 = 1_700_000_000_000
SIZE = struct.Struct(">i")

Addresses: TypeAlias = Mapping[str, str]
Attack: TypeAlias = Callable[[Addresses], None]


class Figures(NamedTuple):
    wait_s: float
    growth_mb: float
    is_cut: bool


class AttackFailedError(Exception):
    """The attack's process has ended with an error, which it has printed."""


def _open(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), TIMEOUT_S)


def _send(connection: socket.socket, frame: bytes) -> None:
    connection.sendall(SIZE.pack(len(frame)) + frame)


def announced_before_login(addresses: Addresses) -> None:
    """560 connections that announce 512 KiB each and send four bytes."""
    opened = []
    for _ in range(560):
        with contextlib.suppress(OSError):
            opened.append(_open(addresses[SASL_PLAINTEXT]))
            opened[-1].sendall(SIZE.pack(512 * 1024) + bytes(4))
    time.sleep(HOLD_S)


def sent_before_login(addresses: Addresses) -> None:
    """1,200 connections before a login that send all but 88 bytes of 512 KiB each."""
    opened, frame = [], SIZE.pack(512 * 1024) + bytes(512 * 1024 - 88)
    for _ in range(1200):
        with contextlib.suppress(OSError):
            connection = _open(addresses[SASL_PLAINTEXT])
            connection.settimeout(0.05)
            opened.append(connection)
            connection.sendall(frame)
    time.sleep(HOLD_S)


def announced_after_login(addresses: Addresses) -> None:
    """Three clients that announce 100 MB each and send four bytes."""
    opened = [_open(addresses[PLAINTEXT]) for _ in range(3)]
    for connection in opened:
        connection.sendall(SIZE.pack(100 << 20) + bytes(4))
    time.sleep(HOLD_S)


def unfinished_requests(addresses: Addresses) -> None:
    """14 clients that send 95 MB of a request of 100 MB each."""
    opened, block = [], bytes(1 << 20)
    for _ in range(14):
        connection = _open(addresses[PLAINTEXT])
        connection.settimeout(1)
        opened.append(connection)
        with contextlib.suppress(OSError):
            connection.sendall(SIZE.pack(100 << 20))
            for _ in range(95):
                connection.sendall(block)
    time.sleep(HOLD_S)


def small_batches_of_much(addresses: Addresses) -> None:
    """Three requests of ten batches of some KB that decompress to 64 MB each."""
    frame = _produce_frame(64 << 20)
    for _ in range(3):
        ask(addresses[PLAINTEXT], frame, timeout_s=TIMEOUT_S)


def searched_by_time(addresses: Addresses) -> None:
    """Three look-ups by time in ten stored batches of some KB that decompress to 60 MB each."""
    ask(addresses[PLAINTEXT], _produce_frame(60_000_000), timeout_s=TIMEOUT_S)
    partitions = [
        {"partition_index": index, "current_leader_epoch": -1, "timestamp": T0}
        for index in range(PARTITIONS)
    ]
    topics = [{"name": TOPIC, "partitions": partitions}]
    fields = {"replica_id": -1, "topics": topics}
    frame = request_frame(ApiKey.LIST_OFFSETS, 7, fields)
    for _ in range(3):
        ask(addresses[PLAINTEXT], frame, timeout_s=TIMEOUT_S)


def _produce_frame(size: int) -> bytes:
    """A batch of one record with so many zeros in each partition."""
    record = (T0, b"", bytes(size), ())
    batch = bytes(build_batch([record], compression=CompressionType.ZSTD)).hex()
    data = [{"index": index, "records": batch} for index in range(PARTITIONS)]
    topic = {"name": TOPIC, "partition_data": data}
    return request_frame(0, 9, {"acks": 1, "timeout": 60_000, "topic_data": [topic]})


def slow_readers(addresses: Addresses) -> None:
    """20 clients that send four fetches of 50 MB each and read nothing."""
    batch = bytes(build_batch([(T0, b"", bytes(900_000), ())])).hex()
    topic = {"name": TOPIC, "partition_data": [{"index": 0, "records": batch}]}
    frame = request_frame(0, 9, {"acks": 1, "timeout": 60_000, "topic_data": [topic]})
    with _open(addresses[PLAINTEXT]) as connection:
        for _ in range(60):
            _send(connection, frame)
            receive_frame(connection)
    partition = {
        "partition": 0,
        "fetch_offset": 0,
        "partition_max_bytes": 50 << 20,
        "current_leader_epoch": -1,
        "last_fetched_epoch": -1,
    }
    fields = {"max_wait": 0, "min_bytes": 1, "max_bytes": 50 << 20, "session_epoch": -1}
    topics = [{"topic": TOPIC, "partitions": [partition]}]
    frame = request_frame(1, 12, {**fields, "topics": topics})
    opened = []
    for _ in range(20):
        connection = _open(addresses[PLAINTEXT])
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        opened.append(connection)
        for _ in range(4):
            _send(connection, frame)
    time.sleep(HOLD_S)


def costly_patterns(addresses: Addresses) -> None:
    """20 members of a group with a costly pattern each."""
    for number in range(20):
        fields = {
            "group_id": "attacked",
            "member_id": str(uuid.UUID(int=number)),
            "member_epoch": 0,
            "subscribed_topic_regex": "(x{1,1000})" * 9 + f"|{number}",
            "rebalance_timeout": 600_000,
            "topic_partitions": [],
        }
        frame = request_frame(ApiKey.CONSUMER_GROUP_HEARTBEAT, 1, fields)
        with contextlib.suppress(OSError):
            ask(addresses[PLAINTEXT], frame, timeout_s=TIMEOUT_S)


ATTACKS: Sequence[Attack] = (
    announced_before_login,
    sent_before_login,
    announced_after_login,
    unfinished_requests,
    small_batches_of_much,
    searched_by_time,
    slow_readers,
    costly_patterns,
)


def measure(name: str, attack: Attack, directory: Path) -> Figures:
    """One attack on a new broker of that name."""
    with running([name], directory, NEW_SERVERS) as (server,):
        create_topic(server.bootstrap_server, TOPIC, PARTITIONS, {"retention.ms": "-1"})
        usage = ServerUsage(server)
        frame = request_frame(ApiKey.API_VERSIONS, 0, {})
        with _open(server.bootstrap_server) as client:
            _send(client, frame)
            receive_frame(client)
            before_mb = largest_mb = usage.resident_mb()
            wait_s = 0.0
            process = multiprocessing.get_context("fork").Process(
                target=attack, args=(server.listeners,), daemon=True
            )
            process.start()
            end_s, is_cut = time.monotonic() + ATTACK_S, False
            try:
                while process.is_alive() and not is_cut:
                    is_cut = time.monotonic() > end_s
                    began_s = time.perf_counter()
                    try:
                        _send(client, frame)
                        receive_frame(client)
                    except TimeoutError:
                        wait_s = float(TIMEOUT_S)
                        break
                    wait_s = max(wait_s, time.perf_counter() - began_s)
                    largest_mb = max(largest_mb, usage.resident_mb())
                    time.sleep(PAUSE_S)
                else:
                    if not is_cut and process.exitcode:
                        raise AttackFailedError(attack.__name__)
            finally:
                process.kill()
                process.join()
    return Figures(wait_s, largest_mb - before_mb, is_cut)


def _measure_once_started(name: str, attack: Attack) -> Figures | None:
    """None if the attack or the broker has failed, which is printed."""
    for _ in range(STARTS_MAX):
        with tempfile.TemporaryDirectory(prefix="isotherm-attack-") as folder:
            try:
                return measure(name, attack, Path(folder))
            except (RuntimeError, OSError, AttackFailedError) as error:
                # Another program may have taken a port that was free.
                print(f"{name}, {attack.__name__}: {error!r}", file=sys.stderr, flush=True)
    return None


def _worst(figures: Sequence[Figures]) -> tuple[str, str]:
    if not figures:
        return "", ""
    star = "*" if any(figure.is_cut for figure in figures) else ""
    wait_s = max(figure.wait_s for figure in figures)
    return f"{wait_s:.2f}{star}", f"{max(figure.growth_mb for figure in figures):.0f}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=1, help="the largest figures are printed")
    attacks = {attack.__name__: attack for attack in ATTACKS}
    parser.add_argument("attacks", nargs="*", metavar="attack", help=", ".join(attacks))
    options = parser.parse_args(arguments)
    unknown = set(options.attacks) - attacks.keys()
    if unknown:
        parser.error(f"no such attack: {', '.join(sorted(unknown))}")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print("| attack | Isotherm waits, s | Kafka waits, s | Isotherm grows, MB | Kafka grows, MB |")
    print("|---|---|---|---|---|", flush=True)
    has_failed = False
    for attack in [attacks[name] for name in options.attacks] or ATTACKS:
        cells = {}
        for name in NEW_SERVERS:
            rounds = [_measure_once_started(name, attack) for _ in range(options.rounds)]
            has_failed |= None in rounds
            cells[name] = _worst([outcome for outcome in rounds if outcome is not None])
        (wait, growth), (kafka_wait, kafka_growth) = cells["isotherm"], cells["kafka"]
        text = " ".join((attack.__doc__ or "").split()).rstrip(".")
        print(f"| {text} | {wait} | {kafka_wait} | {growth} | {kafka_growth} |", flush=True)
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main())
