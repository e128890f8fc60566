"""The wait of a read: it ends for all of the request's threads, once and for good."""

from __future__ import annotations

import pytest

from isotherm.errors import RequestTimedOutError
from isotherm.remote.reading.read_wait import NO_WAIT, ReadWait


def test_stop_wakes_the_reads_that_wait_and_only_those() -> None:
    wait, woken = ReadWait(), list[str]()
    with wait.waiting(lambda: woken.append("outer")):
        with wait.waiting(lambda: woken.append("inner")):
            pass
        with wait.waiting(lambda: woken.append("other")):
            wait.stop(has_left=False)
    assert woken == ["outer", "other"]
    wait.stop(has_left=False)
    assert woken == ["outer", "other"]


def test_read_that_is_stopped_is_over_for_later_reads_too() -> None:
    wait = ReadWait()
    wait.check()
    assert (wait.is_over, wait.has_left) == (False, False)
    wait.stop(has_left=False)
    assert (wait.is_over, wait.has_left) == (True, False)
    for _ in range(2):
        with pytest.raises(RequestTimedOutError):
            wait.check()


def test_client_that_has_left_does_not_come_back() -> None:
    wait = ReadWait()
    wait.stop(has_left=False)
    wait.stop(has_left=True)
    wait.stop(has_left=False)
    assert (wait.is_over, wait.has_left) == (True, True)


def test_read_without_time_may_not_wait() -> None:
    assert not NO_WAIT.may_wait
    assert ReadWait().may_wait


def test_read_that_fails_is_not_woken_later() -> None:
    wait, woken = ReadWait(), list[str]()
    with pytest.raises(ZeroDivisionError), wait.waiting(lambda: woken.append("failed")):
        raise ZeroDivisionError
    wait.stop(has_left=True)
    assert woken == []
