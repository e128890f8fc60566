"""Runs background work. A failure is logged, counted and retried, never raised."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

from isotherm.errors import IsothermError, RetriableError
from isotherm.metrics.registry import Metrics
from isotherm.remote.tasks.backoff import RetryBackoff

_logger = logging.getLogger(__name__)

TASKS = ("copy", "expiration", "partition-deletion", "index-cache")
TASK_ERRORS = "isotherm_remote_log_task_errors"
TASK_ERRORS_TEXT = "Runs of a task of the remote tier that failed; each is tried again."


class RetriedWork:
    """One task of one partition or other place. Not thread-safe: its runs must not overlap."""

    def __init__(
        self,
        task: str,
        place: object,
        *,
        backoff: RetryBackoff,
        rng: random.Random,
        metrics: Metrics,
    ) -> None:
        self._task = task
        self._place = place
        self._backoff = backoff
        self._rng = rng
        self._metrics = metrics
        self._failure_count = 0

    def run(self, work: Callable[[], object]) -> float | None:
        """Run `work`. Returns None if it succeeded, else the seconds until the next attempt."""
        try:
            work()
        except RetriableError as error:
            wait_s = self._wait_after_failure()
            _logger.warning(
                "remote tier task failed task=%s partition=%s failures=%d retry_s=%.1f: %s",
                *(self._task, self._place, self._failure_count, wait_s, _with_cause(error)),
            )
            return wait_s
        except Exception as error:  # a background tick: the schedule continues after any error
            wait_s = self._wait_after_failure()
            _logger.error(  # noqa: TRY400 - an error of our own names its place
                "remote tier task failed task=%s partition=%s failures=%d retry_s=%.1f: %s",
                *(self._task, self._place, self._failure_count, wait_s, error),
                exc_info=not isinstance(error, IsothermError),
            )
            return wait_s
        self._failure_count = 0
        return None

    def _wait_after_failure(self) -> float:
        self._failure_count += 1
        errors = self._metrics.counter(TASK_ERRORS, TASK_ERRORS_TEXT, ("task",))
        errors.labels(task=self._task).inc()
        return self._backoff.wait_ms(self._failure_count, self._rng) / 1000


def _with_cause(error: RetriableError) -> str:
    """One line with the error's cause, unless its text already has it."""
    if error.__cause__ is None or "reason=" in str(error):
        return str(error)
    cause, _, _ = str(error.__cause__).partition("\n")
    return f"{error} reason={f'{type(error.__cause__).__name__}: {cause}'!r}"
