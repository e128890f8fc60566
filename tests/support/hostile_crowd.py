"""Hundreds of hostile connections at once, from one thread.

Each has a plan, drawn from a seed: what it sends, how fast, and whether it reads. Plans can be
written to a file, and carried out again against another broker.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import functools
import json
import random
import select
import socket
import ssl
import struct
import tempfile
import time
import uuid
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.logins import LOGIN_ANSWERS, login_requests
from oracle.raw_requests import request_frame
from tests.support.extreme_requests import FrameSupply
from tests.support.tls_records import HANDSHAKE, RecordingClient, Tls13Records

# How a plan sends its bytes, and what it does then.
WHOLE, SLOWLY, CUT_OFF, HALF_CLOSED, RESET, DEAF, IN_THE_CLEAR, RENEWING = (
    "whole",
    "slowly",
    "cut off",
    "half closed",
    "reset",
    "deaf",
    "in the clear",
    # Messages of TLS after the handshake. The payload says of which version, and how many.
    "renewing",
)
WAYS = (WHOLE,) * 12 + (SLOWLY, CUT_OFF, HALF_CLOSED, HALF_CLOSED, RESET, DEAF, IN_THE_CLEAR)
# A broker that is silent for so long is not going to answer: the request waits for something.
SILENCE_S = 0.5
# The others, such as those that send slowly, stay so long.
STAY_S = 2.0
TICK_S = 0.01
CONNECT_TIMEOUT_S = 300.0
ANNOUNCED = (2**31 - 1, 100 * 2**20, 524_288, 1000, 0, -1)
USERS = {"admin": "a", "trent": "t", "mallory": "m"}
_SIZE = struct.Struct(">i")
_RENEWALS = struct.Struct(">HI")
_RECEIVED = bytearray(1 << 18)
_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
_TLS.check_hostname, _TLS.verify_mode = False, ssl.CERT_NONE


@dataclasses.dataclass(frozen=True)
class Plan:
    """What one connection does.

    `payload` has everything that is sent, with its logins; `frames` counts the whole frames in it.
    """

    listener: str
    user: str
    way: str
    has_tls: bool
    payload: bytes
    frames: int

    @property
    def is_for_answers(self) -> bool:
        return self.way in (WHOLE, HALF_CLOSED)

    def as_json(self) -> dict[str, Any]:
        packed = base64.b64encode(zlib.compress(self.payload, 1)).decode("ascii")
        return {**dataclasses.asdict(self), "payload": packed}


def write_plans(path: Path, plans: Sequence[Plan], topic_id: uuid.UUID, found: Any) -> None:
    """`found` is what the plans did. It is for readers only."""
    document = {
        "found": found,
        "topic_id": topic_id.hex,
        "plans": [plan.as_json() for plan in plans],
    }
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")


def read_plans(path: Path, topic_id: uuid.UUID) -> list[Plan]:
    """The plans of a file, for a broker whose topic has another id."""
    document = json.loads(path.read_text(encoding="utf-8"))
    old = bytes.fromhex(document["topic_id"])
    plans = []
    for fields in document["plans"]:
        payload = zlib.decompress(base64.b64decode(fields.pop("payload")))
        plans.append(Plan(**fields, payload=payload.replace(old, topic_id.bytes)))
    return plans


class Planner:
    """Draws plans from a seed."""

    def __init__(self, seed: int, topic_id: uuid.UUID, listeners: Sequence[str]) -> None:
        self._rng = random.Random(seed)
        self._listeners = listeners
        self.supply = FrameSupply(self._rng, topic_id, extremes=100)

    def plan(self) -> Plan:
        rng = self._rng
        listener = rng.choice(self._listeners)
        has_login, has_tls = listener.startswith("SASL"), listener.endswith("SSL")
        if has_tls and rng.random() < 0.5:
            return self._handshake(listener)
        user = rng.choice(("", "mallory", "trent", "trent")) if has_login else ""
        frames = self._frames() if user or not has_login else self._frames_before_login()
        way = rng.choice(WAYS)
        login = login_requests(user, USERS[user]) if user else b""
        # A connection repeats a few frames hundreds of times.
        framed = {frame: _SIZE.pack(len(frame)) + frame for frame in set(frames)}
        payload = login + b"".join([framed[frame] for frame in frames])
        count = len(frames) + (LOGIN_ANSWERS if user else 0)
        if rng.random() < 0.1:
            payload += _SIZE.pack(rng.choice(ANNOUNCED)) + rng.randbytes(rng.choice((0, 4, 5000)))
        if way == CUT_OFF:
            payload = payload[: -rng.randint(1, 20)]
            count -= 1
        return Plan(listener, user, way, has_tls, payload, max(0, count))

    def _frames(self) -> list[bytes]:
        rng = self._rng
        kinds = self.supply.kinds(rng.choice((1, 3, 30)), 1 if rng.random() < 0.1 else 0)
        count = rng.choice((1, 5, 50, 500, 1000))
        # A frame that ends the connection hides those behind it.
        frames = [*rng.choices(kinds, k=count), self.supply.draw(kinds, damaged=0.7)]
        # An extreme frame is large, so a connection has a few of them only.
        return _at_most(frames, 4 * 2**20)

    def _frames_before_login(self) -> list[bytes]:
        rng = self._rng
        versions = request_frame(18, 0, {})
        tokens = (b"", b"\0", b"\0u\0p", bytes(500_000), rng.randbytes(100), b"n,,n=u,r=x")
        mechanism = rng.choice(("PLAIN", "SCRAM-SHA-256", "x" * 30_000, "", "\n"))
        frames = [versions] * rng.choice((0, 1, 5, 500))
        frames.append(request_frame(17, 1, {"mechanism": mechanism}))
        for _ in range(rng.choice((1, 3))):
            frames.append(request_frame(36, 2, {"auth_bytes": rng.choice(tokens).hex()}))
        return frames if rng.random() < 0.7 else self._frames()[:3]

    def _handshake(self, listener: str) -> Plan:
        """Bytes instead of a handshake: its beginning, damaged, in small records, and others. Or a
        flood of second handshakes and changes of keys after the first."""
        rng, hello = self._rng, client_hello()
        if rng.random() < 0.15:
            version = rng.choice((ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3))
            payload = _RENEWALS.pack(version, rng.choice((1, 100, 4000)))
            return Plan(listener, "", RENEWING, has_tls=False, payload=payload, frames=0)
        kind = rng.randrange(5)
        if kind == 0:
            payload = hello[: rng.randrange(len(hello))]
        elif kind == 1:
            damaged = bytearray(hello)
            for _ in range(rng.choice((1, 3, 20))):
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
            payload = bytes(damaged)
        elif kind == 2:
            # Each byte in a record of its own.
            parts = (b"\x16\x03\x01\x00\x01" + hello[at : at + 1] for at in range(5, len(hello)))
            payload = b"".join(parts)
        elif kind == 3:
            # The length of a record, or of a message in it, at its maximum, and some of its bytes.
            payload = b"\x16\x03\x01\xff\xff\x01\xff\xff\xff" + rng.randbytes(
                rng.choice((0, 100, 16_384, 100_000))
            )
        else:
            payload = hello * rng.choice((2, 100))
        way = rng.choice((WHOLE, SLOWLY, CUT_OFF, HALF_CLOSED, RESET, DEAF))
        return Plan(listener, "", way, has_tls=False, payload=payload, frames=0)


@functools.cache
def client_hello() -> bytes:
    """The first message of a TLS client."""
    out = ssl.MemoryBIO()
    client = _TLS.wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return out.read()


def _at_most(frames: list[bytes], size: int) -> list[bytes]:
    kept = []
    for frame in frames:
        size -= len(frame)
        if size < 0:
            break
        kept.append(frame)
    return kept


class Renewals:
    """A client of TLS that wants a second handshake (TLS 1.2) or new keys (1.3) again and again."""

    def __init__(self, payload: bytes) -> None:
        version, self._count = _RENEWALS.unpack(payload)
        with tempfile.NamedTemporaryFile(prefix="keys-", delete=False) as file:
            self._key_log = Path(file.name)
        self._tls = RecordingClient(ssl.TLSVersion(version), self._key_log)

    def shake_hands(self, connection: socket.socket) -> bytes:
        """Returns what to send when the handshake has ended. Raises OSError, SSLWantReadError
        before."""
        received = b""
        with contextlib.suppress(BlockingIOError):
            received = connection.recv(1 << 16)
            if not received:
                raise ConnectionError("the broker has closed the connection")
        sent, has_ended = self._tls.shake_hands(received)
        connection.send(sent)
        if not has_ended:
            raise ssl.SSLWantReadError
        records = self._tls.records()
        self.close()
        if isinstance(records, Tls13Records):
            return b"".join(records.key_update(is_answered=True) for _ in range(self._count))
        hello = self._tls.hello
        return b"".join(records.record(HANDSHAKE, hello) for _ in range(self._count))

    def close(self) -> None:
        self._key_log.unlink(missing_ok=True)


class HostileClient:
    """One connection that carries out a plan."""

    def __init__(self, plan: Plan, address: str, now_s: float) -> None:
        self.plan = plan
        self.answers = 0
        self.began_s = self.active_s = now_s
        self.has_sent_all = False
        self._left = memoryview(plan.payload)
        # Of the answer that has arrived in part.
        self._missing = 0
        self._head = b""
        host, _, port = address.rpartition(":")
        plain = socket.socket()
        if plan.way == DEAF:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        # The backlog of the listener may be full for a moment.
        plain.settimeout(CONNECT_TIMEOUT_S)
        plain.connect((host, int(port)))
        self.is_shaking_hands = plan.has_tls or plan.way == RENEWING
        self._renewals = Renewals(plan.payload) if plan.way == RENEWING else None
        self.socket: socket.socket = plain
        if plan.has_tls:
            self.socket = _TLS.wrap_socket(plain, do_handshake_on_connect=False)
        self.socket.setblocking(False)
        self.number = self.socket.fileno()

    @property
    def answered_frames(self) -> int:
        return min(self.answers, self.plan.frames)

    def shake_hands(self, now_s: float) -> None:
        """Raises OSError, of which an unfinished handshake is one."""
        if self._renewals is not None:
            self._left = memoryview(self._renewals.shake_hands(self.socket))
        else:
            assert isinstance(self.socket, ssl.SSLSocket)
            self.socket.do_handshake()
        self.is_shaking_hands = False
        self.active_s = now_s

    def send(self, now_s: float) -> None:
        """Send what the socket takes. Raises OSError."""
        size = 7 if self.plan.way == SLOWLY else len(self._left)
        # A deaf client may not read between the pieces, so no more than OpenSSL takes at once.
        if self._left:
            if self.plan.way == IN_THE_CLEAR and self.plan.has_tls:
                sent = socket.socket.send(self.socket, client_hello())
                self._left = self._left[len(self._left) :]
            else:
                sent = self.socket.send(self._left[:size])
                self._left = self._left[sent:]
            if sent:
                self.active_s = now_s
        if not self._left and not self.has_sent_all:
            self.has_sent_all = True
            if self.plan.way == HALF_CLOSED:
                self.socket.shutdown(socket.SHUT_WR)

    def receive(self, now_s: float) -> bool:
        """Count the answers that have arrived. Returns False at the end. Raises OSError."""
        size = self.socket.recv_into(_RECEIVED)
        if size:
            self.active_s = now_s
            self._count(_RECEIVED, size)
        return size > 0

    def _count(self, data: bytearray, end: int) -> None:
        position = 0
        while position < end:
            if self._missing:
                taken = min(self._missing, end - position)
                self._missing -= taken
                position += taken
            else:
                head = self._head + data[position : min(end, position + 4 - len(self._head))]
                position += len(head) - len(self._head)
                if len(head) < _SIZE.size:
                    self._head = bytes(head)
                    return
                self._head = b""
                (self._missing,) = _SIZE.unpack(head)
                if not 0 < self._missing < 2**30:  # a TLS alert
                    self._missing = 0
                    return
            if not self._missing:
                self.answers += 1

    @property
    def is_complete(self) -> bool:
        plan = self.plan
        if plan.way == RESET:
            return self.has_sent_all
        return plan.is_for_answers and self.has_sent_all and self.answers >= plan.frames

    def is_over(self, now_s: float) -> bool:
        if self.is_complete or now_s - self.began_s > 20 * STAY_S:
            return True
        return now_s - self.active_s > (SILENCE_S if self.plan.is_for_answers else STAY_S)

    def close(self) -> None:
        if self.plan.way == RESET:
            with contextlib.suppress(OSError):
                linger = struct.pack("ii", 1, 0)
                self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        if self._renewals is not None:
            self._renewals.close()
        self.socket.close()


class Crowd:
    """Carries out plans, up to a number of them at once.

    `frames` counts those on which the broker has worked: the answers, and for each connection that
    it closed or that waited for an answer in vain, one. Those behind are not counted.

    `now_s` is the clock of the waits: it may leave out when the broker was given no processor.
    """

    def __init__(
        self, addresses: Mapping[str, str], now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self.connections = 0
        self.frames = 0
        self._addresses = addresses
        self._now_s = now_s
        self._clients: dict[int, HostileClient] = {}
        self._poll = select.epoll()
        self._looked_s = 0.0

    def close(self) -> None:
        for client in tuple(self._clients.values()):
            self._end(client)
        self._poll.close()

    @property
    def plans(self) -> list[Plan]:
        """Those that are carried out now."""
        return [client.plan for client in self._clients.values()]

    def begin(self, plan: Plan) -> None:
        client = HostileClient(plan, self._addresses[plan.listener], self._now_s())
        self.connections += 1
        self._clients[client.number] = client
        self._poll.register(client.number, select.EPOLLIN | select.EPOLLOUT)

    def __len__(self) -> int:
        return len(self._clients)

    def turn(self) -> list[Plan]:
        """Send and receive what is possible. Returns the plans that have ended."""
        ended = []
        ready = self._poll.poll(TICK_S)
        now_s = self._now_s()
        for number, events in ready:
            client = self._clients[number]
            answered_before = client.answered_frames
            is_open = self._proceed(client, events, now_s)
            self.frames += client.answered_frames - answered_before
            if not is_open:
                ended.append(self._end(client))
        if now_s - self._looked_s > TICK_S:
            self._looked_s = now_s
            for client in tuple(self._clients.values()):
                if client.is_over(now_s):
                    ended.append(self._end(client))
                elif client.plan.way == SLOWLY and not client.has_sent_all:
                    self._poll.modify(client.number, select.EPOLLIN | select.EPOLLOUT)
        return ended

    def _proceed(self, client: HostileClient, events: int, now_s: float) -> bool:
        """Returns False if the connection has ended."""
        has_failed = bool(events & (select.EPOLLHUP | select.EPOLLERR))
        try:
            if client.is_shaking_hands:
                client.shake_hands(now_s)
                # The broker may be silent until it gets a request.
                self._poll.modify(client.number, self._expected(client))
                return True
            if events & select.EPOLLOUT:
                client.send(now_s)
            if client.plan.way != DEAF and (has_failed or events & select.EPOLLIN):
                return client.receive(now_s)
        except ssl.SSLWantReadError:
            self._poll.modify(client.number, select.EPOLLIN)
            return True
        except (ssl.SSLWantWriteError, BlockingIOError):
            return True
        except OSError:
            return False
        self._poll.modify(client.number, self._expected(client))
        return not (client.plan.way == DEAF and has_failed)

    def _expected(self, client: HostileClient) -> int:
        """The events that matter next. Clients that send slowly do so by the clock."""
        readable = 0 if client.plan.way == DEAF else select.EPOLLIN
        if client.has_sent_all or client.plan.way == SLOWLY:
            return readable
        return readable | select.EPOLLOUT

    def _end(self, client: HostileClient) -> Plan:
        del self._clients[client.number]
        self._poll.unregister(client.number)
        client.close()
        plan = client.plan
        self.frames += client.answers < plan.frames and client.has_sent_all
        return plan
