"""What is the longest time that a healthy client waits, and the most memory that the broker takes,
whatever others send?

    python -m bench.hostile_search --frames 100000 --seed 1
    python -m bench.hostile_search --replay 1:317

A search, not a comparison: random requests of all APIs and versions, with sizes, counts, repeats,
compression ratios and patterns at their extremes, go to a broker in groups: on one and on many
connections, before and after a login, with rights and without; whole, cut off, slowly, and without
reading the answers. A client that has logged in asks for the served versions meanwhile, from
another process. Each group has a seed of its own, so the worst ones can be sent again alone. The
exit code is 1 if the client got no answer to a request, or the broker ended.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import multiprocessing
import random
import select
import socket
import struct
import sys
import tempfile
import time
import typing
import uuid
from collections.abc import Iterator, Sequence
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import TopicCollection
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from kio.static.primitive import Records

from bench import logins
from isotherm.protocol.api_keys import ApiKey, api_name
from isotherm.record.batch import build_batch
from isotherm.record.compression import CompressionType
from isotherm.testing.broker_process import BrokerProcess
from isotherm.testing.local_servers import free_ports
from oracle.raw_requests import receive_frame, request_frame
from tests.support.request_maker import REQUESTS, TOPIC, RequestMaker

FRAMES_OF_A_GROUP = 200
HEALTHY_PAUSE_S = 0.005
HEALTHY_TIMEOUT_S = 60.0
WORST_KEPT = 10
# A frame is not sent if it is larger: the search is for what a few bytes do.
FRAME_SIZE_MAX = 2 * 1024 * 1024
USERS = {"admin": "a", "trent": "t", "mallory": "m"}
_JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required"

# Of all arrays of a frame together.
ELEMENTS_MAX = 10_000
COUNTS = (0, 1, 1, 2, 3, 50, 1000, 9000)
TEXTS = (
    TOPIC,
    "",
    "group",
    "1",
    "a" * 249,
    "b" * 32_000,
    "(a+)+$",
    ".*",
    "x{1,1000}{1,1000}",
    "\0\n\x1b[2J",
    "__consumer_offsets",
)
NUMBERS = (
    -(2**63),
    -(2**31),
    -(2**15),
    -128,
    -2,
    -1,
    0,
    1,
    2,
    127,
    2**15 - 1,
    2**31 - 1,
    2**63 - 1,
)


class ExtremeRequestMaker(RequestMaker):
    """Random requests with values at the ends of their ranges, and long arrays of one item."""

    def __init__(self, rng: random.Random, topic_id: uuid.UUID) -> None:
        super().__init__(rng, topic_id)
        self._records = _extreme_batches()
        self._left = 0

    def frame(self, api_key: int, version: int) -> bytes:
        self._left = ELEMENTS_MAX
        return super().frame(api_key, version)

    def _value(self, annotation: Any) -> Any:
        if typing.get_origin(annotation) is tuple:
            item = typing.get_args(annotation)[0]
            count = min(self._rng.choice(COUNTS), self._left)
            # What is inside is there as many times.
            self._left //= max(1, count)
            if self._rng.random() < 0.5:
                return tuple(self._value(item) for _ in range(min(count, 20)))
            return (self._value(item),) * count if count else ()
        return super()._value(annotation)

    def _leaf(self, annotation: Any) -> Any:
        rng = self._rng
        # Long values and long arrays, not both: a frame has FRAME_SIZE_MAX.
        if self._left < ELEMENTS_MAX // 100:
            return super()._leaf(annotation)
        if annotation is Records:
            return rng.choice(self._records)
        if isinstance(annotation, type) and issubclass(annotation, str):
            with contextlib.suppress(TypeError, ValueError):
                return annotation(rng.choice(TEXTS))
        if isinstance(annotation, type) and issubclass(annotation, bytes):
            return rng.choice((b"", bytes(100), bytes(60_000), rng.randbytes(500)))
        return super()._leaf(annotation)

    def _number(self, annotation: Any) -> Any:
        for number in self._rng.sample(NUMBERS, len(NUMBERS)):
            with contextlib.suppress(TypeError, ValueError, OverflowError):
                return annotation(number)
        return super()._number(annotation)


def _extreme_batches() -> list[bytes]:
    """Batches that are small as they are sent, and large, or many records, when they are
    decompressed.
    """
    batches = [bytes(build_batch([(1_700_000_000_000, b"k", b"v", ())]))]
    for codec in CompressionType:
        for size in (100_000, 900_000, 30_000_000):
            records = [(1_700_000_000_000, None, bytes(size), ())]
            if codec or size < 1_000_000:
                batches.append(bytes(build_batch(records, compression=codec)))
        many = [(1_700_000_000_000, None, None, ())] * 20_000
        batches.append(bytes(build_batch(many, compression=codec)))
    return [each for each in batches if len(each) < FRAME_SIZE_MAX]


@dataclasses.dataclass(frozen=True)
class Finding:
    """A group of frames, and what it did."""

    replay: str
    wait_ms: float
    memory_mb: float
    frames: int
    user: str
    apis: tuple[str, ...]


class Group:
    """One group of frames, drawn from its seed alone."""

    def __init__(self, seed: str, topic_id: uuid.UUID) -> None:
        self.seed = seed
        self._rng = random.Random(seed)
        self._maker = ExtremeRequestMaker(self._rng, topic_id)
        self.user = self._rng.choice(("", "mallory", "trent"))
        self._kinds = self._rng.sample(REQUESTS, self._rng.choice((1, 3, 30)))
        self.apis = tuple(sorted({api_name(key) for key, _ in self._kinds}))
        self.frames = 0

    def payloads(self) -> list[bytes]:
        """The bytes for each connection."""
        rng = self._rng
        payloads = []
        left = FRAMES_OF_A_GROUP
        for _ in range(rng.choice((1, 4, 40))):
            parts = []
            for _ in range(min(left, rng.choice((1, 5, 50)))):
                parts.append(self._framed())
                left -= 1
            payloads.append(b"".join(parts))
        self.frames = FRAMES_OF_A_GROUP - left
        return payloads

    def _framed(self) -> bytes:
        rng = self._rng
        key, version = rng.choice(self._kinds)
        try:
            frame = self._maker.frame(key, version)
        except (ValueError, OverflowError, struct.error):
            # A value has no form in this version, such as a text above 32 KiB.
            frame = rng.randbytes(100)
        if len(frame) > FRAME_SIZE_MAX:
            frame = frame[:1000]
        damage = rng.randrange(8)
        if damage == 0:
            frame = self._maker.mutant(frame) if len(frame) > 8 else frame
        announced = (
            rng.choice((2**31 - 1, 100 * 2**20, 500_000, len(frame) + 1))
            if damage == 1
            else len(frame)
        )
        return struct.pack(">i", announced) + frame

    def send(self, address: str) -> None:
        """Send the group's frames, and close the connections after some answers, or after none."""
        payloads, reads = self.payloads(), self._rng.random() < 0.7
        with contextlib.ExitStack() as closing:
            waiting: dict[socket.socket, memoryview] = {}
            for payload in payloads:
                with contextlib.suppress(OSError, AssertionError):
                    client = connect(address, self.user)
                    closing.callback(client.close)
                    client.setblocking(False)
                    waiting[client] = memoryview(payload)
            end_s = time.monotonic() + 1.0
            while waiting and time.monotonic() < end_s:
                readable, writable, _ = select.select(
                    list(waiting) if reads else [], list(waiting), [], 0.05
                )
                for client in readable:
                    with contextlib.suppress(BlockingIOError, ConnectionError):
                        client.recv(1 << 20)
                for client in writable:
                    try:
                        waiting[client] = waiting[client][client.send(waiting[client]) :]
                    except BlockingIOError:
                        continue
                    except OSError:
                        del waiting[client]
                        continue
                    if not waiting[client]:
                        del waiting[client]
            if reads:
                select.select([], [], [], 0.02)


