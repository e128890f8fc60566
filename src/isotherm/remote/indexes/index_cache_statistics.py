"""Statistics of the remote index cache: evictions, hits and misses."""

from __future__ import annotations

import enum
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from isotherm.metrics.registry import Metrics
from isotherm.remote.indexes.index_cache_entry import IndexFiles


class RemovalCause(enum.Enum):
    """Why an entry left the cache; the names are Caffeine's."""

    EXPIRED = "expired"
    SIZE = "size"
    EXPLICIT = "explicit"


class RemovedEntry(NamedTuple):
    """An entry that left the cache, and its counted size. Its files are unlinked later."""

    files: IndexFiles
    size: int
    cause: RemovalCause


RemovalListener = Callable[[RemovedEntry], None]


@dataclass(frozen=True, slots=True)
class StatisticsSnapshot:
    """Counts since the cache was opened. `fetches` are calls of the remote store, one per index."""

    hits: int = 0
    misses: int = 0
    fetches: int = 0
    removals: dict[RemovalCause, int] = field(default_factory=dict)

    @property
    def hit_ratio(self) -> float:
        """1 before the first request, as in Caffeine."""
        requests = self.hits + self.misses
        return self.hits / requests if requests else 1.0


class CacheStatistics:
    """Thread-safe. A cache without it counts nothing (KIP-1264: off by default)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hits = 0
        self._misses = 0
        self._fetches = 0
        self._removals: Counter[RemovalCause] = Counter()

    def count_request(self, *, is_hit: bool) -> None:
        """Count a request. A hit found the entry resident, in memory or in its files."""
        with self._lock:
            if is_hit:
                self._hits += 1
            else:
                self._misses += 1

    def count_fetch(self) -> None:
        with self._lock:
            self._fetches += 1

    def count_removal(self, removed: RemovedEntry) -> None:
        with self._lock:
            self._removals[removed.cause] += 1

    def snapshot(self) -> StatisticsSnapshot:
        with self._lock:
            return StatisticsSnapshot(self._hits, self._misses, self._fetches, dict(self._removals))

    def publish(self, metrics: Metrics) -> None:
        """Publish gauges `isotherm_remote_index_cache_*`, computed at each scrape."""
        prefix = "isotherm_remote_index_cache_"
        metrics.computed_gauge(
            prefix + "hits",
            "Index look-ups that the cache answered.",
            lambda: self.snapshot().hits,
        )
        metrics.computed_gauge(
            prefix + "misses",
            "Index look-ups for which the store was asked.",
            lambda: self.snapshot().misses,
        )
        metrics.computed_gauge(
            prefix + "fetches",
            "Indexes fetched from the store.",
            lambda: self.snapshot().fetches,
        )
        metrics.computed_gauge(
            prefix + "removals",
            "Entries that left the cache.",
            lambda: sum(self.snapshot().removals.values()),
        )
