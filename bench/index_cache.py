"""How well does the remote index cache work when it holds stale entries? (KIP-1264's thrash story)

    python -m bench.index_cache

A broker reads 400 segments with small indexes often, and then loses their partitions: no request
uses them any more, and no event marks them as stale. Then a backfill reads 40 segments with
large indexes repeatedly, which fit into the cache only once the stale ones are evicted
("stale"). In a second workload a hot set is read while a scan reads more segments than
fit ("scan"): no TTL helps there, but an admission by frequency might.

Sides: Isotherm's own cache (least recently used first) with and without KIP-1264's TTL, and a model
of Caffeine's W-TinyLFU, Kafka's cache, with and without it: an admission window of 1%, a main space
of 80% protected and 20% probation, and a count of each key's use that is halved now and then. All
on a simulated clock, from one seed. Requests are counted, so the machine does not matter.
"""

from __future__ import annotations

import datetime
import json
import random
import struct
import tempfile
import uuid
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.harness import RESULTS_DIRECTORY, commit
from isotherm.log.fs import OsFileSystem
from isotherm.remote.indexes.index_cache import RemoteIndexCache
from isotherm.remote.segment_metadata import (
    IndexType,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
)
from isotherm.testing.sim_clock import SimClock
from isotherm.types import TopicIdPartition

CACHE_SIZE = 4_000_000
TTL_MS = 900_000
SMALL, LARGE = 4_000, 90_000  # bytes of one segment's indexes
SEED = 1

Request = tuple[int, int, int]  # time in ms, segment, size of its indexes


def stale_workload() -> Iterator[Request]:
    rng = random.Random(SEED)
    now_ms = 0
    for _ in range(8_000):
        now_ms += 450
        yield now_ms, rng.randrange(400), SMALL
    for _ in range(8_000):
        now_ms += 900
        yield now_ms, 1000 + rng.randrange(40), LARGE


def scan_workload() -> Iterator[Request]:
    rng = random.Random(SEED)
    now_ms, scanned = 0, 0
    for _ in range(8_000):
        now_ms += 450
        if rng.random() < 0.6:
            yield now_ms, rng.randrange(20), LARGE
        else:
            scanned += 1
            yield now_ms, 1000 + scanned % 120, LARGE


class Store:
    """Serves indexes of a given size, and counts the requests."""

    def __init__(self) -> None:
        self.fetches = 0

    def fetch_index(self, metadata: RemoteLogSegmentMetadata, kind: IndexType) -> bytes:
        self.fetches += 1
        count = metadata.segment_size_in_bytes // 20
        if kind is IndexType.OFFSET:
            return b"".join(struct.pack(">ii", n, n) for n in range(1, count + 1))
        return b"".join(struct.pack(">qi", n, n) for n in range(1, count + 1))


def isotherm(directory: Path, ttl_ms: int) -> Callable[[Request], bool]:
    clock, store = SimClock(), Store()
    cache = RemoteIndexCache(
        directory,
        store,  # type: ignore[arg-type]
        total_size_bytes=CACHE_SIZE,
        ttl_ms=ttl_ms,
        clock=clock,
        fs=OsFileSystem(),
    )
    partition = TopicIdPartition(uuid.UUID(int=1), "t", 0)
    swept_ms = 0

    def ask(request: Request) -> bool:
        nonlocal swept_ms
        now_ms, segment, size = request
        clock.advance(now_ms - round(clock.monotonic_s() * 1000))
        if now_ms - swept_ms >= 30_000:
            cache.evict_expired()
            swept_ms = now_ms
        before = store.fetches
        cache.get(
            RemoteLogSegmentMetadata(
                segment_id=RemoteLogSegmentId(partition, uuid.UUID(int=segment + 1)),
                start_offset=0,
                end_offset_inclusive=1 << 30,
                max_timestamp_ms=0,
                broker_id=0,
                event_timestamp_ms=0,
                segment_size_in_bytes=size,
                segment_leader_epochs={0: 0},
                txn_index_empty=True,
            )
        )
        return store.fetches == before

    return ask