def connect(address: str, user: str) -> socket.socket:
    """A connection of the user, or, for the empty name, one that has not logged in."""
    if user:
        login = {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.username": user,
            "sasl.password": USERS[user],
        }
        return logins.connect(address, login)
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), logins.TIMEOUT_S)


def stay_healthy(address: str, longest_s: Synchronized[float], lost: Synchronized[int]) -> None:
    """Ask again and again, and note the longest wait. Runs in a process of its own."""
    frame = request_frame(
        ApiKey.API_VERSIONS, 3, {"client_software_name": "h", "client_software_version": "1"}
    )
    client = connect(address, "admin")
    client.settimeout(HEALTHY_TIMEOUT_S)
    while True:
        began_s = time.monotonic()
        try:
            client.sendall(struct.pack(">i", len(frame)) + frame)
            receive_frame(client)
        except (OSError, EOFError, AssertionError):
            lost.value += 1
            client = connect(address, "admin")
            client.settimeout(HEALTHY_TIMEOUT_S)
            continue
        took_s = time.monotonic() - began_s
        with longest_s.get_lock():
            longest_s.value = max(longest_s.value, took_s)
        time.sleep(HEALTHY_PAUSE_S)


@contextlib.contextmanager
def attacked_broker(folder: Path) -> Iterator[tuple[BrokerProcess, str, uuid.UUID]]:
    """A broker with logins and a topic, its address, and the topic's id."""
    address = f"127.0.0.1:{free_ports(1)[0]}"
    users = " ".join(f'user_{name}="{password}"' for name, password in USERS.items())
    broker = BrokerProcess(
        folder,
        {
            "listeners": f"SASL_PLAINTEXT://{address}",
            "inter.broker.listener.name": "SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
                f'{_JAAS} username="admin" password="{USERS["admin"]}" {users};'
            ),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:admin",
            "connection.failed.authentication.delay.ms": "0",
        },
    )
    try:
        admin = AdminClient(
            {
                "bootstrap.servers": address,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "PLAIN",
                "sasl.username": "admin",
                "sasl.password": USERS["admin"],
            }
        )
        admin.create_topics([NewTopic(TOPIC, 2, 1)])[TOPIC].result(60)
        rights = [
            AclBinding(
                kind,
                name,
                ResourcePatternType.LITERAL,
                "User:trent",
                "*",
                AclOperation.ALL,
                AclPermissionType.ALLOW,
            )
            for kind, name in (
                (ResourceType.TOPIC, TOPIC),
                (ResourceType.GROUP, "*"),
                (ResourceType.TRANSACTIONAL_ID, "*"),
            )
        ]
        for future in admin.create_acls(rights).values():
            future.result(60)
        described = admin.describe_topics(TopicCollection([TOPIC]))[TOPIC].result(60)
        yield broker, address, _as_uuid(described.topic_id)
    finally:
        broker.kill()


