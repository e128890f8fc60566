"""Time until a failed task runs again. Pure, apart from the random generator passed in."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Self

from isotherm.config.remote import RemoteLogManagerConfig

_DOUBLINGS_MAX = 30  # keeps the power small; 500 ms doubled 30 times is 17 years


@dataclass(frozen=True, slots=True)
class RetryBackoff:
    """The keys remote.log.manager.task.retry.*: doubling from `backoff_ms` up to
    `backoff_max_ms`, each wait spread evenly by +-`jitter` (0.2 is 20 percent)."""

    backoff_ms: int
    backoff_max_ms: int
    jitter: float

    @classmethod
    def from_config(cls, config: RemoteLogManagerConfig) -> Self:
        return cls(
            config.remote_log_manager_task_retry_backoff_ms,
            config.remote_log_manager_task_retry_backoff_max_ms,
            config.remote_log_manager_task_retry_jitter,
        )

    def wait_ms(self, failure_count: int, rng: random.Random) -> float:
        """The wait after the n-th failure in a row (from 1). The jitter may exceed the maximum."""
        doubled = self.backoff_ms * 2.0 ** min(failure_count - 1, _DOUBLINGS_MAX)
        return min(doubled, self.backoff_max_ms) * rng.uniform(1 - self.jitter, 1 + self.jitter)
