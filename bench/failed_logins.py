"""How much longer does a healthy client wait while others fail to log in, as often as they can?

One client that has logged in writes a record, reads it again, pauses, and repeats. A latency covers
both requests. Now and then a new client logs in in between: `login`. Meanwhile another process logs
in with a wrong password over many connections at once, and connects again as soon as one is closed.
The brokers hold back the answer to a failed login for 100 ms, their default
(`connection.failed.authentication.delay.ms`). Client, attacker and broker share the machine's
processors, so the rate of failed logins is what all three can do together.
"""

from __future__ import annotations

import asyncio
import functools
import multiprocessing
import ssl
import statistics
import struct
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.sharedctypes import Synchronized

from bench.harness import Case, Question, main
from bench.hostile_clients import PAUSE_S, VALUE, HealthyClient, attacked, figures, finish, prepare
from bench.load import Metrics
from bench.logins import ERROR_CODE, LOGIN_ANSWERS, connect, login_requests
from bench.secured_servers import (
    NEW_SERVERS,
    SASL_PLAINTEXT,
    SASL_SSL,
    USER,
    authority_of,
    client_properties,
)
from bench.servers import Server
from oracle.topics import wait_until

DURATION_S, DURATION_S_MIN = 5.0, 2.0
# A failed login takes 100 ms at least: that many connections are 10,000 of them in a second.
CONNECTIONS = 1000
ROUND_TRIPS_PER_LOGIN = 5
LOGINS_MIN = 20
_SIZE = struct.Struct(">i")


class FailingLogin(asyncio.Protocol):
    """Counts the login once the broker has refused it."""

    def __init__(self, requests: bytes, refused: Synchronized[int]) -> None:
        self._requests = requests
        self._refused = refused
        self._received = b""
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(self._requests)

    def data_received(self, data: bytes) -> None:
        self._received += data

    def connection_lost(self, exc: Exception | None) -> None:
        codes: list[int] = []
        position = 0
        while position + _SIZE.size < len(self._received):
            (size,) = _SIZE.unpack_from(self._received, position)
            codes += ERROR_CODE.unpack_from(self._received, position + _SIZE.size)
            position += _SIZE.size + size
        if len(codes) == LOGIN_ANSWERS and codes[-1]:
            self._refused.value += 1
        if not self.ended.done():
            self.ended.set_result(None)


def fail_to_log_in(address: str, authority: str | None, refused: Synchronized[int]) -> None:
    """Log in with a wrong password for ever, over CONNECTIONS connections at once."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=authority) if authority else None
    new_login = functools.partial(FailingLogin, login_requests(USER, "wrong"), refused)

    async def fail() -> None:
        while True:
            try:
                _, login = await asyncio.get_running_loop().create_connection(
                    new_login, host, int(port), ssl=context
                )
            except OSError:  # the broker refuses more connections
                await asyncio.sleep(0.01)
            else:
                await login.ended

    async def fail_everywhere() -> None:
        await asyncio.gather(*(fail() for _ in range(CONNECTIONS)))

    asyncio.run(fail_everywhere())


def measure(server: Server, *, protocol: str, is_attacked: bool, duration_s: float) -> Metrics:
    address, properties = server.listeners[protocol], client_properties(server, protocol)
    authority = str(authority_of(server.directory)) if protocol == SASL_SSL else None
    refused = multiprocessing.get_context("spawn").Value("q", 0)
    latencies: list[float] = []
    logins: list[float] = []

    def log_in() -> None:
        connect(address, properties).close()

    attack = fail_to_log_in if is_attacked else None
    with attacked(attack, address, authority, refused):
        client = HealthyClient(connect(address, properties))
        client.write_and_read()
        if is_attacked:
            wait_until(lambda: refused.value > CONNECTIONS, "failed logins")
        refused_before, began_s = refused.value, time.perf_counter()
        while time.perf_counter() < began_s + duration_s or len(logins) < LOGINS_MIN:
            latencies.append(_timed_ms(client.write_and_read))
            if len(latencies) % ROUND_TRIPS_PER_LOGIN == 0:
                logins.append(_timed_ms(log_in))
            time.sleep(PAUSE_S)
        took_s = time.perf_counter() - began_s
        failed = refused.value - refused_before
    percentiles = statistics.quantiles(logins, n=100)
    return {
        **figures(latencies, took_s),
        "login_p50_ms": percentiles[49],
        "login_p99_ms": percentiles[98],
        "failed_logins_per_s": failed / took_s,
    }


def _timed_ms(work: Callable[[], None]) -> float:
    started_s = time.perf_counter()
    work()
    return (time.perf_counter() - started_s) * 1000


def build_cases(scale: float) -> Sequence[Case]:
    """Two cases, without failed logins and with them, for each protocol with logins."""
    duration_s = max(DURATION_S_MIN, DURATION_S * scale)
    return [
        Case(
            name=f"{protocol}, {'failed logins' if is_attacked else 'no failed logins'}",
            parameters={
                "duration_s": duration_s,
                "record_size": len(VALUE),
                "connections": CONNECTIONS if is_attacked else 0,
            },
            bytes_moved=1_000_000,
            prepare=prepare,
            measure=partial(
                measure, protocol=protocol, is_attacked=is_attacked, duration_s=duration_s
            ),
            finish=finish,
        )
        for protocol in (SASL_PLAINTEXT, SASL_SSL)
        for is_attacked in (False, True)
    ]


QUESTION = Question(
    "failed_logins",
    "How much longer does a healthy client wait while others fail to log in?",
    build_cases,
    NEW_SERVERS,
)

if __name__ == "__main__":
    main(QUESTION)