def _as_uuid(topic_id: Any) -> uuid.UUID:
    high = topic_id.get_most_significant_bits() & (2**64 - 1)
    low = topic_id.get_least_significant_bits() & (2**64 - 1)
    return uuid.UUID(int=high << 64 | low)


class Search:
    def __init__(self, folder: Path) -> None:
        self.findings: list[Finding] = []
        self.frames = 0
        self._folder = folder

    def run(self, seed: int, frames: int, only: int | None) -> dict[str, Any]:
        context = multiprocessing.get_context("spawn")
        longest_s, lost = context.Value("d", 0.0), context.Value("i", 0)
        with attacked_broker(self._folder) as (broker, address, topic_id):
            healthy = context.Process(
                target=stay_healthy, args=(address, longest_s, lost), daemon=True
            )
            healthy.start()
            try:
                process = psutil.Process(broker.process.pid)
                quiet_mb = process.memory_info().rss / 2**20
                groups = [only] if only is not None else range(1 << 62)
                for number in groups:
                    if self.frames >= frames or broker.has_ended:
                        break
                    self._try(Group(f"{seed}:{number}", topic_id), address, process, longest_s)
            finally:
                healthy.kill()
            log = broker.log_text
            return {
                "seed": seed,
                "frames": self.frames,
                "broker_ended": broker.has_ended,
                "requests_lost": lost.value,
                "memory_mb_quiet": round(quiet_mb),
                "wait_ms": self._worst("wait_ms"),
                "memory_mb": self._worst("memory_mb"),
                "errors_in_log": sorted(
                    {line[24:200] for line in log.splitlines() if " ERROR " in line}
                )[:WORST_KEPT],
            }

    def _try(
        self, group: Group, address: str, process: psutil.Process, longest_s: Synchronized[float]
    ) -> None:
        longest_s.value = 0.0
        group.send(address)
        # Until the healthy client has asked once more, after the last of the frames.
        end_s = time.monotonic() + HEALTHY_TIMEOUT_S
        before = longest_s.value
        while longest_s.value == before == 0.0 and time.monotonic() < end_s:
            time.sleep(HEALTHY_PAUSE_S)
        memory_mb = process.memory_info().rss / 2**20 if process.is_running() else 0.0
        self.frames += group.frames
        found = Finding(
            group.seed,
            round(longest_s.value * 1000, 1),
            round(memory_mb),
            group.frames,
            group.user,
            group.apis,
        )
        self.findings.append(found)
        # Only the worst are kept: a night has hundreds of thousands of groups.
        if len(self.findings) > 100 * WORST_KEPT:
            self.findings = [*self._kept("wait_ms"), *self._kept("memory_mb")]

    def _kept(self, figure: str) -> list[Finding]:
        return sorted(self.findings, key=lambda each: -getattr(each, figure))[:WORST_KEPT]

    def _worst(self, figure: str) -> list[dict[str, Any]]:
        return [dataclasses.asdict(each) for each in dict.fromkeys(self._kept(figure))]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument(
        "--frames", type=int, default=100_000, help="how many frames to send at the least"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--replay", metavar="SEED:GROUP", help="send one group again")
    options = parser.parse_args(arguments)
    seed, only = options.seed, None
    if options.replay:
        seed, only = map(int, options.replay.split(":"))
    with tempfile.TemporaryDirectory(prefix="isotherm-search-") as folder:
        document = Search(Path(folder)).run(seed, options.frames, only)
    json.dump(document, sys.stdout, indent=1)
    sys.stdout.write("\n")
    return 1 if document["broker_ended"] or document["requests_lost"] else 0


if __name__ == "__main__":
    sys.exit(main())