class TinyLfu:
    """Caffeine's policy by weight, without its hash collisions: counts are exact."""

    def __init__(self, ttl_ms: int) -> None:
        self._ttl_ms = ttl_ms
        self._window: OrderedDict[int, int] = OrderedDict()
        self._probation: OrderedDict[int, int] = OrderedDict()
        self._protected: OrderedDict[int, int] = OrderedDict()
        self._used_ms: dict[int, int] = {}
        self._counts: Counter[int] = Counter()
        self._samples = 0

    def ask(self, request: Request) -> bool:
        now_ms, key, size = request
        self._count(key)
        self._expire(now_ms)
        self._used_ms[key] = now_ms
        for space in (self._window, self._protected):
            if key in space:
                space.move_to_end(key)
                return True
        if key in self._probation:
            self._protected[key] = self._probation.pop(key)
            while sum(self._protected.values()) > 0.8 * 0.99 * CACHE_SIZE:
                demoted, weight = self._protected.popitem(last=False)
                self._probation[demoted] = weight
            return True
        self._window[key] = size
        while sum(self._window.values()) > max(0.01 * CACHE_SIZE, size):
            self._admit(*self._window.popitem(last=False))
        return False

    def _admit(self, candidate: int, weight: int) -> None:
        self._probation[candidate] = weight
        while self._main_weight() > 0.99 * CACHE_SIZE:
            space = self._probation if len(self._probation) > 1 else self._protected
            victim = next(iter(space))
            if self._counts[candidate] > self._counts[victim]:
                del space[victim]
            else:
                del self._probation[candidate]
                return

    def _main_weight(self) -> int:
        return sum(self._probation.values()) + sum(self._protected.values())

    def _count(self, key: int) -> None:
        self._counts[key] = min(15, self._counts[key] + 1)
        self._samples += 1
        if self._samples >= 10 * 500:
            self._counts = Counter({counted: count // 2 for counted, count in self._counts.items()})
            self._samples //= 2

    def _expire(self, now_ms: int) -> None:
        if self._ttl_ms <= 0:
            return
        for space in (self._window, self._probation, self._protected):
            for key in [key for key in space if now_ms - self._used_ms[key] >= self._ttl_ms]:
                del space[key]


def measure(workload: Callable[[], Iterator[Request]], ask: Callable[[Request], bool]) -> list[int]:
    """Run a workload; return the requests, the hits, and the hits of its second half."""
    requests = list(workload())
    hits = [ask(request) for request in requests]
    return [len(hits), sum(hits), sum(hits[len(hits) // 2 :])]


def main() -> None:
    entries = []
    for name, workload in (("stale", stale_workload), ("scan", scan_workload)):
        sides = {}
        for ttl_ms in (-1, TTL_MS):
            label = "no TTL" if ttl_ms < 0 else "TTL 15 min"
            with tempfile.TemporaryDirectory() as directory:
                figures = measure(workload, isotherm(Path(directory), ttl_ms))
            sides[f"isotherm, {label}"] = figures
            sides[f"W-TinyLFU model, {label}"] = measure(workload, TinyLfu(ttl_ms).ask)
        entries.append(
            {
                "case": name,
                "sides": {
                    side: {
                        "requests": requests,
                        "hit_ratio": round(hits / requests, 4),
                        "hit_ratio_second_half": round(late / (requests - requests // 2), 4),
                        "remote_calls": 2 * (requests - hits),  # an offset and a time index
                    }
                    for side, (requests, hits, late) in sides.items()
                },
            }
        )
    document = {
        "question": "index_cache",
        "text": "How well does the remote index cache work when it holds stale entries?",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": commit(),
        "seed": SEED,
        "caching": entries,
    }
    text = json.dumps(document, indent=1) + "\n"
    print(text)
    (RESULTS_DIRECTORY / "index_cache.json").write_text(text)


if __name__ == "__main__":
    main()
