"""Full garbage collections of a broker's process are short.

A full run of Python's collector visits all objects that were made since the last freeze, at some
0.4 µs each, and stops every thread meanwhile: 100 ms after the creation of 5,000 partitions, more
with more of them, in the middle of any request. So the survivors of each full run are excluded from
further ones. Each then visits only what is new.

What is excluded and later becomes garbage with references in a circle stays in memory. Once there
are twice as many objects, and OBJECTS_MADE_MIN more, one run visits all of them. So it does once
the process has grown by half, and by BYTES_GROWN_MIN: few objects may hold much, such as a request
or the buffers of TLS.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

OLDEST_GENERATION = 2
# Runs of the middle generation between two full runs. Each may leave some 7,000 new objects.
MIDDLE_RUNS = 3
# As many more objects, some 120 MB, are excluded before one run visits all.
OBJECTS_MADE_MIN = 1_000_000
# A visit of all objects of a start takes some 0.1 s.
BYTES_GROWN_MIN = 256 * 2**20
CHECK_INTERVAL_S = 60


class ShortCollections:
    """`start` and `stop` belong to the event loop's thread. Collections run in any."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._objects = 0
        self._resident_bytes = 0

    def start(self) -> None:
        """Exclude all present objects. None is collected before: clients wait after a start, and
        hardly any object of the start is garbage."""
        youngest, middle, _ = gc.get_threshold()
        gc.set_threshold(youngest, middle, MIDDLE_RUNS)
        gc.freeze()
        self._objects = gc.get_freeze_count()
        self._resident_bytes = _resident_bytes()
        gc.callbacks.append(_exclude_survivors)
        self._timer = self._loop.call_later(CHECK_INTERVAL_S, self._check)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        self._timer = self._loop.call_later(CHECK_INTERVAL_S, self._check)
        self.collect_excluded()

    def collect_excluded(self) -> None:
        """Visit all objects once if there are many more than after the last such run, or if the
        process has grown much."""
        objects = gc.get_freeze_count()
        grown_bytes = _resident_bytes() - self._resident_bytes
        if objects - self._objects < max(OBJECTS_MADE_MIN, self._objects) and grown_bytes < max(
            BYTES_GROWN_MIN, self._resident_bytes // 2
        ):
            return
        started_s = time.perf_counter()
        gc.unfreeze()
        garbage = gc.collect()  # Its survivors are excluded again by the callback.
        self._objects = gc.get_freeze_count()
        self._resident_bytes = _resident_bytes()
        logger.info(
            "garbage of all objects is collected objects=%d garbage=%d grown_bytes=%d"
            " duration_ms=%d",
            objects,
            garbage,
            grown_bytes,
            (time.perf_counter() - started_s) * 1000,
        )


def _resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * resource.getpagesize()


def _exclude_survivors(phase: str, info: Mapping[str, Any]) -> None:
    if phase == "stop" and info["generation"] == OLDEST_GENERATION:
        gc.freeze()
