"""How fast does a partition's log take batches, and give them back?

    python -m bench.log_append_read [--mib 512]

Appends batches of 64 KiB (1 KiB records, no compression) through validation, then reads the log
from its start in fetches of 1 MiB, on one thread, from the page cache. Prints JSON: MB/s of both,
and microseconds of a fetch of one small batch at a random offset.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import tempfile
import time
from pathlib import Path

from isotherm.config.topic import TopicConfig
from isotherm.log.log_read import FetchIsolation
from isotherm.log.partition_log import PartitionLog
from isotherm.record.batch import build_batch, iterate_batches
from tests.support.local_log import open_local_log

T0 = 1_700_000_000_000
RANDOM_READS = 5000


def append_all(log: PartitionLog, size: int) -> float:
    template = build_batch([(T0, b"key", b"v" * 1000, ())] * 64)
    started = time.perf_counter()
    appended = 0
    while appended < size:
        log.append_as_leader(bytearray(template), 0, now_ms=T0)
        log.update_high_watermark(log.log_end_offset)
        appended += len(template)
    return appended / (time.perf_counter() - started) / 1e6


def read_all(log: PartitionLog) -> float:
    started = time.perf_counter()
    offset, size = 0, 0
    while offset < log.log_end_offset:
        records = log.read(offset, 1 << 20, isolation=FetchIsolation.HIGH_WATERMARK).records
        size += len(records)
        for _, header in iterate_batches(records):
            offset = header.next_offset
    return size / (time.perf_counter() - started) / 1e6


def random_read_us(log: PartitionLog) -> float:
    rng = random.Random(0)
    offsets = [rng.randrange(log.log_end_offset) for _ in range(RANDOM_READS)]
    started = time.perf_counter()
    for offset in offsets:
        log.read(offset, 1, isolation=FetchIsolation.HIGH_WATERMARK, min_one_message=True)
    return (time.perf_counter() - started) / RANDOM_READS * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=512)
    size = parser.parse_args().mib << 20
    with tempfile.TemporaryDirectory() as directory:
        config = TopicConfig(internal_segment_bytes=256 << 20, retention_ms=-1)
        log = open_local_log(Path(directory) / "topic-0", config=config)
        append_all(log, 4 << 20)  # loads the compiled kernels
        result = {
            "append_mb_per_s": round(append_all(log, size)),
            "read_mb_per_s": round(read_all(log)),
            "random_read_us": round(random_read_us(log), 1),
            "machine": platform.processor() or platform.machine(),
        }
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
