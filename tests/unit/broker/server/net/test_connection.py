"""Connections of the broker: frames in, answers out, over real loopback sockets."""

from __future__ import annotations

import asyncio
import asyncio.selector_events
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import cast

import pytest

from isotherm.broker.metadata.endpoint import Endpoint
from isotherm.broker.server.net.connection import (
    FRAME_SIZE_WITHOUT_MEMORY,
    READ_SIZE_WITHOUT_TIME,
    SCRATCH_SIZE,
    UNANSWERED_MAX,
    Connection,
)
from isotherm.broker.server.net.server import Server
from isotherm.broker.server.net.turns import ROUND_S
from isotherm.clock import SystemClock
from isotherm.config.broker import BrokerConfig
from isotherm.config.listener import Address, Listener, SecurityProtocol
from isotherm.config.server_properties import parse_broker_config
from isotherm.errors import ConfigError
from isotherm.testing.sim_clock import SimClock
from tests.support.echo_server import (
    BIG_ANSWER,
    LOCAL,
    LOOPS,
    Echo,
    Run,
    asyncio_pauses_writers,
    connected,
    framed,
    is_closed,
    read_frame,
    serving,
)

LISTENER = Listener(
    "PLAINTEXT", SecurityProtocol.PLAINTEXT, "127.0.0.1", 0, Address("127.0.0.1", 0)
)


class CountingWrites:
    """A transport that keeps each write. It never reads."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.is_closed = False

    def writelines(self, buffers: Sequence[bytes]) -> None:
        assert not self.is_closed
        self.writes.append(b"".join(buffers))

    def close(self) -> None:
        self.is_closed = True

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return ("127.0.0.1", 1)

    def set_write_buffer_limits(self, high: int) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None: ...


class HandTimer:
    def __init__(self, at: float, callback: Callable[[], None]) -> None:
        self._at = at
        self.callback = callback
        self.is_cancelled = False

    def when(self) -> float:
        return self._at

    def cancel(self) -> None:
        self.is_cancelled = True


class HandTimedLoop:
    """The timers of a loop, which fire in `advance`."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._timers: list[HandTimer] = []

    def time(self) -> float:
        return self._now_s

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> HandTimer:
        self._timers.append(HandTimer(self._now_s + delay_s, callback))
        return self._timers[-1]

    def call_soon(self, callback: Callable[[], None]) -> HandTimer:
        return self.call_later(0, callback)

    def advance(self, duration_s: float) -> None:
        self._now_s += duration_s
        due = [each for each in self._timers if each.when() <= self._now_s]
        self._timers = [each for each in self._timers if each not in due]
        for timer in due:
            if not timer.is_cancelled:
                timer.callback()


def receive(connection: Connection, data: bytes) -> None:
    """Deliver `data` in one read, as an event loop does."""
    buffer = connection.get_buffer(-1)
    assert len(data) <= len(buffer)
    buffer[: len(data)] = data
    connection.buffer_updated(len(data))


