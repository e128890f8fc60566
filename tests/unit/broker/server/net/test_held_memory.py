"""Memory that clients hold: requests that do not end, answers that are not read, logins that
never come.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from isotherm.broker.metadata.access.principal import ANONYMOUS, USER, Principal
from isotherm.broker.server.net import answer_memory, memory_relief
from isotherm.broker.server.net import connection as connection_module
from isotherm.broker.server.net.answer_memory import AnswerMemory
from isotherm.broker.server.net.connection import (
    FRAME_SIZE_WITHOUT_MEMORY,
    READ_SIZE_WITHOUT_MEMORY,
    SCRATCH_SIZE,
    Connection,
)
from isotherm.broker.server.net.request_memory import (
    Held,
    RequestMemory,
    connections_to_end,
    frames_to_finish,
)
from isotherm.broker.server.net.server import Server
from isotherm.broker.server.net.tcp_state import is_ended_by_client, is_reset
from isotherm.broker.server.net.turns import ROUND_S
from isotherm.broker.server.net.unauthenticated import Unauthenticated
from isotherm.clock import SystemClock
from isotherm.config.broker import BrokerConfig
from isotherm.testing.sim_clock import SimClock
from tests.support.echo_server import (
    LOOPS,
    Echo,
    Run,
    connected,
    framed,
    is_closed,
    read_frame,
    serving,
    until,
)

Scenario = Callable[[], Awaitable[None]]


@pytest.fixture(params=LOOPS.values(), ids=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    def run_scenario(scenario: Scenario) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(asyncio.wait_for(scenario(), 120))

    return run_scenario


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Silence of any length is too long."""
    monkeypatch.setattr(memory_relief, "RELIEF_INTERVAL_S", 0.001)
    monkeypatch.setattr(memory_relief, "SILENT_S", 0.0)


class Gate:
    """Its first frame logs the client in, under the name in the frame."""

    frame_size_max = 4 * SCRATCH_SIZE

    def __init__(self, requests: Any) -> None:
        self._requests = requests
        self._is_open = False

    def handle_frame(self, frame: memoryview, connection: Connection) -> Any:
        if self._is_open:
            return self._requests.handle_frame(frame, connection)
        self._is_open = True
        connection.authenticated(Principal(USER, bytes(frame).decode()))
        return [framed(b"welcome")]


@contextlib.asynccontextmanager
async def guarded(echo: Echo, **settings: object) -> AsyncIterator[tuple[Server, int]]:
    """A server whose listener has a login."""
    listener = "SASL_PLAINTEXT://127.0.0.1:0"
    config = BrokerConfig(
        listeners=(listener,), inter_broker_listener_name="SASL_PLAINTEXT", **settings
    )
    server = Server(config, asyncio.get_running_loop(), SystemClock())
    (endpoint,) = await server.bind()
    await server.serve(echo, {"SASL_PLAINTEXT": Gate})
    try:
        yield server, endpoint.port
    finally:
        await server.stop(5)


async def log_in(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, name: bytes = b"alice"
) -> None:
    writer.write(framed(name))
    assert await read_frame(reader) == b"welcome"


async def turns(count: int = 50) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


# ---- requests


@pytest.mark.parametrize("size", [SCRATCH_SIZE * 2, 100 * 1024 * 1024])
def test_announced_frames_hold_up_nobody(run: Run, size: int) -> None:
    async def scenario() -> None:
        async with (
            serving(Echo(), queued_max_request_bytes=SCRATCH_SIZE) as (server, port),
            connected(port) as (reader, writer),
            contextlib.AsyncExitStack() as others,
        ):
            for _ in range(20):
                _, other = await others.enter_async_context(connected(port))
                other.write(struct.pack(">i", size) + b"head")
            writer.write(framed(b"healthy"))
            assert await read_frame(reader) == b"healthy"
            await until(lambda: server.memory.used >= 80)
            assert server.memory.used == 80

    run(scenario)


def test_small_frames_have_a_bound_of_their_own() -> None:
    memory = RequestMemory(1000, 500, lambda _: None, share=100, shared_max=200)
    memory.used = 1000 + 500 + 199
    assert memory.share == 100
    memory.used += 1
    assert memory.share == 0


