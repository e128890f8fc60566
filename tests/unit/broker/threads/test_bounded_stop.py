"""A stop is awaited for a bounded time."""

from __future__ import annotations

import threading

import pytest

from isotherm.broker.threads.bounded_stop import stop_within


def test_stop_is_waited_for() -> None:
    stopped = threading.Event()
    assert stop_within(10, "work", stopped.set)
    assert stopped.is_set()


def test_stop_that_hangs_is_left(caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()
    assert not stop_within(0.01, "work", lambda: release.wait() or None)
    assert "work=work" in caplog.text
    release.set()


def test_error_of_a_stop_is_raised() -> None:
    def stop() -> None:
        raise OSError("the store is gone")

    with pytest.raises(OSError, match="the store is gone"):
        stop_within(10, "work", stop)


def test_error_of_a_stop_that_was_left_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()
    threads = set(threading.enumerate())

    def stop() -> None:
        release.wait()
        raise OSError("the store is gone")

    assert not stop_within(0.01, "work", stop)
    (left,) = set(threading.enumerate()) - threads
    release.set()
    left.join()
    assert "stop failed work=work" in caplog.text
    assert "the store is gone" in caplog.text
