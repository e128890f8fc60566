"""PeriodicTasks on a simulated clock."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial

import pytest

from isotherm.remote.periodic_tasks import UNTIL_WOKEN_S, PeriodicTasks
from isotherm.remote.threads import SystemThreads
from isotherm.testing.sim_clock import SimClock

# Ends a test that hangs. The time of the tasks is the simulated clock's.
WAIT_S = 300


@pytest.fixture
def clock() -> SimClock:
    return SimClock()


@pytest.fixture
def tasks(clock: SimClock) -> Iterator[PeriodicTasks]:
    tasks = PeriodicTasks("test", 2, clock)
    yield tasks
    tasks.close()


class Ticks:
    """A task that counts its runs and lets a test wait for the n-th."""

    def __init__(self, delay_s: float | None = 30.0) -> None:
        self.delay_s = delay_s
        self.count = 0
        self._changed = threading.Condition()

    def __call__(self) -> float | None:
        with self._changed:
            self.count += 1
            self._changed.notify_all()
            return self.delay_s

    def wait_for(self, count: int) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.count >= count, WAIT_S)


def test_tick_runs_at_once_and_then_after_the_delay_it_asked_for(
    tasks: PeriodicTasks, clock: SimClock
) -> None:
    ticks = Ticks()
    tasks.schedule("a", ticks)
    assert ticks.wait_for(1)
    clock.await_waiters(1, within_s=30)
    clock.advance(29_000)
    clock.await_waiters(1, within_s=1)
    assert ticks.count == 1
    clock.advance(1_001)
    assert ticks.wait_for(2)


def test_tick_that_returns_none_is_over(tasks: PeriodicTasks, clock: SimClock) -> None:
    once, other = Ticks(None), Ticks()
    tasks.schedule("once", once)
    assert once.wait_for(1)
    tasks.schedule("other", other)
    assert other.wait_for(1)
    clock.await_waiters(1, within_s=30)
    clock.advance(60_000)
    assert other.wait_for(2)
    assert once.count == 1


def test_scheduled_key_keeps_its_tick(tasks: PeriodicTasks) -> None:
    first, second = Ticks(), Ticks()
    tasks.schedule("a", first)
    tasks.schedule("a", second)
    assert first.wait_for(1)
    assert second.count == 0


def test_cancel_of_a_running_tick_is_done_when_it_ends(
    tasks: PeriodicTasks, clock: SimClock
) -> None:
    entered, go = threading.Event(), threading.Event()

    def tick() -> float:
        entered.set()
        assert go.wait(WAIT_S)
        return 0.0

    tasks.schedule("a", tick)
    assert entered.wait(WAIT_S)
    stopped = tasks.cancel("a")
    assert not stopped.done()
    go.set()
    stopped.result(WAIT_S)
    entered.clear()
    other = Ticks()
    tasks.schedule("b", other)
    assert other.wait_for(1)
    assert not entered.is_set()


def test_cancel_of_a_tick_that_does_not_run_is_done_at_once(tasks: PeriodicTasks) -> None:
    assert tasks.cancel("unknown").done()


def test_long_tick_holds_up_no_other_key(tasks: PeriodicTasks) -> None:
    go = threading.Event()

    def long() -> None:
        assert go.wait(WAIT_S)

    tasks.schedule("long", long)
    short = Ticks()
    tasks.schedule("short", short)
    assert short.wait_for(1)
    go.set()


def test_close_waits_for_the_running_tick_and_starts_none(clock: SimClock) -> None:
    tasks = PeriodicTasks("test", 1, clock)
    entered, ended = threading.Event(), Future[None]()

    def tick() -> float:
        entered.set()
        ended.set_result(None)
        return 3600.0

    tasks.schedule("a", tick)
    assert entered.wait(WAIT_S)
    tasks.close()
    assert ended.done()
    late = Ticks()
    tasks.schedule("late", late)
    tasks.close()
    assert late.count == 0


class NotedThreads(SystemThreads):
    """Notes how each pool is shut down.

    The first shutdown that waits lets the running ticks go on.
    """

    def __init__(self) -> None:
        self.shutdowns: list[tuple[int, bool]] = []
        self.go = threading.Event()
        self._pool_count = 0

    def pool(self, name: str, thread_count: int) -> Executor:
        number, noted = self._pool_count, self
        self._pool_count += 1

        class Pool(ThreadPoolExecutor):
            def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
                noted.shutdowns.append((number, wait))
                if wait:
                    noted.go.set()
                super().shutdown(wait, cancel_futures=cancel_futures)

        return Pool(thread_count)


def test_close_waits_for_the_ticks_of_all_pools(clock: SimClock) -> None:
    threads = NotedThreads()
    tasks = PeriodicTasks("test", 1, clock, threads)
    ended: list[str] = []
    started = threading.Semaphore(0)

    def tick(name: str) -> None:
        started.release()
        threads.go.wait(WAIT_S)
        ended.append(name)

    for name in ("old", "new"):
        tasks.schedule(name, partial(tick, name))
        assert started.acquire(timeout=WAIT_S)
        if name == "old":
            tasks.resize(1)
    tasks.close()
    assert sorted(ended) == ["new", "old"]
    assert threads.shutdowns == [(0, False), (0, True), (1, True)]


def test_resized_tasks_run_more_at_once(clock: SimClock) -> None:
    tasks = PeriodicTasks("test", 1, clock)
    go, started = threading.Event(), threading.Event()

    def block() -> None:
        started.set()
        go.wait(WAIT_S)

    try:
        tasks.schedule("a", block)
        assert started.wait(WAIT_S)
        tasks.resize(1)
        ticks = Ticks(None)
        tasks.schedule("b", ticks)
        assert ticks.wait_for(1)
    finally:
        go.set()
        tasks.close()


def test_key_scheduled_again_while_its_cancelled_tick_ends_goes_on(
    tasks: PeriodicTasks, clock: SimClock
) -> None:
    entered, go = threading.Event(), threading.Event()

    def tick() -> float:
        entered.set()
        assert go.wait(WAIT_S)
        return 0.0

    tasks.schedule("a", tick)
    assert entered.wait(WAIT_S)
    stopped = tasks.cancel("a")
    later = Ticks()
    tasks.schedule("a", later)
    go.set()
    stopped.result(WAIT_S)
    assert later.wait_for(1)
    clock.await_waiters(1, within_s=30)
    clock.advance(30_000)
    assert later.wait_for(2)


def test_cancelled_key_runs_no_further_tick(tasks: PeriodicTasks, clock: SimClock) -> None:
    cancelled, other = Ticks(), Ticks()
    tasks.schedule("b", other)
    assert other.wait_for(1)
    clock.await_waiters(1, within_s=30)  # the next tick of "b" is due before the clock advances
    tasks.schedule("a", cancelled)
    assert cancelled.wait_for(1)
    tasks.cancel("a").result(WAIT_S)
    clock.advance(30_000)
    assert other.wait_for(2)
    assert cancelled.count == 1


def test_first_tick_waits_for_its_delay(tasks: PeriodicTasks, clock: SimClock) -> None:
    now, later = Ticks(10.0), Ticks()
    tasks.schedule("later", later, 25.0)
    tasks.schedule("now", now)
    for count in (1, 2, 3):
        assert now.wait_for(count)
        assert later.count == 0
        clock.await_waiters(1, within_s=10)
        clock.advance(10_000)
    assert later.wait_for(1)


def test_share_of_idle_threads_is_that_without_a_tick(tasks: PeriodicTasks) -> None:
    go, started = threading.Event(), threading.Semaphore(0)

    def block() -> None:
        started.release()
        assert go.wait(WAIT_S)

    assert tasks.idle_share == 1
    for number, share in ((1, 0.5), (2, 0.0), (3, 0.0)):
        tasks.schedule(number, block)
        if number < 3:
            assert started.acquire(timeout=WAIT_S)
            assert tasks.idle_share == share
    tasks.resize(4)
    assert tasks.idle_share in (0.5, 0.25), "the third waits for a thread, or has one already"
    go.set()


def test_tick_that_waits_for_a_wake_is_not_run_while_time_passes(
    tasks: PeriodicTasks, clock: SimClock
) -> None:
    asleep, other = Ticks(UNTIL_WOKEN_S), Ticks()
    tasks.schedule("asleep", asleep)
    assert asleep.wait_for(1)
    tasks.schedule("other", other)
    for count in range(1, 6):
        assert other.wait_for(count)
        clock.await_waiters(1, within_s=30)
        clock.advance(30_000)
    assert asleep.count == 1
    tasks.wake("asleep", 0.0)
    assert asleep.wait_for(2)


def test_wake_makes_a_tick_due_earlier_and_never_later(
    tasks: PeriodicTasks, clock: SimClock
) -> None:
    ticks = Ticks()
    tasks.schedule("a", ticks)
    assert ticks.wait_for(1)
    clock.await_waiters(1, within_s=30)
    tasks.wake("a", 40.0)
    tasks.wake("a", 10.0)
    tasks.wake("a", 20.0)
    clock.await_waiters(1, within_s=10)
    clock.advance(9_999)
    clock.await_waiters(1, within_s=1)
    assert ticks.count == 1
    clock.advance(1)
    assert ticks.wait_for(2)
    clock.await_waiters(1, within_s=30)
    clock.advance(10_000)  # the time of the wake for 20 s has passed: it was one run that was due
    clock.await_waiters(1, within_s=20)
    assert ticks.count == 2
    clock.advance(20_000)
    assert ticks.wait_for(3)


def test_wake_during_a_tick_begins_the_next_one(tasks: PeriodicTasks, clock: SimClock) -> None:
    ticks: list[float] = []
    done = threading.Semaphore(0)

    def tick() -> float:
        ticks.append(clock.monotonic_s())
        if len(ticks) == 1:
            tasks.wake("a", 5.0)
        done.release()
        return UNTIL_WOKEN_S

    tasks.schedule("a", tick)
    assert done.acquire(timeout=WAIT_S)
    clock.await_waiters(1, within_s=5)
    clock.advance(5_000)
    assert done.acquire(timeout=WAIT_S)
    assert ticks[1] - ticks[0] == 5.0
    tasks.wake("unknown", 0.0)


def test_queue_does_not_grow_with_the_wakes_of_a_key(tasks: PeriodicTasks, clock: SimClock) -> None:
    ticks = Ticks(UNTIL_WOKEN_S)
    tasks.schedule("a", ticks)
    assert ticks.wait_for(1)
    for number in range(10_000):
        tasks.wake("a", 100_000.0 - number)
    assert len(tasks._queue) < 200
    tasks.wake("a", 0.0)
    assert ticks.wait_for(2)
