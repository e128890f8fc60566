"""The first reading of a bucket: each partition is listed and its manifests are read, those first
that clients ask for (docs/decisions/0299).

    partitions ──► ask ──► PARTITION_READ_THREADS ──► take ──► histories, logs, image
                             one of them also reads
                             what nobody asks for
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from isotherm.broker.threads.step_thread import UNTIL_WOKEN_S, StepThread
from isotherm.clock import Clock
from isotherm.remote.metadata.manifest_metadata import ManifestReader, ReadPace
from isotherm.remote.outages import Outages
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.remote.storage.inventory import MANIFEST_READ_THREADS
from isotherm.types import TopicIdPartition

_logger = logging.getLogger(__name__)

PARTITION_READ_THREADS = 8
"""Partitions that are read at once; MANIFEST_READ_THREADS manifests of all of them."""
ASKED_MANIFESTS_MAX = 32
"""Manifests of a partition that are read or wait, if a client waits for the partition."""
OTHER_MANIFESTS_MAX = 4
"""The same if none does: requests are served meanwhile, on the same processors."""
READ_PARTITIONS_MAX = 16
"""Partitions that are read and not taken. Readers wait beyond."""
RETRY_S = 1.0


class ReadPartition(NamedTuple):
    """A partition with all of its segments that are whole."""

    partition: TopicIdPartition
    segments: tuple[RemoteLogSegmentMetadata, ...]


class FirstReading:
    """Reads each of `partitions` once. A partition that cannot be read is tried again.

    Any thread calls `ask`, one thread `take`. The caller stops what it has started."""

    def __init__(
        self, reader: ManifestReader, partitions: Iterable[TopicIdPartition], clock: Clock
    ) -> None:
        self._reader = reader
        self._changed = threading.Condition()
        # Both in the order in which they are read. `_paces` has those that are read now.
        self._waiting = dict.fromkeys(partitions)
        self._asked: dict[TopicIdPartition, None] = {}
        self._paces: dict[TopicIdPartition, ReadPace] = {}
        self._left = len(self._waiting)
        self._read: list[ReadPartition] = []
        self._stopped = threading.Event()
        self._clock = clock
        self._outages = Outages(
            _logger,
            clock,
            failing="partition of the bucket cannot be read partition={}",
            working="partition of the bucket is read again partition={}",
        )
        self._pool = ThreadPoolExecutor(MANIFEST_READ_THREADS, "isotherm-manifests")
        self._threads = [
            StepThread(
                f"isotherm-first-reading-{number}",
                partial(self._read_next, reads_all=number == 0),
                clock,
            )
            for number in range(PARTITION_READ_THREADS)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def ask(self, partitions: Collection[TopicIdPartition]) -> None:
        """Read these partitions before those that nobody has asked for."""
        with self._changed:
            new = [partition for partition in partitions if partition in self._waiting]
            for partition in new:
                del self._waiting[partition]
                self._asked[partition] = None
            for partition in partitions:
                if partition in self._paces:
                    self._paces[partition].pending_max = ASKED_MANIFESTS_MAX
        if new:
            self._wake()

    def take(self) -> list[ReadPartition]:
        """What was read since the last call. Waits until there is something; empty when all is
        taken, and after a stop."""
        with self._changed:
            self._changed.wait_for(lambda: self._read or not self._left or self._stopped.is_set())
            taken, self._read = self._read, []
            self._left -= len(taken)
            self._changed.notify_all()
        if not self._left:
            self._wake()
        return taken

    @property
    def is_stopped(self) -> bool:
        return self._stopped.is_set()

    def pause(self) -> None:
        """Wait RETRY_S, or until the stop."""
        self._clock.wait(self._stopped, RETRY_S)

    def stop(self) -> None:
        """Return when no partition is read any more. Idempotent."""
        with self._changed:
            self._stopped.set()
            self._changed.notify_all()
        self._pool.shutdown(wait=False, cancel_futures=True)
        for thread in self._threads:
            thread.begin_stop()
        for thread in self._threads:
            thread.join()

    def _wake(self) -> None:
        for thread in self._threads:
            thread.wake()

    def _read_next(self, *, reads_all: bool) -> float | None:
        with self._changed:
            self._changed.wait_for(
                lambda: len(self._read) < READ_PARTITIONS_MAX or self._stopped.is_set()
            )
            if self._stopped.is_set() or not self._left:
                return None
            is_asked = bool(self._asked)
            if not is_asked and not (reads_all and self._waiting):
                return UNTIL_WOKEN_S
            queue = self._asked if is_asked else self._waiting
            partition = next(iter(queue))
            del queue[partition]
            pace = ReadPace(ASKED_MANIFESTS_MAX if is_asked else OTHER_MANIFESTS_MAX)
            self._paces[partition] = pace
        try:
            segments = self._reader.read_partition(partition, self._pool, pace)
        # The boundary of the thread: the partition stays unread, and is tried again.
        except Exception as error:  # noqa: BLE001
            with self._changed:
                if self._stopped.is_set():
                    return None
                del self._paces[partition]
                queue[partition] = None
            self._outages.failed(partition, error)
            return RETRY_S
        self._outages.worked(partition)
        with self._changed:
            del self._paces[partition]
            self._read.append(ReadPartition(partition, segments))
            self._changed.notify_all()
        return 0.0
