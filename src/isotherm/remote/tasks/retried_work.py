"""Runs background work. A failure is logged, counted and retried, never raised."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable

from isotherm.clock import Clock
from isotherm.metrics.registry import Metrics
from isotherm.remote.outages import Outage
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
        clock: Clock,
    ) -> None:
        self._task = task
        self._place = place
        self._backoff = backoff
        self._rng = rng
        self._metrics = metrics
        self._failure_count = 0
        self._outage = Outage(
            _logger,
            clock,
            failing=f"remote tier task failed task={task} partition={place}",
            working=f"remote tier task works again task={task} partition={place}",
        )

    def run(self, work: Callable[[], object]) -> float | None:
        """Run `work`. Returns None if it succeeded, else the seconds until the next attempt."""
        try:
            work()
        except Exception as error:  # noqa: BLE001 - a background tick: the schedule continues
            self._failure_count += 1
            errors = self._metrics.counter(TASK_ERRORS, TASK_ERRORS_TEXT, ("task",))
            errors.labels(task=self._task).inc()
            self._outage.failed(error)
            wait_s = self._backoff.wait_ms(self._failure_count, self._rng) / 1000
            _logger.debug(
                "remote tier task is tried again task=%s partition=%s failures=%d retry_s=%.1f",
                *(self._task, self._place, self._failure_count, wait_s),
            )
            return wait_s
        self._failure_count = 0
        self._outage.worked()
        return None
