"""The work of cleaner threads: clean the filthiest log, then the next, until none is due.

If a round fails because its log is damaged, the log is uncleanable until the broker restarts. If
it fails because its directory fails, the directory goes offline. Source: Kafka LogCleaner.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from isotherm.clock import Clock
from isotherm.config.cleaner import CleanerConfig
from isotherm.errors import LogCleaningAbortedError, LogDirFailedError, NotLeaderOrFollowerError
from isotherm.log.cleaner.choice import LogToClean
from isotherm.log.cleaner.cleaned_log import CleanedLog, CleanerStats
from isotherm.log.cleaner.log_cleaner_manager import Cleaning, LogCleanerManager
from isotherm.log.partition_log import PartitionLog

if TYPE_CHECKING:
    from isotherm.log.cleaner.cleaner import Cleaner


logger = logging.getLogger(__name__)


class CleanerWorker:
    """The work of one cleaner thread. Only that thread calls `run`."""

    def __init__(
        self,
        manager: LogCleanerManager,
        throttle: IoThrottle,
        clock: Clock,
        make_cleaner: Callable[[], Cleaner],
    ) -> None:
        self._manager = manager
        self._throttle = throttle
        self._clock = clock
        self._make_cleaner = make_cleaner
        self._cleaner: Cleaner | None = None
        self.last_stats: CleanerStats | None = None
        """Stats of the last completed round."""
        self.has_failed = False
        """Whether the last run ended with an error that is not due to a log."""

    def run(self) -> None:
        """Clean until no log is due or the manager is stopped. Applies retention in between."""
        try:
            while self.clean_filthiest():
                pass
        except BaseException:
            self.has_failed = True
            raise
        self.has_failed = False

    def clean_filthiest(self) -> bool:
        """Run one round, and retention. False if no log was due."""
        cleaning = self._manager.begin_filthiest()
        if cleaning is not None:
            self._clean(cleaning)
        # Done here, not by the retention task, so that it never changes a log during a round.
        with self._manager.deletable_logs() as logs:
            for log in logs:
                with self._failure_marks(log, "delete old segments"):
                    log.delete_old_segments(self._clock.now_ms())
        return cleaning is not None

    def _clean(self, cleaning: Cleaning) -> None:
        log, to_clean = cleaning.log, cleaning.to_clean
        # A failed round leaves the checkpoint unchanged.
        end_offset = to_clean.first_dirty_offset
        try:
            # Within the `try`: the reservation ends too if there is no memory for the buffers.
            if self._cleaner is None:
                self._cleaner = self._make_cleaner()
            with self._failure_marks(log, "clean"):
                cleaned = self._cleaner.clean(
                    log,
                    to_clean,
                    throttle=lambda size: self._pay(cleaning, size),
                    check_abort=cleaning.check_abort,
                )
                # A round that finds nothing dirty ends at 0, and moves no checkpoint back
                # (docs/decisions/0024).
                end_offset = max(end_offset, cleaned.end_offset)
                self.last_stats = cleaned.stats
                _report(log, to_clean, cleaned)
        finally:
            self._manager.done_cleaning(cleaning, end_offset)

    def _pay(self, cleaning: Cleaning, size: int) -> None:
        self._throttle.pay(size, cleaning.aborted)
        # An abort ends the wait (docs/decisions/0024).
        cleaning.check_abort()

    @contextmanager
    def _failure_marks(self, log: PartitionLog, action: str) -> Iterator[None]:
        """Handle a log's failure, so that other logs are still cleaned."""
        try:
            yield
        except LogCleaningAbortedError as error:
            logger.info("%s", error)
        except (LogDirFailedError, NotLeaderOrFollowerError):
            logger.warning("log is skipped action=%s log=%r", action, log, exc_info=True)
        # Whatever damage in one log raises, it must not stop the cleaning of the others.
        except Exception:
            logger.exception("log is uncleanable from now on action=%s log=%r", action, log)
            self._manager.mark_uncleanable(log)


class LogCleaner:
    """The workers and their shared state. Only the owner of the threads uses `reconfigure` and
    `workers`. The rest may be read from any thread."""

    def __init__(
        self,
        manager: LogCleanerManager,
        config: CleanerConfig,
        *,
        clock: Clock,
        make_cleaner: Callable[[CleanerConfig], Cleaner],
    ) -> None:
        """`make_cleaner` is called in a worker's thread, before its first round."""
        self.manager = manager
        self.config = config
        self.workers: tuple[CleanerWorker, ...] = ()
        self._clock = clock
        self._make_cleaner = make_cleaner
        self._throttle = IoThrottle(clock, config.log_cleaner_io_max_bytes_per_second)
        self.reconfigure(config)

    def reconfigure(self, config: CleanerConfig) -> None:
        """Replace the workers, none of which may be running. The new ones share the new limits."""
        self.config = config
        self._throttle.update_rate(config.log_cleaner_io_max_bytes_per_second)
        self.workers = tuple(
            CleanerWorker(
                self.manager, self._throttle, self._clock, lambda: self._make_cleaner(config)
            )
            for _ in range(config.log_cleaner_threads)
        )


def _report(log: PartitionLog, to_clean: LogToClean, cleaned: CleanedLog) -> None:
    stats = cleaned.stats
    logger.info(
        "log is cleaned partition=%s dirty_from=%d clean_to=%d seconds=%.3f map_seconds=%.3f"
        " bytes_read=%d bytes_written=%d records_read=%d records_written=%d"
        " buffer_utilization=%.3f",
        log.topic_partition,
        to_clean.first_dirty_offset,
        cleaned.end_offset,
        stats.elapsed_s,
        stats.elapsed_map_s,
        stats.bytes_read,
        stats.bytes_written,
        stats.messages_read,
        stats.messages_written,
        stats.buffer_utilization,
    )
    if stats.invalid_messages_read:
        logger.warning(
            "records without a key were dropped partition=%s count=%d",
            log.topic_partition,
            stats.invalid_messages_read,
        )


_WAIT_S_MIN = 0.01
"""Shorter waits are added to later ones: waking up would cost more than the wait."""


class IoThrottle:
    """Limits the rate of bytes that all cleaner threads read and write. Thread-safe.

    A thread waits after each transfer. The debt is shared by all threads, so the rate holds over
    any period longer than a few buffers. Source of the configuration key: Kafka Throttler.
    """

    def __init__(self, clock: Clock, bytes_per_second: float) -> None:
        self._clock = clock
        self._bytes_per_second = bytes_per_second
        self._paid_at_s = clock.monotonic_s()
        self._lock = threading.Lock()

    def update_rate(self, bytes_per_second: float) -> None:
        """Apply a new rate from now on. The debt of earlier transfers is dropped."""
        with self._lock:
            self._bytes_per_second = bytes_per_second
            self._paid_at_s = self._clock.monotonic_s()

    def pay(self, size: int, aborted: threading.Event) -> None:
        """Wait until `size` more bytes conform to the rate, or `aborted` is set."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            self._paid_at_s = max(self._paid_at_s, now_s) + size / self._bytes_per_second
            wait_s = self._paid_at_s - now_s
        # Waits without the lock, so that other threads can add to the debt.
        if wait_s >= _WAIT_S_MIN:
            self._clock.wait(aborted, min(wait_s, threading.TIMEOUT_MAX))
