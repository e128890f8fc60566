"""A thread repeats its step after delays and at wakes, and ends at a stop."""

from __future__ import annotations

import queue
import threading

import pytest

from isotherm.broker.threads.step_thread import UNTIL_WOKEN_S, StepThread
from isotherm.testing.sim_clock import SimClock

GUARD_S = 300


class Steps:
    """The steps of one thread. `delays` are what they return."""

    def __init__(self, *delays: float | None, first_delay_s: float = 0.0) -> None:
        self.clock = SimClock()
        self.delays = list(delays)
        self.begun: queue.Queue[int] = queue.Queue()
        self.may_end = threading.Semaphore(0)
        self.thread = StepThread("steps", self._step, self.clock, first_delay_s=first_delay_s)

    def _step(self) -> float | None:
        self.begun.put(len(self.delays))
        assert self.may_end.acquire(timeout=GUARD_S)
        return self.delays.pop(0)

    def run_one(self) -> None:
        """Wait for the beginning of a step, and let it end."""
        self.begun.get(timeout=GUARD_S)
        self.may_end.release()

    def end(self) -> None:
        self.thread.begin_stop()
        self.may_end.release()
        assert self.thread.join(GUARD_S)


def test_step_comes_again_after_the_seconds_that_it_returned() -> None:
    steps = Steps(5.0, UNTIL_WOKEN_S)
    steps.thread.start()
    steps.run_one()
    steps.clock.await_waiters(1)
    steps.clock.advance(4_999)
    steps.clock.await_waiters(1, within_s=0.001)
    assert steps.begun.empty()
    steps.clock.advance(1)
    steps.run_one()
    steps.end()


def test_first_step_waits_for_its_delay() -> None:
    steps = Steps(UNTIL_WOKEN_S, first_delay_s=7.0)
    steps.thread.start()
    steps.clock.await_waiters(1, within_s=7.0)
    assert steps.begun.empty()
    steps.clock.advance(7_000)
    steps.run_one()
    steps.end()


@pytest.mark.parametrize("delay_s", [5.0, UNTIL_WOKEN_S])
def test_wake_ends_the_delay(delay_s: float) -> None:
    steps = Steps(UNTIL_WOKEN_S, first_delay_s=delay_s)
    steps.thread.start()
    steps.thread.wake()
    steps.run_one()
    steps.end()


def test_wake_during_a_step_begins_another_one() -> None:
    steps = Steps(UNTIL_WOKEN_S, UNTIL_WOKEN_S)
    steps.thread.start()
    steps.begun.get(timeout=GUARD_S)
    steps.thread.wake()
    steps.may_end.release()
    steps.run_one()
    steps.end()


def test_thread_ends_when_a_step_returns_none() -> None:
    steps = Steps(None)
    steps.thread.start()
    steps.run_one()
    assert steps.thread.join(GUARD_S)


@pytest.mark.parametrize("delay_s", [0.0, 5.0, UNTIL_WOKEN_S])
def test_stop_during_a_step_is_the_end_whatever_the_step_returns(delay_s: float) -> None:
    steps = Steps(delay_s)
    steps.thread.start()
    steps.begun.get(timeout=GUARD_S)
    steps.end()
    assert steps.begun.empty()


def test_wake_does_not_shorten_a_pause_and_a_stop_does() -> None:
    clock, paused = SimClock(), queue.Queue[bool]()
    may_pause = threading.Event()

    def step() -> float:
        assert may_pause.wait(GUARD_S)
        paused.put(thread.pause(60.0))
        return 0

    thread = StepThread("steps", step, clock)
    thread.start()
    thread.wake()
    may_pause.set()
    clock.await_waiters(1, within_s=60.0)
    assert paused.empty()
    clock.advance(60_000)
    assert paused.get(timeout=GUARD_S) is False
    clock.await_waiters(1, within_s=60.0)
    thread.begin_stop()
    assert paused.get(timeout=GUARD_S) is True
    assert thread.join(GUARD_S)


def test_thread_that_never_started_has_ended() -> None:
    steps = Steps()
    steps.thread.stop()
    assert steps.thread.join()
