"""Cancellation of a partition's task, and the offsets that it reports to its log until then."""

from __future__ import annotations

import threading

from isotherm.log.partition_log import PartitionLog
from isotherm.types import Offset


class Cancellation:
    """Thread-safe.

    After `cancel` has returned, the task reports no more offsets to the log. The remote segments
    may be deleted from then on, and a log that is tiered again later would delete local segments on
    the strength of a stale offset.
    """

    def __init__(self) -> None:
        self.event = threading.Event()
        self._lock = threading.Lock()

    @property
    def is_set(self) -> bool:
        return self.event.is_set()

    def cancel(self) -> None:
        with self._lock:
            self.event.set()

    def report_copied(self, log: PartitionLog, offset: Offset) -> None:
        """Report to `log` that the remote tier holds it up to `offset`. No effect after
        `cancel`."""
        with self._lock:
            if not self.is_set:
                log.update_highest_offset_in_remote_storage(offset)
