"""A stop is awaited for a bounded time."""

from __future__ import annotations

import threading

import pytest

from isotherm.broker.bounded_stop import stop_within


def test_stop_is_waited_for() -> None:
    stopped = threading.Event()
    assert stop_within(10, "work", stopped.set)
    assert stopped.is_set()


def test_stop_that_hangs_is_left(caplog: pytest.LogCaptureFixture) -> None:
    release = threading.Event()
    assert not stop_within(0.01, "work", lambda: release.wait() or None)
    assert "work=work" in caplog.text
    release.set()
