"""What is the longest time that a healthy client waits, and the most memory that the broker takes,
whatever others send?

    python -m bench.hostile_search --frames 100000 --seed 1
    python -m bench.hostile_search --replay .bench/hostile-search/1-wait.json

A search, not a comparison: hundreds of connections at once, over each kind of listener, before and
after a login, with rights and without, send requests of all APIs and versions, with sizes, counts,
repeats, compression ratios and patterns at their extremes; whole, cut off, slowly, half closed and
without reading the answers. Others do not end their TLS handshake, send what is none, or want a
second one or new keys again and again. A client
that has logged in asks for the served versions meanwhile, and a new one logs in now and then, both
from another process. The plans that were carried out when one waited longest, when a step of the
event loop took the most CPU time, and when the broker was largest, are kept in files that
`--replay` sends again. The exit code is 1 if the client got no answer to a request, or the broker
ended, or wrote a line of the level ERROR, or took more memory than docs/security.md says
(`memory_bound`).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import multiprocessing
import socket
import struct
import sys
import tempfile
import time
import uuid
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
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

from bench import logins
from isotherm.broker.server.net.connection import (
    FRAME_SIZE_WITHOUT_MEMORY,
    READ_SIZE_WITHOUT_MEMORY,
    SHARED_SIZE_MAX,
)
from isotherm.config.broker import BrokerConfig
from isotherm.config.server_properties import parse_broker_config
from isotherm.protocol.api_keys import ApiKey
from isotherm.record.decompression_memory import DECODER_COPIES, DECOMPRESSION_MEMORY_MAX
from isotherm.segment.cleaning.chunk import DECODED_SIZE_MAX
from isotherm.testing.broker_process import BrokerProcess
from isotherm.testing.local_servers import free_ports
from oracle.raw_requests import receive_frame, request_frame
from tests.support.certificates import issue
from tests.support.hostile_crowd import USERS, Crowd, Plan, Planner, read_plans, write_plans
from tests.support.request_maker import TOPIC
from tests.support.watched_broker import LOOP_STEPS_FILE, PROGRAM, read_steps

CONNECTIONS = 300
# How often the figures are looked at, and how long before that a plan may have caused them.
LOOK_S = 0.5
SUSPECT_S = 2.0
SUSPECTS_MAX = 3000
KEPT_IF_WORSE = 1.1
# Extreme frames that are replaced at each look.
RENEWED = 3
HEALTHY_PAUSE_S = 0.005
REQUESTS_PER_LOGIN = 20
HEALTHY_TIMEOUT_S = 60.0
# The attackers' address is another one.
OTHER_HOST = "127.0.0.2"
# How long the healthy client waits: for an answer, for a login from an address of its own, and for
# one from the attackers' address. By the clock, and in CPU time that the broker's loop spent
# meanwhile, in which the load of the machine is not.
WAITS = tuple(
    f"{name}{suffix}" for name in ("wait", "login", "neighbour_login") for suffix in ("", "_loop")
)
KEPT_IN = Path(".bench/hostile-search")
LISTENERS = ("PLAINTEXT", "SASL_PLAINTEXT", "SSL", "SASL_SSL")
# What the process loads when it is first needed: kernels, their compiler's runtime, libraries.
LOADED_LATER_BYTES = 160 * 2**20
# What clients leave behind (topics, groups, members, producers) has bounds of its own, in number. A
# search leaves less than this.
STATE_BYTES = 128 * 2**20
# A connection with TLS: docs/security.md.
CONNECTION_BYTES = 100_000
_JAAS = "org.apache.kafka.common.security.plain.PlainLoginModule required"


@dataclasses.dataclass(frozen=True)
class Target:
    """A broker that is attacked, with a topic."""

    broker: BrokerProcess
    addresses: Mapping[str, str]
    topic_id: uuid.UUID
    steps_file: Path
    config: BrokerConfig


@contextlib.contextmanager
def attacked_broker(folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[Target]:
    """A broker with each kind of listener, and users with rights and without. `settings` override
    its own.
    """
    addresses = {
        name: f"localhost:{port}"
        for name, port in zip(LISTENERS, free_ports(len(LISTENERS)), strict=True)
    }
    folder.mkdir(exist_ok=True)
    users = " ".join(f'user_{name}="{password}"' for name, password in USERS.items())
    steps_file = folder / "steps"
    steps_file.touch()
    login = f'{_JAAS} username="admin" password="{USERS["admin"]}" {users};'
    texts = {
        "listeners": ",".join(f"{name}://{address}" for name, address in addresses.items()),
        "inter.broker.listener.name": "SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": login,
        "listener.name.sasl_ssl.plain.sasl.jaas.config": login,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(issue("localhost").write_pem(folder / "server.pem")),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:admin",
        **(settings or {}),
    }
    broker = BrokerProcess(
        folder, texts, program=PROGRAM, environment={LOOP_STEPS_FILE: str(steps_file)}
    )
    try:
        topic_id = _prepare(addresses["SASL_PLAINTEXT"])
        yield Target(broker, addresses, topic_id, steps_file, parse_broker_config(texts))
    finally:
        broker.kill()


def memory_bound(config: BrokerConfig, quiet: int, connections: int) -> int:
    """The most memory in bytes that a broker takes while so many connections attack it.

    `quiet` is what it took before. The sum is that of docs/security.md.
    """
    requests = config.queued_max_request_bytes + config.socket_request_max_bytes + SHARED_SIZE_MAX
    before_login = config.queued_max_unauthenticated_request_bytes + min(
        connections, config.max_connections_unauthenticated
    ) * (READ_SIZE_WITHOUT_MEMORY + FRAME_SIZE_WITHOUT_MEMORY)
    answers = config.queued_max_response_bytes + config.connection_write_buffer_max_bytes
    own = quiet + LOADED_LATER_BYTES + STATE_BYTES + connections * CONNECTION_BYTES
    return own + requests + before_login + answers + decompression_bound(config)


def decompression_bound(config: BrokerConfig) -> int:
    """The most memory in bytes of batches that are decompressed for requests, and by the cleaner.

    Not of batches that were stored when `message.decompressed.max.bytes` was higher.
    """
    largest = DECODER_COPIES * config.message_decompressed_max_bytes
    cleaned = config.cleaner.log_cleaner_threads * max(DECODED_SIZE_MAX, largest)
    return max(DECOMPRESSION_MEMORY_MAX, largest) + cleaned


def _prepare(address: str) -> uuid.UUID:
    """Make the topic, and rights for trent and for whoever needs no login. They may not delete it:
    that would end the search.
    """
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
    allow, deny = AclPermissionType.ALLOW, AclPermissionType.DENY
    rights = [
        AclBinding(
            kind, name, ResourcePatternType.LITERAL, f"User:{user}", "*", operation, permission
        )
        for user in ("trent", "ANONYMOUS")
        for kind, name, operation, permission in (
            (ResourceType.TOPIC, TOPIC, AclOperation.ALL, allow),
            (ResourceType.TOPIC, TOPIC, AclOperation.DELETE, deny),
            (ResourceType.GROUP, "*", AclOperation.ALL, allow),
            (ResourceType.TRANSACTIONAL_ID, "*", AclOperation.ALL, allow),
        )
    ]
    for future in admin.create_acls(rights).values():
        future.result(60)
    described = admin.describe_topics(TopicCollection([TOPIC]))[TOPIC].result(60)
    topic_id: Any = described.topic_id
    high = topic_id.get_most_significant_bits() & (2**64 - 1)
    low = topic_id.get_least_significant_bits() & (2**64 - 1)
    return uuid.UUID(int=high << 64 | low)


class HealthyClient:
    """Asks again and again from a process of its own, and notes its longest wait.

    `lost` counts requests without an answer, and `asked` those with one.
    """

    def __init__(self, address: str, broker_pid: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._longest = {name: context.Value("d", 0.0) for name in WAITS}
        self.asked, self.lost = context.Value("q", 0), context.Value("q", 0)
        arguments = (address, broker_pid, self._longest, self.asked, self.lost)
        self._process = context.Process(target=_stay_healthy, args=arguments, daemon=True)
        self._process.start()

    def take_longest_s(self) -> dict[str, float]:
        """The longest of each of WAITS since the last call."""
        longest_s = {name: longest.value for name, longest in self._longest.items()}
        for longest in self._longest.values():
            longest.value = 0.0
        return longest_s

    def stop(self) -> None:
        self._process.kill()
        self._process.join()


def _loop_times_s(broker_pid: int) -> tuple[float, float]:
    """How long the broker's event loop has had a processor, and has waited for one. Its thread is
    the process's first.
    """
    with open(f"/proc/{broker_pid}/task/{broker_pid}/schedstat", encoding="ascii") as file:
        on_processor, waiting, _ = file.read().split()
    return int(on_processor) / 1e9, int(waiting) / 1e9


def _loop_cpu_s(broker_pid: int) -> float:
    return _loop_times_s(broker_pid)[0]


def _stay_healthy(
    address: str,
    broker_pid: int,
    longest: Mapping[str, Synchronized[float]],
    requests: Synchronized[int],
    lost: Synchronized[int],
) -> None:
    login = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.username": "admin",
        "sasl.password": USERS["admin"],
    }
    fields = {"client_software_name": "h", "client_software_version": "1"}
    frame = request_frame(ApiKey.API_VERSIONS, 3, fields)

    @contextlib.contextmanager
    def noting(name: str) -> Iterator[None]:
        began_s, began_cpu_s = time.monotonic(), _loop_cpu_s(broker_pid)
        yield
        cpu_s, wait_s = _loop_cpu_s(broker_pid) - began_cpu_s, time.monotonic() - began_s
        for wait_name, duration_s in ((name, wait_s), (f"{name}_loop", cpu_s)):
            longest[wait_name].value = max(longest[wait_name].value, duration_s)

    client: socket.socket | None = None
    while True:
        try:
            if client is None:
                client = logins.connect(address, login, OTHER_HOST)
                client.settimeout(HEALTHY_TIMEOUT_S)
            with noting("wait"):
                client.sendall(struct.pack(">i", len(frame)) + frame)
                receive_frame(client)
            requests.value += 1
            if requests.value % REQUESTS_PER_LOGIN == 0:
                with noting("login"):
                    logins.connect(address, login, OTHER_HOST).close()
                with noting("neighbour_login"):
                    logins.connect(address, login).close()
        except (OSError, AssertionError):
            lost.value += 1
            client = None
        time.sleep(HEALTHY_PAUSE_S)


class Search:
    """Sends plans to one broker, and keeps those that were carried out at its worst moments."""

    def __init__(self, target: Target, kept_in: Path, name: str) -> None:
        self.worst = dict.fromkeys((*WAITS, "step", "memory"), 0.0)
        self._pid = pid = target.broker.process.pid
        self.crowd = Crowd(target.addresses, self._broker_time_s)
        self.healthy = HealthyClient(target.addresses["SASL_PLAINTEXT"], pid)
        self._target = target
        self._kept_in = kept_in
        self._name = name
        self._process = psutil.Process(pid)
        self._quiet_mb = self._process.memory_info().rss / 2**20
        self._connections_max = 0
        # With the time of their end.
        self._ended: deque[tuple[float, Plan]] = deque(maxlen=SUSPECTS_MAX)
        # By the name of the figure: the figures of its worst moment, and the plans. They are
        # written at the end, because a moment is often followed by a worse one.
        self._worst_moments: dict[str, tuple[Mapping[str, Any], list[Plan]]] = {}
        self._looked_s = 0.0

    def search(self, planner: Planner, frames: int, connections: int) -> None:
        """Attack until the broker has worked on so many frames."""
        while self.crowd.frames < frames and not self._target.broker.has_ended:
            while len(self.crowd) < connections:
                self.crowd.begin(planner.plan())
            if self._turn():
                planner.supply.renew(RENEWED)

    def replay(self, plans: Sequence[Plan]) -> None:
        """Carry out all of the plans at once."""
        for plan in plans:
            self.crowd.begin(plan)
        while len(self.crowd) and not self._target.broker.has_ended:
            self._turn()

    def end(self) -> dict[str, Any]:
        """Stop, and return the figures."""
        plans = self.crowd.plans
        self.crowd.close()
        lost_before, asked_before = self.healthy.lost.value, self.healthy.asked.value
        # The attackers have gone: the client is served, or it never will be.
        end_s = time.monotonic() + HEALTHY_TIMEOUT_S
        while self.healthy.asked.value == asked_before and time.monotonic() < end_s:
            time.sleep(HEALTHY_PAUSE_S)
        # However long the client waited, what it shows is their doing.
        self._ended.extend((time.monotonic(), plan) for plan in plans)
        self._look()
        self._write_worst_moments()
        is_served = self.healthy.asked.value > asked_before
        self.healthy.stop()
        lines = self._target.broker.log_text.splitlines()
        return {
            "frames": self.crowd.frames,
            "connections": self.crowd.connections,
            "broker_ended": self._target.broker.has_ended,
            "requests_answered": self.healthy.asked.value,
            "requests_lost": lost_before + (not is_served),
            **{f"longest_{name}_ms": round(self.worst[name] * 1000, 1) for name in WAITS},
            "memory_mb_quiet": round(self._quiet_mb),
            "memory_mb": round(self.worst["memory"]),
            "memory_mb_max": round(self._memory_bound_mb),
            "loop_steps_cpu_ms": sorted(
                read_steps(self._target.steps_file).values(), key=lambda step: -step["ms"]
            )[:10],
            "errors_in_log": sorted({line[24:300] for line in lines if " ERROR " in line})[:10],
        }

    @property
    def _memory_bound_mb(self) -> float:
        # The healthy client's are among them.
        connections = self._connections_max + 3
        quiet = round(self._quiet_mb * 2**20)
        return memory_bound(self._target.config, quiet, connections) / 2**20

    def _broker_time_s(self) -> float:
        """Clients of a broker that is given no processor do not lose their patience: what they send
        is meant to be worked on.
        """
        waited_s = 0.0 if self._target.broker.has_ended else _loop_times_s(self._pid)[1]
        return time.monotonic() - waited_s

    def _turn(self) -> bool:
        """Returns whether the figures were looked at."""
        self._connections_max = max(self._connections_max, len(self.crowd))
        ended, now_s = self.crowd.turn(), time.monotonic()
        self._ended.extend((now_s, plan) for plan in ended)
        if now_s - self._looked_s < LOOK_S:
            return False
        self._looked_s = now_s
        self._look()
        return True

    def _look(self) -> None:
        steps = read_steps(self._target.steps_file).values()
        figures = {
            **self.healthy.take_longest_s(),
            "step": max((step["ms"] for step in steps), default=0.0),
            "memory": self._process.memory_info().rss / 2**20 if self._process.is_running() else 0,
        }
        for name, figure in figures.items():
            # Not each megabyte is worth a file, and a wait by the clock may be the machine's load.
            is_worse = figure > self.worst[name] * KEPT_IF_WORSE
            if is_worse and (name not in WAITS or name.endswith("_loop")):
                self._worst_moments[name] = (figures | {"steps": list(steps)}, self._suspects())
            self.worst[name] = max(self.worst[name], figure)

    def _suspects(self) -> list[Plan]:
        since_s = time.monotonic() - SUSPECT_S
        ended = [plan for ended_s, plan in self._ended if ended_s > since_s]
        return [*ended, *self.crowd.plans]

    def _write_worst_moments(self) -> None:
        self._kept_in.mkdir(parents=True, exist_ok=True)
        for name, (figures, plans) in self._worst_moments.items():
            path = self._kept_in / f"{self._name}-{name}.json"
            write_plans(path, plans, self._target.topic_id, figures)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument(
        "--frames", type=int, default=100_000, help="how many frames the broker works on at least"
    )
    parser.add_argument("--connections", type=int, default=CONNECTIONS, help="how many at once")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, default=KEPT_IN, help="folder of the files")
    parser.add_argument("--replay", metavar="FILE", type=Path, help="send the plans of a file")
    options = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="isotherm-search-") as folder,
        attacked_broker(Path(folder)) as target,
    ):
        if options.replay:
            plans = read_plans(options.replay, target.topic_id)
            search = Search(target, options.keep, f"replay-{options.replay.stem}")
            began_s = time.monotonic()
            search.replay(plans)
        else:
            planner = Planner(options.seed, target.topic_id, LISTENERS)
            search = Search(target, options.keep, str(options.seed))
            began_s = time.monotonic()
            search.search(planner, options.frames, options.connections)
        duration_s = time.monotonic() - began_s
        document = {
            "seed": None if options.replay else options.seed,
            "duration_s": round(duration_s, 1),
            "frames_per_s": round(search.crowd.frames / duration_s),
            **search.end(),
        }
    json.dump(document, sys.stdout, indent=1)
    sys.stdout.write("\n")
    return 1 if has_failed(document) else 0


def has_failed(figures: Mapping[str, Any]) -> bool:
    """Whether the figures of `Search.end` break a promise."""
    return bool(
        figures["broker_ended"]
        or figures["requests_lost"]
        or figures["errors_in_log"]
        or figures["memory_mb"] > figures["memory_mb_max"]
    )


if __name__ == "__main__":
    sys.exit(main())
