"""Consecutive runs: which errors end them, which are retried, and how long the waits are."""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random

import pytest

from isotherm.errors import (
    BrokerUnreachableError,
    ConfigError,
    IsothermError,
    RemoteStorageError,
    SchemaRegistryError,
    TableOvertakenError,
)
from isotherm.spark.jobs.table_follow import RETRY_BACKOFF, FollowSettings, follow
from isotherm.testing.sim_clock import SimClock

AWAY = (
    BrokerUnreachableError("no broker answers"),
    SchemaRegistryError("the registry does not answer"),
    RemoteStorageError("the table cannot be written: the catalog fails"),
)


class Followed:
    """Runs that take `seconds` each. An outcome is an error or None. The last run sets `stop`."""

    def __init__(self, *outcomes: IsothermError | None, seconds: float = 1) -> None:
        self.clock = SimClock(auto_advance=True)
        self.stop = threading.Event()
        self.starts_s: list[float] = []
        self.lines: list[str] = []
        self._outcomes = list(outcomes)
        self._seconds = seconds

    def go(self, interval_s: float = 60, retry_timeout_s: float = 600) -> None:
        settings = FollowSettings(interval_s, retry_timeout_s)
        follow(self._run, settings, self.stop, self.clock, Random(1), self.lines.append)

    def _run(self) -> None:
        self.starts_s.append(self.clock.monotonic_s())
        self.clock.advance(round(self._seconds * 1000))
        outcome = self._outcomes.pop(0)
        if not self._outcomes:
            self.stop.set()
        if outcome is not None:
            raise outcome


def test_runs_start_an_interval_apart() -> None:
    runs = Followed(None, None, None)
    runs.go(interval_s=60)
    assert runs.starts_s == [0, 60, 120]
    assert not runs.lines


def test_run_that_takes_longer_is_followed_at_once() -> None:
    runs = Followed(None, None, None, seconds=90)
    runs.go(interval_s=60)
    assert runs.starts_s == [0, 90, 180]


def test_what_is_away_is_tried_again_with_a_line_each() -> None:
    runs = Followed(*AWAY, None, AWAY[0], None)
    runs.go()
    assert len(runs.lines) == 4
    for error, line in zip(AWAY, runs.lines, strict=False):
        assert line.startswith(f"{error}; again in ")
    waits = [
        after - before - 1 for before, after in zip(runs.starts_s, runs.starts_s[1:], strict=False)
    ]
    for wait, expected in zip(waits, (1, 2, 4, 59, 1), strict=True):
        assert wait == pytest.approx(expected, rel=RETRY_BACKOFF.jitter)


def test_waits_are_bounded() -> None:
    runs = Followed(*[AWAY[0]] * 30, None)
    runs.go(retry_timeout_s=10_000)
    waits = [
        after - before - 1 for before, after in zip(runs.starts_s, runs.starts_s[1:], strict=False)
    ]
    longest = RETRY_BACKOFF.backoff_max_ms / 1000
    assert longest / 2 < max(waits) <= longest * (1 + RETRY_BACKOFF.jitter)


def test_what_stays_away_ends_it_after_the_timeout() -> None:
    runs = Followed(*[AWAY[1]] * 1000)
    with pytest.raises(SchemaRegistryError):
        runs.go(retry_timeout_s=300)
    # The timeout counts from the end of the first failure. The last try starts at its end.
    assert runs.clock.monotonic_s() == pytest.approx(1 + 300 + 1, abs=1)


@pytest.mark.parametrize(
    "error",
    [
        TableOvertakenError("another run has written to the table meanwhile"),
        ConfigError("the table is of another topic"),
    ],
)
def test_other_errors_end_it(error: IsothermError) -> None:
    runs = Followed(None, error, None)
    with pytest.raises(type(error)):
        runs.go()
    assert len(runs.starts_s) == 2


def test_refusal_of_the_store_ends_it() -> None:
    refusal = RemoteStorageError("access denied")
    refusal.is_refusal = True
    runs = Followed(refusal, None)
    with pytest.raises(RemoteStorageError):
        runs.go()
    assert len(runs.starts_s) == 1


def test_stop_during_a_wait_ends_it_without_another_run() -> None:
    stop, runs = threading.Event(), 0
    clock = SimClock()

    def run() -> None:
        nonlocal runs
        runs += 1

    def stopped() -> None:
        clock.await_waiters(1)
        stop.set()

    begin: Callable[[], None] = stopped
    other = threading.Thread(target=begin)
    other.start()
    follow(run, FollowSettings(60, 0), stop, clock, Random(1), print)
    other.join()
    assert runs == 1
