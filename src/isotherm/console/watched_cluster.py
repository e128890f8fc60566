"""The newest look at a cluster, shared by all pages that ask. No page asks, no request goes out."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from isotherm.clock import Clock
from isotherm.errors import IsothermError
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.storage_view.cluster_storage import ClusterStorage
from isotherm.storage_view.segment_sources import SegmentSource
from isotherm.types import TopicIdPartition


class Reader(Protocol):
    """A StorageReader is one."""

    @property
    def source(self) -> SegmentSource | None: ...

    def read(self) -> ClusterStorage: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Look:
    """`storage` is the last one that succeeded, None before that; `error` says why a later one did
    not."""

    storage: ClusterStorage | None
    error: str | None


class WatchedCluster:
    """Thread-safe. At most one thread reads the cluster, at most once in `interval_s`."""

    def __init__(self, open_reader: Callable[[], Reader], clock: Clock, interval_s: float) -> None:
        self._open_reader = open_reader
        self._clock = clock
        self._interval_s = interval_s
        self._reader: Reader | None = None
        self._reading = threading.Lock()  # of the reader and its source
        self._look = Look(None, None)
        self._read_at_s: float | None = None

    def look(self) -> Look:
        """Waits for the cluster if the last look is older than the interval, or if there is none and
        another thread is at it."""
        if not self._is_due():
            return self._look
        if not self._reading.acquire(blocking=self._read_at_s is None):
            return self._look
        try:
            if self._is_due():
                self._look = self._read()
                self._read_at_s = self._clock.monotonic_s()
        finally:
            self._reading.release()
        return self._look

    def metadata(
        self, partition: TopicIdPartition, segment_id: uuid.UUID
    ) -> RemoteLogSegmentMetadata | None:
        """All facts of a segment as of the last look."""
        with self._reading:
            source = self._reader.source if self._reader is not None else None
            return None if source is None else source.metadata(partition, segment_id)

    def close(self) -> None:
        with self._reading:
            if self._reader is not None:
                self._reader.close()

    def _is_due(self) -> bool:
        return (
            self._read_at_s is None
            or self._clock.monotonic_s() - self._read_at_s >= self._interval_s
        )

    def _read(self) -> Look:
        try:
            if self._reader is None:
                self._reader = self._open_reader()
            return Look(self._reader.read(), None)
        except IsothermError as error:
            return Look(self._look.storage, str(error))
