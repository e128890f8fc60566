"""Waits for what another thread, another process or the event loop brings about.

Only this module sleeps: a test elsewhere names the condition that it waits for. Times are guards
and paces, never expectations.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Final

TIMEOUT_S: Final = 300.0
_POLL_S: Final = 0.01
_LOOP_POLL_S: Final = 0.001


def wait_until(
    condition: Callable[[], object],
    subject: str | Callable[[], str] = "a condition",
    *,
    timeout_s: float = TIMEOUT_S,
    pause_s: float = _POLL_S,
) -> None:
    """Poll until the condition is true. AssertionError names the subject after the timeout."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            name = subject if isinstance(subject, str) else subject()
            raise AssertionError(f"waited {timeout_s:.0f} s in vain for {name}")
        time.sleep(pause_s)


async def until(condition: Callable[[], object]) -> None:
    """Poll on the loop until the condition is true. The time-out of the test is the bound."""
    while not condition():
        await one_poll()


async def one_poll() -> None:
    """Give the loop's other tasks and the threads of the process a moment."""
    await asyncio.sleep(_LOOP_POLL_S)


async def timers_fire() -> None:
    """Let timers of the loop fire that are due within a few milliseconds of real time."""
    for _ in range(10):
        await one_poll()


def go_on_for(pause_s: float) -> None:
    """Let others work for that long: a pace, after which nothing is expected yet."""
    time.sleep(pause_s)


async def loop_goes_on_for(pause_s: float) -> None:
    """The same for a task of the loop."""
    await asyncio.sleep(pause_s)


def paced(pause_s: float, *, for_s: float) -> Iterator[None]:
    """Yield again and again for a span of real time, in which a server's sessions grow old."""
    ends_s = time.monotonic() + for_s
    while time.monotonic() < ends_s:
        yield
        time.sleep(pause_s)
