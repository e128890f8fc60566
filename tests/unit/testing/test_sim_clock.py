"""The simulated clock: time moves only when a test, or a wait with auto-advance, moves it."""

from __future__ import annotations

import threading

import pytest

from isotherm.testing.sim_clock import SimClock


def waiting_thread(clock: SimClock, event: threading.Event, timeout_s: float) -> tuple:
    answers: list[bool] = []
    thread = threading.Thread(target=lambda: answers.append(clock.wait(event, timeout_s)))
    thread.start()
    clock.await_waiters(1)
    return thread, answers


def test_time_moves_only_by_advance() -> None:
    clock = SimClock(now_ms=5_000)
    assert (clock.now_ms(), clock.monotonic_s()) == (5_000, 0)
    clock.advance(1_500)
    assert (clock.now_ms(), clock.monotonic_s()) == (6_500, 1.5)


def test_wall_clock_jump_leaves_the_monotonic_clock() -> None:
    clock = SimClock(now_ms=5_000)
    clock.jump_wall_clock(-2_000)
    assert (clock.now_ms(), clock.monotonic_s()) == (3_000, 0)


def test_wait_returns_when_time_reaches_the_deadline() -> None:
    clock = SimClock()
    thread, answers = waiting_thread(clock, threading.Event(), timeout_s=2)
    clock.advance(1_999)
    clock.await_waiters(1)
    assert thread.is_alive()
    clock.advance(1)
    thread.join(300)
    assert answers == [False]


def test_wait_returns_when_the_event_is_set() -> None:
    clock, event = SimClock(), threading.Event()
    thread, answers = waiting_thread(clock, event, timeout_s=2)
    event.set()
    thread.join(300)
    assert answers == [True]
    assert clock.monotonic_s() == 0


def test_wait_with_auto_advance_moves_the_clock_itself() -> None:
    clock = SimClock(auto_advance=True)
    assert clock.wait(threading.Event(), 3) is False
    assert clock.monotonic_s() == 3


def test_advance_backwards_is_refused() -> None:
    with pytest.raises(ValueError, match="does not go back"):
        SimClock().advance(-1)


def test_await_waiters_without_a_waiter_ends() -> None:
    with pytest.raises(TimeoutError):
        SimClock().await_waiters(1, real_timeout_s=0.01)
