"""What does a live remote segment cost in memory, and how long does it take to find one?

Run: python -m bench.metadata_memory [--quick]

One million live segments of 100 partitions (bench/metadata_history.py's, none deleted) have 20
bytes of custom metadata each. A new process folds a small topic first. Memory is the growth of its
resident size by the fold; then come 100,000 look-ups of random offsets. Level 0 has events; level 1
has keyed records, with their keys in memory too. The target is 600 MB for a million.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from bench.harness import Question, describe, keep
from bench.metadata_bootstrap import write_compacted
from bench.metadata_history import OFFSETS_PER_SEGMENT, USER_PARTITIONS, write_history
from isotherm.remote.metadata.folding.fold import fold_metadata_partition
from isotherm.remote.metadata.topic.log_dir_topic import LogDirMetadataTopic

SEGMENTS = (10_000, 100_000, 1_000_000)
LOOKUPS = 100_000
EPOCH = 3
QUESTION = Question(
    "metadata_memory",
    "What does a live remote segment cost in memory, and how long does it take to find one?",
    lambda scale: (),
)


def measure_here(directory: Path, segments: int) -> dict[str, float]:
    """Fold the metadata topic in `directory`, in this process."""
    with tempfile.TemporaryDirectory(prefix="isotherm-bench-") as folder:
        write_history(Path(folder), 12_000, live=10)
        fold_metadata_partition(LogDirMetadataTopic([Path(folder)]), 0, lambda _: True)
    topic = LogDirMetadataTopic([directory])
    before = held_bytes()
    cpu_s = time.process_time()
    caches = [
        partition.cache
        for partition in fold_metadata_partition(topic, 0, lambda _: True).partitions
    ]
    cpu_s = time.process_time() - cpu_s
    memory = held_bytes() - before
    if sum(map(len, caches)) != segments:
        raise ValueError(f"segments are missing count={sum(map(len, caches))}")
    rng = random.Random(1)
    end = segments // USER_PARTITIONS * OFFSETS_PER_SEGMENT
    places = [(rng.choice(caches), rng.randrange(end)) for _ in range(LOOKUPS)]
    started = time.process_time()
    segments_found = [cache.find(EPOCH, offset) for cache, offset in places]
    seconds = time.process_time() - started
    if None in segments_found:
        raise ValueError("an offset is not found")
    return {
        "segments": segments,
        "memory_mb": memory / 1e6,
        "fold_cpu_s": cpu_s,
        "topic_mb": sum(path.stat().st_size for path in directory.rglob("*.log")) / 1e6,
        "bytes_per_segment": memory / segments,
        "lookup_us": seconds / LOOKUPS * 1e6,
    }


def held_bytes() -> int:
    """The memory of this process, after freed memory is returned to the system."""
    gc.collect()
    pa.default_memory_pool().release_unused()
    ctypes.CDLL(None).malloc_trim(0)
    return int(psutil.Process().memory_info().rss)


def measure(segments: int, level: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="isotherm-bench-") as folder:
        directory = Path(folder, "0")
        write_history(directory, 2 * segments, live=segments)
        if level == 1:
            write_compacted(directory, Path(folder, "1"))
            directory = Path(folder, "1")
        command = [sys.executable, "-m", "bench.metadata_memory", "--here", str(directory)]
        done = subprocess.run([*command, str(segments)], capture_output=True, text=True, check=True)
    return {"level": level, **json.loads(done.stdout)}


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION.text)
    parser.add_argument("--quick", action="store_true", help="100,000 segments, not stored")
    parser.add_argument("--here", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        print(json.dumps(measure_here(Path(options.here[0]), int(options.here[1]))))
        return
    document = describe(QUESTION, 1)
    document["memory"] = []
    for segments in SEGMENTS[1:2] if options.quick else SEGMENTS:
        for level in (0, 1):
            point = measure(segments, level)
            document["memory"].append(point)
            print(
                f"{segments:>9,} live segments, level {level}: {point['memory_mb']:7.1f} MB,"
                f" {point['bytes_per_segment']:6.0f} B each, {point['lookup_us']:5.1f} us a"
                " look-up",
                flush=True,
            )
    keep(document, is_whole=not options.quick)


if __name__ == "__main__":
    main()
