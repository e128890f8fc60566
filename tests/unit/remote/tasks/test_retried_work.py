"""Work that fails is logged, counted and retried with a backoff."""

from __future__ import annotations

import logging
import random

import pytest

from isotherm.errors import CorruptObjectError, RemoteStorageError
from isotherm.metrics.registry import Metrics
from isotherm.remote.tasks.backoff import RetryBackoff
from isotherm.remote.tasks.retried_work import RetriedWork
from isotherm.testing.sim_clock import SimClock


def test_failures_are_logged_counted_and_wait_longer_each_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    metrics = Metrics()
    work = RetriedWork(
        "copy",
        "flights-0",
        backoff=RetryBackoff(500, 30_000, 0.0),
        rng=random.Random(0),
        metrics=metrics,
        clock=SimClock(),
    )
    errors: list[Exception] = [RemoteStorageError("down"), ValueError("unforeseen")]

    def fail() -> None:
        raise errors[0]

    assert work.run(fail) == 0.5
    errors.pop(0)
    assert work.run(fail) == 1.0
    assert work.run(lambda: None) is None
    assert work.run(fail) == 0.5
    assert metrics.value("isotherm_remote_log_task_errors_total", task="copy") == 3
    assert all("flights-0" in message for message in caplog.messages)
    assert [(record.levelname, record.exc_info is not None) for record in caplog.records] == [
        ("INFO", False),
        ("ERROR", True),
        ("INFO", False),
        ("ERROR", True),
    ]


def retried() -> RetriedWork:
    return RetriedWork(
        "copy",
        "flights-0",
        backoff=RetryBackoff(500, 30_000, 0.0),
        rng=random.Random(0),
        metrics=Metrics(),
        clock=SimClock(),
    )


def test_retries_of_one_failure_have_one_line(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise RemoteStorageError("down") from OSError("line 1\nline 2")

    caplog.set_level(logging.INFO)
    work = retried()
    for _ in range(3):
        work.run(fail)
    work.run(lambda: None)
    assert caplog.messages == [
        "remote tier task failed task=copy partition=flights-0: down reason='OSError: line 1'",
        "remote tier task works again task=copy partition=flights-0",
    ]


def test_error_that_no_retry_mends_is_logged_as_an_error(caplog: pytest.LogCaptureFixture) -> None:
    def damaged() -> None:
        raise CorruptObjectError("segment is short")

    def unforeseen() -> None:
        raise ValueError("unforeseen")

    for fail, has_traceback in ((damaged, False), (unforeseen, True)):
        caplog.clear()
        assert retried().run(fail) == 0.5
        (record,) = caplog.records
        assert record.levelname == "ERROR"
        assert bool(record.exc_info) is has_traceback