def test_connection_opened_without_memory_is_not_read(run: Run) -> None:
    """Both loops begin to read after `connection_made`, whatever it has paused."""

    async def scenario() -> None:
        echo = Echo()
        async with (
            serving(echo, queued_max_request_bytes=1000) as (server, port),
            connected(port) as (reader, writer),
        ):
            writer.write(framed(b"wait" + bytes(1000)))
            await echo.waiting.wait()
            async with connected(port) as (later_reader, later):
                later.write(framed(bytes(3 * SCRATCH_SIZE)))
                await until(lambda: len(server._connections) > 1)
                await turns()
                assert server.memory.used <= 1004 + 1024
                echo.release.set()
                assert len(await read_frame(reader)) == 1004
                assert len(await read_frame(later_reader)) == 3 * SCRATCH_SIZE

    run(scenario)


def test_frames_whose_clients_are_silent_end_when_memory_is_used_up(
    run: Run, impatient: None
) -> None:
    async def scenario() -> None:
        echo = Echo()
        async with (
            serving(echo, queued_max_request_bytes=4 * SCRATCH_SIZE) as (server, port),
            connected(port) as (stalled_reader, stalled),
            connected(port) as (reader, writer),
        ):
            stalled.write(framed(bytes(8 * SCRATCH_SIZE))[:-1])
            assert await is_closed(stalled_reader)
            writer.write(framed(b"healthy"))
            assert await read_frame(reader) == b"healthy"
            assert server.memory.used == 0

    run(scenario)


