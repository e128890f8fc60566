"""Buffers of large frames are used again, and never while anything refers to their bytes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable

import numpy as np
import pytest

from isotherm.broker.server.net.frame_pool import BUFFERS_MAX, POOLED_SIZE_MIN, FramePool
from tests.support.echo_server import LOOPS, Echo, connected, framed, read_frame, serving

SIZE_MAX = 1024


def address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])


def test_buffer_without_a_reference_is_used_again() -> None:
    pool = FramePool(SIZE_MAX)
    first = pool.take(100)
    assert len(first) == 100
    place = address(first)
    del first
    second = pool.take(SIZE_MAX)
    assert len(second) == SIZE_MAX
    assert address(second) == place


@pytest.mark.parametrize(
    "part",
    [
        lambda view: view,
        lambda view: view[50:60],
        lambda view: view.toreadonly(),
        lambda view: np.frombuffer(view[1:9], np.uint8),
        lambda view: memoryview(np.frombuffer(view, np.uint8)[3:])[2:],
    ],
)
def test_part_of_a_frame_keeps_its_buffer_from_being_used(
    part: Callable[[memoryview], object],
) -> None:
    pool = FramePool(SIZE_MAX)
    frame = pool.take(100)
    place, kept = address(frame), part(frame)
    del frame
    assert address(pool.take(100)) != place
    del kept
    assert address(pool.take(100)) == place


@pytest.mark.parametrize("difference", [-2, -1, 0, 1])
def test_interpreters_may_count_references_otherwise(
    difference: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Since Python 3.14 the argument of a call is no reference of its own: a buffer with one view
    has as many as a free one had before."""
    count = sys.getrefcount
    monkeypatch.setattr(sys, "getrefcount", lambda value: count(value) + difference)
    pool = FramePool(SIZE_MAX)
    first = pool.take(100)
    place = address(first)
    assert address(pool.take(100)) != place
    del first
    assert address(pool.take(100)) == place


def test_buffers_above_the_bound_are_not_kept() -> None:
    pool = FramePool(SIZE_MAX)
    frames = [pool.take(100) for _ in range(BUFFERS_MAX + 5)]
    places = [address(frame) for frame in frames]
    assert len(set(places)) == len(places)
    frames.clear()
    frames = [pool.take(SIZE_MAX) for _ in range(BUFFERS_MAX)]
    assert {address(frame) for frame in frames} == set(places[:BUFFERS_MAX])


@pytest.mark.parametrize("new_loop", LOOPS.values(), ids=LOOPS)
def test_large_frames_that_are_under_way_together_stay_apart(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def scenario() -> None:
        echo = Echo()
        payloads = [bytes([65 + index]) * (POOLED_SIZE_MIN + 7 * index) for index in range(6)]
        async with (
            serving(echo) as (_, port),
            connected(port) as (first_reader, first),
            connected(port) as (second_reader, second),
        ):
            for _ in range(3):
                for payload in payloads:
                    first.write(framed(payload))
                    second.write(framed(payload[::-1] + b"second"))
                for payload in payloads:
                    assert await read_frame(first_reader) == payload
                    assert await read_frame(second_reader) == payload[::-1] + b"second"

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(asyncio.wait_for(scenario(), 120))
