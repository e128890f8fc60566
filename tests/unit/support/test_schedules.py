"""The scheduler itself: every schedule is explored, the same choices give the same run, and a crash
ends all threads."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.support.schedules.cooperative import Event, Lock, cooperative_threading
from tests.support.schedules.scheduler import ScheduleError, Scheduler
from tests.support.schedules.strategies import Exploration, ListedChoices, RandomStrategy

Works = Callable[[Scheduler], list[Callable[[], None]]]


def run_with(strategy: ListedChoices | RandomStrategy, works: Works) -> tuple[Scheduler, bool]:
    """Run the works under the strategy. Returns the scheduler, and whether all ended without a
    crash."""
    run = Scheduler(strategy, 0)
    with cooperative_threading(run):
        threads = [run.spawn(str(number), work) for number, work in enumerate(works(run))]
        run.is_quiet = False
        try:
            return run, run.block(lambda: all(thread.has_ended for thread in threads), "all")
        finally:
            run.kill()


def explored(works: Works, *, preemptions: int, crashes: int = 0) -> list[Scheduler]:
    runs, exploration = [], Exploration()
    for choices in exploration:
        strategy = ListedChoices(choices, preemptions=preemptions, crashes=crashes)
        runs.append(run_with(strategy, works)[0])
        exploration.add(strategy)
    return runs


class Counting:
    """Two threads that add to one counter, each in two steps."""

    def __init__(self) -> None:
        self.results: set[int] = set()

    def __call__(self, run: Scheduler) -> list[Callable[[], None]]:
        total, left = [0], [2]

        def add() -> None:
            before = total[0]
            run.point("between")
            total[0] = before + 1
            left[0] -= 1
            if not left[0]:
                self.results.add(total[0])

        return [add, add]


def test_a_lost_update_needs_one_preemption() -> None:
    alone, beside = Counting(), Counting()
    explored(alone, preemptions=0)
    runs = explored(beside, preemptions=1)
    assert alone.results == {2}
    assert beside.results == {1, 2}
    assert len({tuple(run.trace) for run in runs}) == len(runs)


def test_a_lock_keeps_the_update() -> None:
    results = set()

    def works(run: Scheduler) -> list[Callable[[], None]]:
        lock, total = Lock("counter"), [0]

        def add() -> None:
            with lock:
                before = total[0]
                run.point("between")
                total[0] = before + 1
            results.add(total[0])

        return [add, add]

    explored(works, preemptions=3)
    assert results == {1, 2}


def test_locks_taken_in_two_orders_are_found() -> None:
    def works(run: Scheduler) -> list[Callable[[], None]]:
        one, other = Lock("one"), Lock("other")

        def take(first: Lock, second: Lock) -> None:
            with first, second:
                pass

        return [lambda: take(one, other), lambda: take(other, one)]

    with pytest.raises(ScheduleError, match="wait for each other"):
        explored(works, preemptions=1)
    explored(works, preemptions=0)


def test_a_crash_ends_every_thread_where_it_stands() -> None:
    done: list[str] = []

    def works(run: Scheduler) -> list[Callable[[], None]]:
        lock = Lock("shared")

        def work() -> None:
            try:
                with lock:
                    run.point("write")
                    done.append("written")
            finally:
                done.append("left")

        return [work, work]

    outcomes = []
    exploration = Exploration()
    for choices in exploration:
        done.clear()
        strategy = ListedChoices(choices, preemptions=0, crashes=1)
        _, has_ended = run_with(strategy, works)
        outcomes.append((has_ended, done.count("written")))
        assert done.count("left") in {0, 1, 2}
        exploration.add(strategy)
    assert set(outcomes) == {(True, 2), (False, 0), (False, 1)}


def test_time_passes_when_nothing_else_can_go_on() -> None:
    seen: list[float] = []

    def works(run: Scheduler) -> list[Callable[[], None]]:
        event = Event()

        def late() -> None:
            assert not event.wait(5)
            seen.append(run.now_ms)
            event.set()

        def waiting() -> None:
            assert event.wait(300)
            seen.append(run.now_ms)

        return [late, waiting]

    run_with(ListedChoices((), preemptions=0, crashes=0), works)
    assert seen == [5000, 5000]


def test_an_error_of_a_thread_reaches_the_driver() -> None:
    def works(run: Scheduler) -> list[Callable[[], None]]:
        def fail() -> None:
            raise KeyError("mine")

        return [fail]

    with pytest.raises(KeyError, match="mine"):
        run_with(ListedChoices((), preemptions=0, crashes=0), works)


def test_a_seed_is_a_schedule() -> None:
    def works(run: Scheduler) -> list[Callable[[], None]]:
        def step() -> None:
            for number in range(20):
                run.point(str(number))

        return [step, step, step]

    def trace(seed: int) -> list[tuple[str, str]]:
        return run_with(RandomStrategy(random.Random(seed)), works)[0].trace

    traces = [trace(seed) for seed in range(20)]
    assert traces == [trace(seed) for seed in range(20)]
    assert len(set(map(tuple, traces))) > 5
