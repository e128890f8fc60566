"""Work that fails is logged, counted and retried with a backoff."""

from __future__ import annotations

import random

import pytest

from isotherm.errors import RemoteStorageError
from isotherm.metrics.registry import Metrics
from isotherm.remote.tasks.backoff import RetryBackoff
from isotherm.remote.tasks.retried_work import RetriedWork


def test_failures_are_logged_counted_and_wait_longer_each_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    metrics = Metrics()
    work = RetriedWork(
        "copy",
        "flights-0",
        backoff=RetryBackoff(500, 30_000, 0.0),
        rng=random.Random(0),
        metrics=metrics,
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
    assert [record.exc_info is not None for record in caplog.records] == [False, True, True]
