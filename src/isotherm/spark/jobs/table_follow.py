"""Runs one update of a table after the other until it is stopped (`isotherm pipeline table
--follow`).

If a run fails because a service is unavailable (a broker, the bucket, a registry, the catalog), the
table is unchanged. The run is repeated after a wait that grows each time. Any other error ends the
loop.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass

from isotherm.clock import Clock
from isotherm.errors import RemoteStorageError, RetriableError
from isotherm.remote.tasks.backoff import RetryBackoff

RETRY_BACKOFF = RetryBackoff(backoff_ms=1_000, backoff_max_ms=60_000, jitter=0.2)


@dataclass(frozen=True, slots=True)
class FollowSettings:
    """`interval_s` is the least time from the start of a run to the start of the next. If runs fail
    for `retry_timeout_s` without a success in between, the last error is raised."""

    interval_s: float
    retry_timeout_s: float


def follow(
    run: Callable[[], None],
    settings: FollowSettings,
    stop: threading.Event,
    clock: Clock,
    rng: random.Random,
    print_line: Callable[[str], None],
) -> None:
    """Call `run` again and again until `stop` is set. `print_line` gets a line for each failure
    after which the run is repeated. `stop` does not interrupt a run."""
    failures, failing_since_s = 0, 0.0
    while not stop.is_set():
        started_s = clock.monotonic_s()
        try:
            run()
        except RetriableError as error:
            now_s = clock.monotonic_s()
            if not failures:
                failing_since_s = now_s
            left_s = failing_since_s + settings.retry_timeout_s - now_s
            # A refusal, such as wrong credentials, does not pass by itself, so it is not retried.
            if left_s <= 0 or (isinstance(error, RemoteStorageError) and error.is_refusal):
                raise
            failures += 1
            wait_s = min(RETRY_BACKOFF.wait_ms(failures, rng) / 1000, left_s)
            print_line(f"{_line(error)}; again in {wait_s:.0f} s, for {left_s:.0f} s at most")
        else:
            failures = 0
            wait_s = max(settings.interval_s - (clock.monotonic_s() - started_s), 0)
        clock.wait(stop, wait_s)


def _line(error: BaseException) -> str:
    """The error and its direct cause, in one line."""
    cause = error.__cause__
    text = " ".join(str(error).split())
    return text if cause is None else f"{text} caused by: {str(cause).partition(chr(10))[0]}"
