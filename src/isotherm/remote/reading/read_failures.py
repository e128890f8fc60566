"""Logs reads of the remote tier that failed. Consumers retry for as long as a store is away: so a
partition has one line in a while."""

from __future__ import annotations

import logging
import threading

from isotherm.clock import Clock
from isotherm.errors import CorruptDataError, IsothermError, RemoteStorageNotReadyError
from isotherm.types import Offset, TopicIdPartition

logger = logging.getLogger(__name__)

LOG_INTERVAL_S = 60.0


class ReadFailures:
    """Thread-safe. Remembers the partitions whose reads failed within the interval."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._logged_s: dict[TopicIdPartition, float] = {}

    def note(self, partition: TopicIdPartition, offset: Offset, error: IsothermError) -> None:
        """Damage has a line of its own (DamageLog), and a start is no failure."""
        if isinstance(error, CorruptDataError | RemoteStorageNotReadyError):
            return
        now_s = self._clock.monotonic_s()
        with self._lock:
            begin_s = now_s - LOG_INTERVAL_S
            if self._logged_s.get(partition, begin_s) > begin_s:
                return
            self._logged_s = {p: at for p, at in self._logged_s.items() if at > begin_s}
            self._logged_s[partition] = now_s
        logger.warning("remote read failed partition=%s offset=%d: %s", partition, offset, error)