def test_whole_frames_that_wait_for_their_turn_do_not_end(
    run: Run, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy broker is not its clients' fault."""
    monkeypatch.setattr(memory_relief, "EXHAUSTED_S_MAX", 0.0)
    reliefs = 0
    relieve = memory_relief.MemoryRelief._relieve

    def counted(self: Any) -> None:
        nonlocal reliefs
        reliefs += 1
        relieve(self)

    monkeypatch.setattr(memory_relief.MemoryRelief, "_relieve", counted)

    async def scenario() -> None:
        async with (
            serving(Echo(), queued_max_request_bytes=1000) as (server, port),
            connected(port) as (reader, writer),
        ):
            waiting: list[Connection] = []
            server.turns.left_s = 0
            monkeypatch.setattr(server.turns, "wait", waiting.append)
            writer.write(framed(bytes(2000)))
            await until(lambda: reliefs > 2)
            assert server.memory.is_exhausted
            server.turns.left_s = 1
            waiting[0].take_turn()
            assert len(await read_frame(reader)) == 2000

    run(scenario)


def test_frame_nearest_to_its_end_is_read_on_without_memory(run: Run) -> None:
    async def scenario() -> None:
        echo = Echo()
        size = 2 * SCRATCH_SIZE
        async with (
            serving(
                echo, queued_max_request_bytes=3 * SCRATCH_SIZE, socket_request_max_bytes=size
            ) as (server, port),
            connected(port) as (far_reader, far),
            connected(port) as (near_reader, near),
        ):
            frame = framed(bytes(size))
            far.write(frame[: SCRATCH_SIZE + 200])
            near.write(frame[:-100])
            await until(lambda: server.memory.is_exhausted)
            near.write(frame[-100:])
            assert len(await read_frame(near_reader)) == size
            far.write(frame[SCRATCH_SIZE + 200 :])
            assert len(await read_frame(far_reader)) == size

    run(scenario)


def test_large_frame_has_memory_of_its_own_and_arrives_whole(run: Run) -> None:
    payload = bytes(range(256)) * 12_000  # 3 MB

    async def scenario() -> None:
        async with serving(Echo()) as (_, port), connected(port) as (reader, writer):
            writer.write(framed(payload) + framed(b"next"))
            assert await read_frame(reader) == payload
            assert await read_frame(reader) == b"next"

    run(scenario)


def test_heaviest_owner_gives_first_and_of_it_the_largest() -> None:
    held = [
        Held("a1", "alice", 60),
        Held("b1", "bob", 100),
        Held("a2", "alice", 50),
        Held("a3", "alice", 5),
    ]
    assert connections_to_end(held, 1) == ["a1"]
    # Bob holds 100 now, and Alice 55.
    assert connections_to_end(held, 61) == ["a1", "b1"]
    assert connections_to_end(held, 161) == ["a1", "b1", "a2"]
    assert connections_to_end(held, 10**9) == ["a1", "b1", "a2", "a3"]
    assert connections_to_end(held, 0) == []
    assert connections_to_end([], 1) == []


def test_frames_that_lack_least_finish_at_least_one() -> None:
    remaining = [("far", 1000), ("near", 10), ("middle", 90)]
    assert frames_to_finish(remaining, 0) == {"near"}
    assert frames_to_finish(remaining, 100) == {"near", "middle"}
    assert frames_to_finish(remaining, 1099) == {"near", "middle"}
    assert frames_to_finish(remaining, 1100) == {"near", "middle", "far"}
    assert frames_to_finish([], 100) == set()


# ---- before the login


def test_memory_before_the_login_is_another(run: Run, impatient: None) -> None:
    async def scenario() -> None:
        async with (
            guarded(Echo(), queued_max_unauthenticated_request_bytes=SCRATCH_SIZE) as (
                server,
                port,
            ),
            connected(port) as (reader, writer),
            connected(port) as (stranger_reader, stranger),
        ):
            await log_in(reader, writer)
            stranger.write(framed(bytes(2 * SCRATCH_SIZE))[:-1])
            assert await is_closed(stranger_reader)
            assert server.memory.used == 0
            # After the login the other bound holds.
            writer.write(framed(bytes(3 * SCRATCH_SIZE)))
            assert len(await read_frame(reader)) == 3 * SCRATCH_SIZE
            assert server.memory.used == 0

    run(scenario)


def test_login_needs_no_memory_that_strangers_use_up(run: Run) -> None:
    async def scenario() -> None:
        async with (
            guarded(
                Echo(),
                queued_max_unauthenticated_request_bytes=SCRATCH_SIZE,
            ) as (server, port),
            connected(port) as (_, stranger),
            connected(port) as (_, small),
        ):
            memory = server._login_memory
            small.write(framed(bytes(FRAME_SIZE_WITHOUT_MEMORY + 1))[:-1])
            stranger.write(framed(bytes(2 * SCRATCH_SIZE))[:-1])
            await until(lambda: memory.is_exhausted)
            used = memory.used
            for name in (b"alice", bytes(b"x" * FRAME_SIZE_WITHOUT_MEMORY)):
                async with connected(port) as (reader, writer):
                    await log_in(reader, writer, name)
            assert memory.used == used
            # A larger frame begins, and is not read on.
            async with connected(port) as (reader, writer):
                writer.write(framed(b"x" * (FRAME_SIZE_WITHOUT_MEMORY + 1)))
                await until(lambda: memory.used > used)
                await turns()
                assert memory.used <= used + READ_SIZE_WITHOUT_MEMORY
                assert memory.is_exhausted

    run(scenario)


def test_clients_before_their_login_are_others_than_those_without_one(run: Run) -> None:
    async def scenario() -> None:
        async with (
            guarded(Echo()) as (before, port),
            connected(port),
            serving(Echo()) as (without, port_without),
            connected(port_without),
        ):
            await until(lambda: before._connections and without._connections)
            (stranger,) = before._connections
            (anonymous,) = without._connections
            assert stranger.client_address == anonymous.client_address
            assert stranger.client != anonymous.client

    run(scenario)


def test_clients_that_have_gone_before_their_login_get_no_turn(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has closed its half alone is answered, as in Kafka."""

    async def scenario() -> None:
        async with guarded(Echo()) as (server, port):
            waiting: list[Connection] = []
            server.turns.left_s = 0
            monkeypatch.setattr(server.turns, "wait", waiting.append)
            async with connected(port) as (reader, writer), connected(port) as (_, other):
                writer.write(framed(b"alice"))
                await until(lambda: len(waiting) == 1)
                other.write(framed(b"bob"))
                await until(lambda: len(waiting) == 2)
                writer.write_eof()
                linger = struct.pack("ii", 1, 0)
                socket_of(other).setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                other.close()
                sockets = [each._transport.get_extra_info("socket") for each in waiting]
                await until(lambda: is_ended_by_client(sockets[0]) and is_reset(sockets[1]))
                server.turns.left_s = 1
                for each in waiting:
                    each.take_turn()
                assert await read_frame(reader) == b"welcome"
                assert [each.principal.name for each in waiting] == ["alice", ANONYMOUS.name]
                await until(lambda: server.connection_count == 0)
                assert await is_closed(reader)

    run(scenario)


def test_turn_is_one_request_although_the_look_at_its_client_took_long(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with guarded(Echo()) as (server, port):
            waiting: list[Connection] = []
            server.turns.left_s = 0
            monkeypatch.setattr(server.turns, "wait", waiting.append)
            async with connected(port) as (reader, writer):
                writer.write(framed(b"alice"))
                await until(lambda: len(waiting) == 1)
                clock = SimClock()
                server.turns.now_s = clock.monotonic_s

                def look(_: object) -> bool:
                    clock.advance(round(2000 * ROUND_S))
                    return False

                monkeypatch.setattr(connection_module, "is_reset", look)
                server.turns.left_s = ROUND_S
                waiting[0].take_turn()
                assert server.turns.left_s == pytest.approx(-ROUND_S)
                assert await read_frame(reader) == b"welcome"

    run(scenario)


def socket_of(writer: asyncio.StreamWriter) -> Any:
    return writer.get_extra_info("socket")


def test_too_many_connections_before_their_login_close_the_most_silent(run: Run) -> None:
    async def scenario() -> None:
        async with (
            guarded(Echo(), max_connections_unauthenticated=2) as (_, port),
            connected(port) as (reader, writer),
        ):
            await log_in(reader, writer)
            async with connected(port) as (first_reader, _), connected(port) as (_, second):
                second.write(framed(b"x" * 10)[:3])
                await turns()
                async with connected(port) as (third_reader, third):
                    assert await is_closed(first_reader)
                    await log_in(third_reader, third)
            writer.write(framed(b"still here"))
            assert await read_frame(reader) == b"still here"

    run(scenario)


def test_client_that_does_not_log_in_in_time_is_disconnected(run: Run) -> None:
    async def scenario() -> None:
        async with (
            guarded(Echo(), connection_authentication_timeout_ms=20) as (_, port),
            connected(port) as (silent_reader, _),
        ):
            assert await is_closed(silent_reader)

    run(scenario)


def test_client_that_does_not_end_its_handshake_is_closed_by_the_bound() -> None:
    """A connection in its TLS handshake has no protocol yet."""

    class Timers:
        now_s = 0.0

        def time(self) -> float:
            return self.now_s

        def call_later(self, delay_s: float, callback: Callable[[], None]) -> Any:
            self.delay_s, self.callback = delay_s, callback
            return contextlib.nullcontext()

    class Client:
        def __init__(self, active_at: float) -> None:
            self.active_at = active_at

    timers, ended = Timers(), []
    clients = [Client(3), Client(1), Client(2)]
    unauthenticated: Unauthenticated[Any] = Unauthenticated(
        timers,  # type: ignore[arg-type]
        count_max=2,
        timeout_s=40,
        end=lambda client, reason: ended.append((client, reason)),
    )
    for client in clients:
        unauthenticated.add(client)
    assert ended == [(clients[1], "too many connections before their login")]
    assert timers.delay_s == 10
    timers.now_s = 39.9
    timers.callback()
    assert len(ended) == 1
    timers.now_s = 40.0
    timers.callback()
    assert [client for client, _ in ended[1:]] == [clients[0], clients[2]]


# ---- answers


class Reader:
    def __init__(self, client: str) -> None:
        self.client = client
        self.answered_size = 0
        self.answer_size = 0

    def send(self, memory: AnswerMemory[Any], size: int) -> None:
        self.answered_size += size
        self.answer_size += size
        memory.used += size
        if memory.used >= memory.limit:
            memory.check()


class Answers:
    def __init__(self, *readers: Reader, limit: int = 1000) -> None:
        self.now_s = 0.0
        self.ended: list[Reader] = []
        self.memory: AnswerMemory[Any] = AnswerMemory(
            limit, readers, lambda: self.now_s, self.ended.extend
        )


def test_answers_shrink_as_memory_is_used_up() -> None:
    reader = Reader("alice")
    answers = Answers(reader)
    assert answers.memory.room(400) == 400
    reader.send(answers.memory, 900)
    answers.now_s += 1
    assert answers.memory.room(400) == 100
    reader.send(answers.memory, 100)
    answers.now_s += 1
    assert answers.memory.room(400) == 0
    reader.answer_size = 0  # it has read all
    answers.now_s += 1
    assert answers.memory.room(400) == 400


def test_readers_that_take_nothing_end_and_others_do_not() -> None:
    slow, stalled, light = Reader("slow"), Reader("stalled"), Reader("light")
    answers = Answers(slow, stalled, light)
    for reader, size in ((slow, 500), (stalled, 490), (light, 10)):
        reader.send(answers.memory, size)
    assert answers.ended == []
    answers.now_s += answer_memory.STALLED_S
    slow.answer_size -= 1
    slow.send(answers.memory, 1)
    answers.memory.check()
    # What ends must free half of the limit: the light one would not be needed.
    assert answers.ended == [stalled, light]


def test_readers_that_take_a_byte_now_and_then_end_at_last() -> None:
    slow, light = Reader("slow"), Reader("light")
    answers = Answers(slow, light)
    slow.send(answers.memory, 1000)
    light.send(answers.memory, 10)
    while answers.now_s < answer_memory.EXHAUSTED_S_MAX:
        assert answers.ended == []
        answers.now_s += 0.5
        for reader in (slow, light):
            reader.answer_size -= 1
            reader.send(answers.memory, 1)
        answers.memory.check()
    assert answers.ended == [slow]


def test_no_limit_is_no_limit() -> None:
    reader = Reader("alice")
    answers = Answers(reader, limit=-1)
    reader.send(answers.memory, 1 << 40)
    answers.now_s += 100
    assert answers.memory.room(55) == 55
    assert answers.ended == []


def test_client_that_reads_no_answers_is_ended_and_others_are_served(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answer_memory, "STALLED_S", 0.0)
    monkeypatch.setattr(answer_memory, "CHECK_INTERVAL_S", 0.0)

    async def scenario() -> None:
        async with (
            serving(
                Echo(),
                queued_max_response_bytes=8 << 20,
                connection_write_buffer_max_bytes=64 << 20,
            ) as (server, port),
            connected(port) as (reader, writer),
            connected(port) as (other_reader, other),
        ):
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(framed(b"big") * 64)
            async with asyncio.timeout(60):
                while len(server._connections) > 1:
                    other.write(framed(b"tick"))
                    assert await read_frame(other_reader) == b"tick"

    run(scenario)


# ---- what a connection relies on, of the loops' own transports


class Recorder(asyncio.BufferedProtocol):
    """Notes what its transport calls. `at_start` is called when the connection is made."""

    def __init__(self, at_start: Callable[[Recorder], None] = lambda _: None) -> None:
        self.received = b""
        self.pauses: list[str] = []
        self.lost = asyncio.Event()
        self._at_start = at_start
        self._buffer = bytearray(1 << 16)

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._at_start(self)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self._buffer[:nbytes]

    def pause_writing(self) -> None:
        self.pauses.append("pause")

    def resume_writing(self) -> None:
        self.pauses.append("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()


@contextlib.asynccontextmanager
async def recorded(
    at_start: Callable[[Recorder], None] = lambda _: None, context: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[Recorder, asyncio.StreamReader, asyncio.StreamWriter]]:
    loop = asyncio.get_running_loop()
    made: asyncio.Queue[Recorder] = asyncio.Queue()

    def make() -> Recorder:
        recorder = Recorder(at_start)
        made.put_nowait(recorder)
        return recorder

    server = await loop.create_server(make, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    async with connected(port) as (reader, writer):
        yield await made.get(), reader, writer
    server.close()


def test_transport_that_is_paused_after_its_start_reads_nothing(run: Run) -> None:
    async def scenario() -> None:
        def pause_soon(recorder: Recorder) -> None:
            loop = asyncio.get_running_loop()
            loop.call_soon(lambda: recorder.transport.pause_reading())

        async with recorded(pause_soon) as (recorder, _, writer):
            await turns()
            writer.write(b"early")
            await turns(200)
            assert recorder.received == b""
            recorder.transport.resume_reading()
            await until(lambda: recorder.received == b"early")

    run(scenario)


def test_transport_pauses_and_resumes_its_writer(run: Run) -> None:
    async def scenario() -> None:
        async with recorded() as (recorder, reader, _):
            await until(lambda: hasattr(recorder, "transport"))
            recorder.transport.set_write_buffer_limits(high=1 << 20)
            size = 0
            while not recorder.pauses:
                recorder.transport.writelines([bytes(1 << 20), bytes(1 << 20)])
                size += 2 << 20
            assert recorder.transport.get_write_buffer_size() > 1 << 20
            await reader.readexactly(size)
            await until(lambda: recorder.pauses == ["pause", "resume"])
            await until(lambda: not recorder.transport.get_write_buffer_size())

    run(scenario)


def test_transport_that_is_closed_delivers_what_was_written(run: Run) -> None:
    async def scenario() -> None:
        async with recorded() as (recorder, reader, _):
            await until(lambda: hasattr(recorder, "transport"))
            recorder.transport.writelines([bytes(1 << 22), b"end"])
            recorder.transport.close()
            assert len(await reader.read(-1)) == (1 << 22) + 3
            await recorder.lost.wait()

    run(scenario)


def test_transport_that_is_aborted_while_closing_ends(run: Run) -> None:
    async def scenario() -> None:
        async with recorded() as (recorder, reader, _):
            await until(lambda: hasattr(recorder, "transport"))
            reader._transport.pause_reading()  # type: ignore[attr-defined]
            recorder.transport.writelines([bytes(1 << 26)])
            recorder.transport.close()
            await turns()
            assert not recorder.lost.is_set()
            recorder.transport.abort()
            await recorder.lost.wait()

    run(scenario)
