"""A server that echoes frames, and a client of it, over real loopback sockets."""

from __future__ import annotations

import asyncio
import asyncio.selector_events
import contextlib
import inspect
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

import uvloop

from isotherm.broker.server.net.connection import Connection, PendingAnswer
from isotherm.broker.server.net.server import Server
from isotherm.clock import Clock, SystemClock
from isotherm.config.broker import BrokerConfig
from isotherm.errors import RejectedError
from isotherm.testing.sim_clock import SimClock

LOCAL = "PLAINTEXT://127.0.0.1:0"


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


BIG_ANSWER = bytes(1 << 20)


class Echo:
    """Answers a frame with itself. The frame's beginning selects another behaviour:

    `wait` waits for `release`; `wait, stay` does so also after the client has gone; `big` has a
    large answer; `mute` mutes the connection for a while; `bad` is a request that cannot be
    decoded; `done` lets the next request begin, and waits for its future in `done`; `cancelled`
    waits for a cancelled future.

    With a `clock` each step of a request takes `step_ms` of it.
    """

    def __init__(self, clock: SimClock | None = None, step_ms: int = 0) -> None:
        self._clock = clock
        self._step_ms = step_ms
        self.frames: list[bytes] = []
        self.waited: list[bytes] = []
        self.release = asyncio.Event()
        self.done: dict[bytes, asyncio.Future[None]] = {}
        self.waiting = asyncio.Event()

    def handle_frame(
        self, frame: memoryview, connection: Connection
    ) -> list[bytes] | PendingAnswer:
        payload = bytes(frame)
        self.frames.append(payload)
        self._spend()
        if payload.startswith(b"mute"):
            connection.mute(0.05)
        if payload.startswith(b"bad"):
            raise RejectedError("not to be decoded")
        if payload.startswith(b"done"):
            future = self.done[payload] = asyncio.get_running_loop().create_future()
            return PendingAnswer(future, lambda: [framed(payload)], is_done_but_for_answer=True)
        if payload == b"cancelled":
            cancelled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            cancelled.cancel()
            return PendingAnswer(cancelled, lambda: [framed(payload)])
        if payload.startswith(b"wait"):
            self.waiting.set()
            released = asyncio.ensure_future(self.release.wait())

            def answer() -> list[bytes]:
                self.waited.append(payload)
                self._spend()
                return [framed(payload)]

            return PendingAnswer(released, answer, payload.startswith(b"wait, stay"))
        return [framed(BIG_ANSWER if payload == b"big" else payload)]

    def _spend(self) -> None:
        if self._clock is not None:
            self._clock.advance(self._step_ms)


@contextlib.asynccontextmanager
async def serving(
    echo: Echo, clock: Clock | None = None, **settings: Any
) -> AsyncIterator[tuple[Server, int]]:
    config = BrokerConfig(listeners=(LOCAL,), **settings)
    server = Server(config, asyncio.get_running_loop(), clock or SystemClock())
    (endpoint,) = await server.bind()
    await server.serve(echo)
    try:
        yield server, endpoint.port
    finally:
        await server.stop(5)


@contextlib.asynccontextmanager
async def connected(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**26)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)


async def is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        return await reader.read(1) == b""
    except ConnectionError:
        return True


def asyncio_pauses_writers() -> bool:
    """Whether asyncio's `writelines` pauses writers. Some releases of Python 3.12 and 3.13 do not.
    The broker's own loop is uvloop."""
    writelines = cast("Any", asyncio.selector_events)._SelectorSocketTransport.writelines
    is_own = writelines is not asyncio.WriteTransport.writelines
    return not is_own or "_maybe_pause_protocol" in inspect.getsource(writelines)


Run = Callable[[Callable[[], Awaitable[None]]], None]


async def until(is_so: Callable[[], object]) -> None:
    """Give the loop turns until `is_so()`."""
    while not is_so():  # noqa: ASYNC110 - what changes has no event
        await asyncio.sleep(0)


LOOPS = {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
"""The broker's own is uvloop."""
