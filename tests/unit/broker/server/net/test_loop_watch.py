"""Steps that hold up the event loop are counted, and the long ones logged once."""

from __future__ import annotations

import asyncio
import logging
import struct
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from isotherm.broker.server.net import loop_watch
from isotherm.broker.server.net.loop_watch import BEAT_S, LoopWatch
from isotherm.protocol.api_keys import ApiKey
from isotherm.testing.sim_clock import SimClock
from tests.support.echo_server import Echo, connected, framed, read_frame, serving

COUNT = "isotherm_event_loop_slow_step_seconds_count"
SUM = "isotherm_event_loop_slow_step_seconds_sum"
BUCKET = "isotherm_event_loop_slow_step_seconds_bucket"
IDLE = "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent"


class HandTimedLoop:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.busy_s = 0.0

    def time(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, callback: Any) -> Any:
        self.callback = callback

    def beat(self, late_s: float = 0.0, *, busy_s: float = 0.0) -> None:
        self.now_s += BEAT_S + late_s
        self.busy_s += busy_s
        self.callback()


class Watched:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.loop = HandTimedLoop()
        self.watch = LoopWatch(self.loop)  # type: ignore[arg-type]
        monkeypatch.setattr(loop_watch.time, "thread_time", lambda: self.loop.busy_s)
        self.watch.start()
        self._registry = CollectorRegistry()
        self._registry.register(self.watch)

    def value(self, sample: str, **labels: str) -> float | None:
        return self._registry.get_sample_value(sample, labels)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch)


def test_step_of_a_request_is_counted_under_its_name(watched: Watched) -> None:
    for duration_s in (0.1, 0.25, 0.3):
        watched.watch.step(duration_s, "Produce", 100, "192.0.2.1", "alice")
    assert watched.value(COUNT, request="Produce") == 3
    assert watched.value(BUCKET, request="Produce", le="0.25") == 2
    assert watched.value(BUCKET, request="Produce", le="0.5") == 3
    assert watched.value(SUM, request="Produce") == pytest.approx(0.65)


def test_step_of_a_second_is_logged_with_its_request(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watched.watch.step(0.999, "Produce", 100, "192.0.2.1", "alice")
    watched.watch.step(1.0, "ListOffsets", 243_000, "192.0.2.1", "alice")
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (
            logging.WARNING,
            (
                "a request blocked the event loop duration_ms=1000 request=ListOffsets"
                " size=243000 client=192.0.2.1 user=alice"
            ),
        )
    ]


def test_late_timer_is_a_step_of_something_else(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watched.loop.beat(0.09)
    assert watched.value(COUNT, request="other") is None
    watched.loop.beat(0.25, busy_s=0.5)
    assert watched.value(COUNT, request="other") == 1
    assert caplog.records == []
    watched.loop.beat(2.0, busy_s=0.125)
    assert watched.value(COUNT, request="other") == 2
    assert [record.getMessage() for record in caplog.records] == [
        "the event loop was blocked duration_ms=2000 busy_ms=125"
    ]


def test_lateness_that_a_request_explains_is_not_counted_twice(watched: Watched) -> None:
    watched.watch.step(2.0, "Produce", 100, "192.0.2.1", "alice")
    watched.loop.beat(2.0)
    assert watched.value(COUNT, request="other") is None
    watched.loop.beat(2.0)
    assert watched.value(COUNT, request="other") == 1


def test_idle_share_is_the_average_of_a_minute(watched: Watched) -> None:
    assert watched.value(IDLE) == 1
    for _ in range(1200):
        watched.loop.beat(busy_s=BEAT_S / 4)
    assert watched.value(IDLE) == pytest.approx(0.75, abs=0.001)
    watched.loop.beat(busy_s=2 * BEAT_S)  # a clock that is not exact
    assert watched.value(IDLE) == pytest.approx(0.75 * (1 - BEAT_S / 60), abs=0.001)


def test_connection_times_each_request() -> None:
    clock = SimClock()
    request = struct.pack(">hh", ApiKey.LIST_OFFSETS, 1)

    async def scenario() -> None:
        echo = Echo(clock, step_ms=125)
        async with serving(echo, clock) as (server, port), connected(port) as (reader, writer):
            registry = CollectorRegistry()
            registry.register(server.loop_watch)
            writer.write(framed(request) + framed(b"token"))
            assert await read_frame(reader) == request
            assert await read_frame(reader) == b"token"
            assert registry.get_sample_value(COUNT, {"request": "ListOffsets"}) == 1
            assert registry.get_sample_value(COUNT, {"request": "other"}) == 1
            writer.write(framed(b"wait"))
            await echo.waiting.wait()
            echo.release.set()
            assert await read_frame(reader) == b"wait"
            # Its two steps: until it waits, and its answer.
            assert registry.get_sample_value(COUNT, {"request": "other"}) == 3

    asyncio.run(scenario())