@pytest.fixture(params=LOOPS.values(), ids=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    if request.param is asyncio.new_event_loop and not asyncio_pauses_writers():
        pytest.skip("transport.writelines of this Python's asyncio never pauses its protocol")

    def run_scenario(scenario: Callable[[], Awaitable[None]]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(scenario())

    return run_scenario


@pytest.mark.parametrize("size", [0, 1, 100, SCRATCH_SIZE - 4, SCRATCH_SIZE, 3 * SCRATCH_SIZE + 7])
def test_frame_of_any_size_comes_back_whole(run: Run, size: int) -> None:
    payload = bytes(index % 251 for index in range(size))

    async def scenario() -> None:
        async with serving(Echo()) as (_, port), connected(port) as (reader, writer):
            writer.write(framed(payload) + framed(b"next"))
            assert await read_frame(reader) == payload
            assert await read_frame(reader) == b"next"

    run(scenario)


def test_frames_cut_at_every_byte_come_back_whole(run: Run) -> None:
    stream = framed(b"first") + framed(b"") + framed(b"second")

    async def scenario() -> None:
        async with serving(Echo()) as (_, port):
            for cut in range(1, len(stream)):
                async with connected(port) as (reader, writer):
                    writer.write(stream[:cut])
                    # The frame of another connection uses the shared scratch buffer between the two
                    # halves.
                    async with connected(port) as (other_reader, other_writer):
                        other_writer.write(framed(b"between"))
                        assert await read_frame(other_reader) == b"between"
                    writer.write(stream[cut:])
                    answers = [await read_frame(reader) for _ in range(3)]
                    assert answers == [b"first", b"", b"second"]

    run(scenario)


def test_pipelined_requests_are_answered_in_order_one_at_a_time(run: Run) -> None:
    async def scenario() -> None:
        echo = Echo()
        async with serving(echo) as (_, port), connected(port) as (reader, writer):
            writer.write(framed(b"1") + framed(b"wait") + framed(b"2") + framed(b"3"))
            assert await read_frame(reader) == b"1"
            await echo.waiting.wait()
            assert echo.frames == [b"1", b"wait"]
            echo.release.set()
            assert [await read_frame(reader) for _ in range(3)] == [b"wait", b"2", b"3"]

    run(scenario)


def unserved_connection(
    echo: Echo, timers: HandTimedLoop | None = None
) -> tuple[Connection, CountingWrites]:
    """Its requests take no time of a round, however slow the machine is."""
    loop = cast("asyncio.AbstractEventLoop", timers or asyncio.get_running_loop())
    server = Server(BrokerConfig(listeners=(LOCAL,)), loop, SimClock())
    server.frame_handler = echo
    connection, transport = Connection(server, LISTENER, loop), CountingWrites()
    connection.connection_made(cast("asyncio.Transport", transport))
    return connection, transport


def test_requests_of_one_read_take_turns_with_those_of_others() -> None:
    clock = SimClock()
    timers, echo = HandTimedLoop(), Echo(clock, step_ms=round(2000 * ROUND_S))
    loop = cast("asyncio.AbstractEventLoop", timers)
    server = Server(BrokerConfig(listeners=(LOCAL,)), loop, clock)
    server.frame_handler = echo
    busy, other = (Connection(server, LISTENER, loop) for _ in range(2))
    writes = CountingWrites()
    for each in (busy, other):
        each.connection_made(cast("asyncio.Transport", writes))
    many = [str(number).encode() for number in range(1000)]
    receive(busy, b"".join(map(framed, many)))
    receive(other, framed(b"one"))
    for _ in range(1001):
        timers.advance(0)
    assert echo.frames == [*many[:2], b"one", *many[2:]]
    # Each left when its turn was over.
    assert writes.writes == list(map(framed, echo.frames))


def test_reads_are_small_while_the_time_of_the_round_is_spent(run: Run) -> None:
    async def scenario() -> None:
        connection, _ = unserved_connection(Echo())
        assert len(connection.get_buffer(-1)) == SCRATCH_SIZE
        connection._owner.turns.left_s = 0
        assert len(connection.get_buffer(-1)) == READ_SIZE_WITHOUT_TIME

    run(scenario)


def test_request_that_is_done_but_for_its_answer_lets_the_next_begin(run: Run) -> None:
    async def scenario() -> None:
        echo = Echo()
        connection, transport = unserved_connection(echo)
        receive(connection, b"".join(map(framed, (b"done 1", b"done 2", b"3", b"wait", b"4"))))
        assert echo.frames == [b"done 1", b"done 2", b"3", b"wait"]
        echo.done[b"done 2"].set_result(None)
        await asyncio.sleep(0)
        assert transport.writes == []
        echo.done[b"done 1"].set_result(None)
        await asyncio.sleep(0)
        assert transport.writes == [framed(b"done 1") + framed(b"done 2") + framed(b"3")]
        assert connection.is_busy
        echo.release.set()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not connection.is_busy
        assert transport.writes[1:] == [framed(b"wait") + framed(b"4")]

    run(scenario)


def test_so_many_requests_wait_for_their_answers_and_no_more(run: Run) -> None:
    frames = [b"done %d" % number for number in range(UNANSWERED_MAX + 2)]

    async def scenario() -> None:
        echo = Echo()
        connection, transport = unserved_connection(echo)
        receive(connection, b"".join(map(framed, frames)))
        assert echo.frames == frames[:UNANSWERED_MAX]
        echo.done[frames[0]].set_result(None)
        await asyncio.sleep(0)
        assert echo.frames == frames[: UNANSWERED_MAX + 1]
        assert transport.writes == [framed(frames[0])]

    run(scenario)


def test_connection_is_closed_for_a_request_once_earlier_ones_are_answered(run: Run) -> None:
    async def scenario() -> None:
        echo = Echo()
        connection, transport = unserved_connection(echo)
        receive(connection, b"".join(map(framed, (b"done", b"bad", b"never"))))
        assert echo.frames == [b"done", b"bad"]
        assert not transport.is_closed
        echo.done[b"done"].set_result(None)
        await asyncio.sleep(0)
        assert transport.writes == [framed(b"done")]
        assert transport.is_closed
        assert echo.frames == [b"done", b"bad"]

    run(scenario)


def test_waits_for_answers_end_with_the_connection(run: Run) -> None:
    async def scenario() -> None:
        echo = Echo()
        connection, transport = unserved_connection(echo)
        receive(connection, framed(b"done 1") + framed(b"done 2"))
        connection.connection_lost(None)
        await asyncio.sleep(0)
        assert all(future.cancelled() for future in echo.done.values())
        assert transport.writes == []

    run(scenario)


@pytest.mark.parametrize("durations_s", [(4, 10), (10, 4)], ids=["longer", "shorter"])
def test_second_mute_does_not_shorten_the_first(durations_s: tuple[int, int]) -> None:
    """Several requests may be answered at once, each over a quota."""
    echo, timers = Echo(), HandTimedLoop()
    connection, _ = unserved_connection(echo, timers)
    for duration_s in durations_s:
        connection.mute(duration_s)
    receive(connection, framed(b"later"))
    timers.advance(9)
    assert echo.frames == []
    timers.advance(1)
    assert echo.frames == [b"later"]
    # No timer is left that would end a later mute.
    connection.mute(5)
    receive(connection, framed(b"last"))
    timers.advance(4)
    assert echo.frames == [b"later"]


def test_answers_to_the_frames_of_one_read_leave_in_one_write(run: Run) -> None:
    async def scenario() -> None:
        connection, transport = unserved_connection(Echo())
        receive(connection, framed(b"1") + framed(b"2") + framed(b"3"))
        assert transport.writes == [framed(b"1") + framed(b"2") + framed(b"3")]

    run(scenario)


def test_answer_waits_for_the_next_read_when_a_read_has_filled_its_buffer(run: Run) -> None:
    first, second = framed(bytes(20_000)), framed(b"second")

    async def scenario() -> None:
        connection, transport = unserved_connection(Echo())
        receive(connection, first[:100])
        receive(connection, first[100:] + second[:4])  # into a buffer of exactly that size
        assert connection.is_busy
        assert transport.writes == []
        receive(connection, second[4:])
        assert transport.writes == [first + second]
        await asyncio.sleep(0)
        assert len(transport.writes) == 1

    run(scenario)


def test_answer_leaves_in_the_next_turn_when_no_other_read_follows(run: Run) -> None:
    frame = framed(bytes(20_000))

    async def scenario() -> None:
        connection, transport = unserved_connection(Echo())
        receive(connection, frame[:100])
        receive(connection, frame[100:] + frame[:4])
        await asyncio.sleep(0)
        assert transport.writes == [frame]
        assert not connection.is_busy

    run(scenario)


def test_answer_that_waits_for_others_leaves_before_the_connection_is_closed(run: Run) -> None:
    frame = framed(bytes(20_000))

    async def scenario() -> None:
        connection, transport = unserved_connection(Echo())
        receive(connection, frame[:100])
        receive(connection, frame[100:] + frame[:4])
        connection.drain()
        assert transport.writes == [frame]
        assert transport.is_closed

    run(scenario)


def test_frames_that_follow_one_another_are_received_by_one_read_each(run: Run) -> None:
    frame = framed(bytes(SCRATCH_SIZE))

    async def scenario() -> None:
        echo = Echo()
        connection, _ = unserved_connection(echo)
        receive(connection, frame[:4])
        for _ in range(3):
            assert len(connection.get_buffer(-1)) == len(frame)
            receive(connection, frame[4:] + frame[:4])
        assert echo.frames == 3 * [frame[4:]]

    run(scenario)


@pytest.mark.parametrize("behind", [0, 1, 3, 4])
def test_frame_is_whole_whatever_of_the_next_one_came_with_it(run: Run, behind: int) -> None:
    frame, small = framed(bytes(SCRATCH_SIZE)), framed(b"small")

    async def scenario() -> None:
        echo = Echo()
        connection, _ = unserved_connection(echo)
        receive(connection, frame[:100])
        receive(connection, frame[100:] + small[:behind])
        assert echo.frames == [frame[4:]]
        receive(connection, small[behind:])
        receive(connection, framed(b""))
        assert echo.frames == [frame[4:], b"small", b""]

    run(scenario)


def test_illegal_size_behind_a_frame_closes_the_connection_after_its_answer(run: Run) -> None:
    frame = framed(bytes(SCRATCH_SIZE))

    async def scenario() -> None:
        connection, transport = unserved_connection(Echo())
        receive(connection, frame[:100])
        receive(connection, frame[100:] + b"GET ")
        assert transport.writes == [frame]
        assert transport.is_closed

    run(scenario)


def test_frame_behind_another_is_not_begun_while_request_memory_is_used_up(run: Run) -> None:
    frame = framed(b"wait" + bytes(SCRATCH_SIZE))

    async def scenario() -> None:
        echo = Echo()
        loop = asyncio.get_running_loop()
        server = Server(BrokerConfig(queued_max_request_bytes=SCRATCH_SIZE), loop, SystemClock())
        server.frame_handler = echo
        connection = Connection(server, LISTENER, loop)
        connection.connection_made(cast("asyncio.Transport", CountingWrites()))
        receive(connection, frame[:100])
        receive(connection, frame[100:] + frame[:4])
        assert server.memory.used == len(frame) - 4
        echo.release.set()
        for _ in range(20):
            await asyncio.sleep(0)
        assert server.memory.used == 0
        receive(connection, frame[4:100])
        assert server.memory.used == 96

    run(scenario)


def test_large_answers_wait_for_no_others(run: Run) -> None:
    async def scenario() -> None:
        connection, transport = unserved_connection(Echo())
        receive(connection, framed(b"big") + framed(b"big"))
        assert transport.writes == [framed(BIG_ANSWER), framed(BIG_ANSWER)]

    run(scenario)


def test_waiting_request_does_not_hold_up_other_connections(run: Run) -> None:
    async def scenario() -> None:
        echo = Echo()
        async with serving(echo) as (_, port), connected(port) as (_, writer):
            writer.write(framed(b"wait"))
            await echo.waiting.wait()
            async with connected(port) as (other_reader, other_writer):
                other_writer.write(framed(b"quick"))
                assert await read_frame(other_reader) == b"quick"
            echo.release.set()

    run(scenario)


@pytest.mark.parametrize("size_field", [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"GET "])
def test_illegal_size_closes_that_connection_after_earlier_answers(
    run: Run, size_field: bytes
) -> None:
    async def scenario() -> None:
        async with (
            serving(Echo()) as (server, port),
            connected(port) as (reader, writer),
            connected(port) as (healthy_reader, healthy_writer),
        ):
            writer.write(framed(b"good") + size_field + b"/ HTTP/1.1")
            assert await read_frame(reader) == b"good"
            assert await is_closed(reader)
            healthy_writer.write(framed(b"still here"))
            assert await read_frame(healthy_reader) == b"still here"
            assert server.connection_count == 1
            assert server.memory.used == 0

    run(scenario)


def test_frame_of_the_largest_size_is_served_and_one_byte_more_is_not(run: Run) -> None:
    async def scenario() -> None:
        async with serving(Echo(), socket_request_max_bytes=1000) as (_, port):
            async with connected(port) as (reader, writer):
                writer.write(framed(bytes(1000)))
                assert await read_frame(reader) == bytes(1000)
            async with connected(port) as (reader, writer):
                writer.write(framed(bytes(1001)))
                assert await is_closed(reader)

    run(scenario)


def test_undecodable_request_closes_the_connection_and_frees_its_memory(run: Run) -> None:
    async def scenario() -> None:
        async with serving(Echo()) as (server, port), connected(port) as (reader, writer):
            writer.write(framed(b"bad request"))
            assert await is_closed(reader)
            assert server.connection_count == 0
            assert server.memory.used == 0

    run(scenario)


def test_request_that_is_cancelled_closes_its_connection(run: Run) -> None:
    """Otherwise the client would take the answer of a later request for the missing one."""

    async def scenario() -> None:
        async with serving(Echo()) as (_, port), connected(port) as (reader, writer):
            writer.write(framed(b"cancelled"))
            await asyncio.sleep(0)
            writer.write(framed(b"next"))
            assert await is_closed(reader)

    run(scenario)


def test_connection_cut_within_a_frame_frees_its_memory(run: Run) -> None:
    async def scenario() -> None:
        echo = Echo()
        async with serving(echo) as (server, port):
            async with connected(port) as (_, writer):
                writer.write(framed(bytes(SCRATCH_SIZE * 2))[:100])
                async with connected(port) as (reader, other):
                    other.write(framed(b"after"))
                    await read_frame(reader)
                assert server.memory.used == 96
            await server.stop(5)
            assert server.memory.used == 0
            assert echo.frames == [b"after"]

    run(scenario)


def test_request_that_outlives_its_client_is_worked_on_and_no_other(run: Run) -> None:
    async def scenario() -> None:
        echo = Echo()
        for payload in (b"wait", b"wait, stay"):
            connection, transport = unserved_connection(echo)
            receive(connection, framed(payload))
            connection.connection_lost(None)
        echo.release.set()
        for _ in range(3):
            await asyncio.sleep(0)
        assert echo.waited == [b"wait, stay"]
        assert transport.writes == []

    run(scenario)


def test_reading_of_large_frames_pauses_while_request_memory_is_used_up(run: Run) -> None:
    large = b"after" + bytes(FRAME_SIZE_WITHOUT_MEMORY)

    async def scenario() -> None:
        echo = Echo()
        async with (
            serving(echo, queued_max_request_bytes=1000) as (server, port),
            connected(port) as (reader, writer),
            connected(port) as (other_reader, other_writer),
        ):
            other_writer.write(framed(b"before"))
            await read_frame(other_reader)
            writer.write(framed(b"wait" + bytes(1000)))
            await echo.waiting.wait()
            assert server.memory.is_exhausted
            other_writer.write(framed(large))
            await other_writer.drain()
            for _ in range(20):
                await asyncio.sleep(0)
            assert large not in echo.frames
            echo.release.set()
            assert len(await read_frame(reader)) == 1004
            assert await read_frame(other_reader) == large

    run(scenario)


@pytest.mark.parametrize("text", ["0", "-1", "-2"])
def test_request_memory_has_no_bound_without_a_positive_number(run: Run, text: str) -> None:
    """Kafka makes no pool of memory for such a number."""
    config = parse_broker_config({"queued.max.request.bytes": text})

    async def scenario() -> None:
        async with (
            serving(Echo(), queued_max_request_bytes=config.queued_max_request_bytes) as (
                server,
                port,
            ),
            connected(port) as (reader, writer),
        ):
            assert not server.memory.is_exhausted
            writer.write(framed(bytes(2 * SCRATCH_SIZE)))
            assert len(await read_frame(reader)) == 2 * SCRATCH_SIZE
            assert not server.memory.is_exhausted

    run(scenario)


def test_small_frames_are_answered_while_request_memory_is_used_up(run: Run) -> None:
    async def scenario() -> None:
        echo = Echo()
        async with (
            serving(echo, queued_max_request_bytes=1000) as (server, port),
            connected(port) as (reader, writer),
            connected(port) as (other_reader, other_writer),
        ):
            writer.write(framed(b"wait" + bytes(1000)))
            await echo.waiting.wait()
            for size in (10, FRAME_SIZE_WITHOUT_MEMORY, 10):
                other_writer.write(framed(bytes(size)))
                assert len(await read_frame(other_reader)) == size
            assert server.memory.is_exhausted
            # Who has a request under way is not read, however small the next one is.
            writer.write(framed(b"next"))
            await writer.drain()
            for _ in range(20):
                await asyncio.sleep(0)
            assert b"next" not in echo.frames
            echo.release.set()
            assert len(await read_frame(reader)) == 1004
            assert await read_frame(reader) == b"next"

    run(scenario)


def test_client_that_takes_no_answers_is_not_read_from(run: Run) -> None:
    async def scenario() -> None:
        echo = Echo()
        payload = bytes(1 << 20)
        async with (
            serving(echo, connection_write_buffer_max_bytes=1 << 20) as (server, port),
            connected(port) as (reader, writer),
        ):
            reader._transport.pause_reading()  # the client stops reading
            for _ in range(64):
                writer.write(framed(payload))
            async with connected(port) as (other_reader, other_writer):
                for _ in range(50):
                    other_writer.write(framed(b"tick"))
                    await read_frame(other_reader)
            # Socket buffers hold some answers; the server holds only a few more.
            assert len([frame for frame in echo.frames if frame == payload]) < 32
            reader._transport.resume_reading()
            for _ in range(64):
                assert len(await read_frame(reader)) == len(payload)
            assert server.memory.used == 0

    run(scenario)


def test_requests_read_already_wait_for_a_client_that_takes_no_answers(run: Run) -> None:
    async def scenario() -> None:
        echo = Echo()
        async with (
            serving(echo, connection_write_buffer_max_bytes=1 << 20) as (_, port),
            connected(port) as (reader, writer),
        ):
            reader._transport.pause_reading()
            writer.write(framed(b"big") * 64)  # one read delivers all of them
            async with connected(port) as (other_reader, other_writer):
                for _ in range(50):
                    other_writer.write(framed(b"tick"))
                    await read_frame(other_reader)
            assert 0 < echo.frames.count(b"big") < 32
            reader._transport.resume_reading()
            for _ in range(64):
                assert len(await read_frame(reader)) == len(BIG_ANSWER)

    run(scenario)


def test_connection_is_not_read_while_a_request_waits_behind_another(run: Run) -> None:
    async def scenario() -> None:
        echo = Echo()
        payload = bytes(SCRATCH_SIZE)
        async with serving(echo) as (server, port), connected(port) as (reader, writer):
            writer.write(framed(b"wait"))
            await echo.waiting.wait()
            for _ in range(200):
                writer.write(framed(payload))
            async with connected(port) as (other_reader, other_writer):
                for _ in range(50):
                    other_writer.write(framed(b"tick"))
                    await read_frame(other_reader)
            assert server.memory.used < 10 * len(payload)
            echo.release.set()
            assert await read_frame(reader) == b"wait"
            for _ in range(200):
                assert len(await read_frame(reader)) == len(payload)

    run(scenario)


def test_connections_of_an_address_beyond_its_limit_are_refused(run: Run) -> None:
    async def scenario() -> None:
        async with serving(Echo(), max_connections_per_ip=1) as (_, port):
            async with connected(port) as (reader, writer):
                writer.write(framed(b"one"))
                assert await read_frame(reader) == b"one"
                async with connected(port) as (second_reader, _):
                    assert await is_closed(second_reader)
                writer.write(framed(b"still"))
                assert await read_frame(reader) == b"still"
            async with connected(port) as (reader, writer):
                writer.write(framed(b"room again"))
                assert await read_frame(reader) == b"room again"

    run(scenario)


@contextlib.asynccontextmanager
async def serving_brokers_and_clients(**settings: str) -> AsyncIterator[tuple[Server, int, int]]:
    config = parse_broker_config(
        {
            "listeners": "INSIDE://127.0.0.1:0,CLIENTS://127.0.0.1:0",
            "listener.security.protocol.map": "INSIDE:PLAINTEXT,CLIENTS:PLAINTEXT",
            "inter.broker.listener.name": "INSIDE",
            "quota.window.size.seconds": "36000",
            **{name.replace("_", "."): text for name, text in settings.items()},
        }
    )
    server = Server(config, asyncio.get_running_loop(), SystemClock())
    inside, clients = await server.bind()
    await server.serve(Echo())
    try:
        yield server, inside.port, clients.port
    finally:
        await server.stop(5)


async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(framed(b"x"))
    assert await read_frame(reader) == b"x"


async def are_served(port: int, count: int) -> None:
    for _ in range(count):
        async with connected(port) as stream:
            await exchange(*stream)


@pytest.mark.parametrize("limited", ["CLIENTS", "INSIDE"])
def test_connection_above_the_rate_of_its_listener_waits_and_others_do_not(
    run: Run, limited: str
) -> None:
    async def scenario() -> None:
        key = f"listener.name.{limited.lower()}.max.connection.creation.rate"
        async with serving_brokers_and_clients(**{key: "0"}) as (_, *ports):
            inside, clients = ports
            slow, free = (clients, inside) if limited == "CLIENTS" else (inside, clients)
            async with connected(slow) as waiting, connected(slow) as behind:
                answers = [asyncio.create_task(exchange(*each)) for each in (waiting, behind)]
                await are_served(free, 5)
                assert not any(answer.done() for answer in answers)
                for answer in answers:
                    answer.cancel()

    run(scenario)


def test_brokers_find_room_above_the_limit_by_the_connection_that_was_used_least_recently(
    run: Run,
) -> None:
    async def scenario() -> None:
        async with serving_brokers_and_clients(max_connections="2") as (_, inside, clients):  # noqa: SIM117
            async with connected(clients) as idle, connected(clients) as used:
                for stream in (idle, used):
                    await exchange(*stream)
                async with connected(clients) as waiting:
                    answer = asyncio.create_task(exchange(*waiting))
                    async with connected(inside) as broker:
                        await exchange(*broker)
                        assert await is_closed(idle[0])
                        await exchange(*used)
                        assert not answer.done()
                    await answer  # now there is room

    run(scenario)


def test_lower_limit_closes_connections_and_a_higher_one_lets_them_in(run: Run) -> None:
    async def scenario() -> None:
        async with (
            serving(Echo(), max_connections=3) as (server, port),
            connected(port) as first,
            connected(port) as second,
            connected(port) as third,
        ):
            for stream in (first, second, third):
                await exchange(*stream)
            server.update_config(BrokerConfig(listeners=(LOCAL,), max_connections=1))
            assert await is_closed(first[0])
            assert await is_closed(second[0])
            await exchange(*third)
            async with connected(port) as waiting:
                answer = asyncio.create_task(exchange(*waiting))
                for _ in range(20):
                    await exchange(*third)
                assert not answer.done()
                server.update_config(BrokerConfig(listeners=(LOCAL,), max_connections=2))
                await answer

    run(scenario)


def test_idle_connection_is_closed_and_a_waiting_one_is_not(run: Run) -> None:
    async def scenario() -> None:
        echo = Echo()
        async with (
            serving(echo, connections_max_idle_ms=500) as (_, port),
            connected(port) as (waiting_reader, waiting_writer),
            connected(port) as (idle_reader, _),
        ):
            waiting_writer.write(framed(b"wait"))
            assert await is_closed(idle_reader)
            echo.release.set()
            assert await read_frame(waiting_reader) == b"wait"

    run(scenario)


def test_no_connection_is_too_idle_for_a_negative_limit(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = []
    check_idle = Server._check_idle
    monkeypatch.setattr(
        Server, "_check_idle", lambda server: checks.append(server) or check_idle(server)
    )

    async def scenario() -> None:
        async with (
            serving(Echo(), connections_max_idle_ms=-1) as (_, port),
            connected(port) as (reader, writer),
        ):
            for _ in range(3):
                await exchange(reader, writer)

    run(scenario)
    assert len(checks) == 1, "no timer looks for idle connections"


def test_stop_answers_the_request_being_worked_on_and_no_later_one(run: Run) -> None:
    async def scenario() -> None:
        echo = Echo()
        async with serving(echo) as (server, port), connected(port) as (reader, writer):
            writer.write(framed(b"wait") + framed(b"never"))
            await echo.waiting.wait()
            stopping = asyncio.ensure_future(server.stop(10))
            await asyncio.sleep(0)
            echo.release.set()
            assert await read_frame(reader) == b"wait"
            assert await is_closed(reader)
            await stopping
            assert echo.frames == [b"wait"]

    run(scenario)


def test_stop_cuts_connections_that_do_not_end_in_time(run: Run) -> None:
    async def scenario() -> None:
        echo = Echo()
        async with serving(echo) as (server, port), connected(port) as (reader, writer):
            writer.write(framed(b"wait"))
            await echo.waiting.wait()
            await server.stop(0)
            assert await is_closed(reader)
            assert server.connection_count == 0

    run(scenario)


def test_taken_port_is_named_at_start(run: Run) -> None:
    async def scenario() -> None:
        async with serving(Echo()) as (_, port):
            taken = BrokerConfig(listeners=(f"PLAINTEXT://127.0.0.1:{port}",))
            with pytest.raises(ConfigError, match=f"127.0.0.1:{port}"):
                await Server(taken, asyncio.get_running_loop(), SystemClock()).bind()

    run(scenario)


def test_error_of_a_listener_is_one_line_and_the_others_are_closed(run: Run) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with serving(Echo()) as (_, port):
            config = BrokerConfig(
                listeners=("INTERNAL://127.0.0.1:0", f"EXTERNAL://127.0.0.1:{port}"),
                listener_security_protocol_map="INTERNAL:PLAINTEXT,EXTERNAL:PLAINTEXT",
                inter_broker_listener_name="INTERNAL",
            )
            server = Server(config, loop, SystemClock())
            with pytest.raises(ConfigError) as raised:
                await server.bind()
            assert f"listener=EXTERNAL://127.0.0.1:{port} reason=" in str(raised.value)
            assert "address already in use" in str(raised.value).lower()
            assert raised.value.__cause__ is None
            await server.stop(0)

    run(scenario)


def test_each_listener_has_a_free_port_of_its_own_and_its_advertised_address(run: Run) -> None:
    async def scenario() -> None:
        config = BrokerConfig(
            listeners=("INTERNAL://127.0.0.1:0", "EXTERNAL://127.0.0.2:0", "HIDDEN://127.0.0.1:0"),
            advertised_listeners=("EXTERNAL://outside.example:9094", "INTERNAL://inside.example:0"),
            listener_security_protocol_map="INTERNAL:PLAINTEXT,EXTERNAL:PLAINTEXT,HIDDEN:PLAINTEXT",
            inter_broker_listener_name="INTERNAL",
        )
        server = Server(config, asyncio.get_running_loop(), SystemClock())
        internal, external = await server.bind()
        assert (internal.listener_name, internal.host) == ("INTERNAL", "inside.example")
        assert internal.port > 0
        assert external == Endpoint("EXTERNAL", "outside.example", 9094)
        await server.stop(0)

    run(scenario)


def test_listener_without_a_host_is_advertised_by_the_name_of_this_machine(run: Run) -> None:
    async def scenario() -> None:
        config = BrokerConfig(listeners=("PLAINTEXT://:0",))
        server = Server(config, asyncio.get_running_loop(), SystemClock())
        (endpoint,) = await server.bind()
        assert endpoint.host == socket.gethostname()
        await server.stop(0)

    run(scenario)


def test_port_is_free_at_once_after_a_stop(run: Run) -> None:
    """Connections that the broker closed first stay in TIME_WAIT. SO_REUSEADDR allows the new
    bind."""

    async def scenario() -> None:
        async with serving(Echo()) as (server, port), connected(port) as (reader, writer):
            writer.write(framed(b"ping"))
            await read_frame(reader)
            await server.stop(0)
            assert await is_closed(reader)
            again = BrokerConfig(listeners=(f"PLAINTEXT://127.0.0.1:{port}",))
            second = Server(again, asyncio.get_running_loop(), SystemClock())
            (endpoint,) = await second.bind()
            assert endpoint.port == port
            await second.stop(0)

    run(scenario)


def test_muted_connection_is_answered_and_goes_on_later(run: Run) -> None:
    async def scenario() -> None:
        echo = Echo()
        async with (
            serving(echo) as (_, port),
            connected(port) as (reader, writer),
            connected(port) as (other_reader, other_writer),
        ):
            writer.write(framed(b"mute") + framed(b"next"))
            assert await read_frame(reader) == b"mute"
            assert echo.frames == [b"mute"]
            other_writer.write(framed(b"other"))
            assert await read_frame(other_reader) == b"other"
            assert await read_frame(reader) == b"next"
            assert echo.frames[-1] == b"next"

    run(scenario)
