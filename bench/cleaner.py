"""How fast does the log cleaner compact a log?

One thread cleans a log that is dirty as a whole, in one round. Each key occurs four times at random
places, so that a quarter of the records stay and nearly every batch is rewritten. Further cases are
a GB of ten million records with as many different keys, or with a hundred thousand. Both sides
clean copies of the same folder, in a process that lives through all rounds, with their own
defaults: 128 MiB for the offset map (512 MiB for ten million keys), and 4 MiB (Kafka: 512 KiB) for
reading and writing. Kafka's side is `Cleaner` of its storage module (`bench/KafkaCleaner.java`).
MB/s are bytes of log per second.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
import psutil

from bench import memory
from bench.harness import (
    ROUNDS,
    Question,
    describe,
    keep,
    ratio_ranges,
    ratios,
    summarize,
)
from bench.load import Metrics
from isotherm.clock import SystemClock
from isotherm.config.cleaner import CleanerConfig
from isotherm.config.topic import TopicConfig
from isotherm.log.cleaner.choice import plan_log_to_clean
from isotherm.log.cleaner.cleaner import Cleaner
from isotherm.log.log_loader import LogCheckpoints
from isotherm.record.batch import build_batch
from isotherm.record.compression import CompressionType
from oracle.kafka import java_command
from tests.support.local_log import open_local_log

QUESTION = Question("cleaner", "How fast does the log cleaner compact a log?", lambda scale: ())
T0 = 1_700_000_000_000
KEY_DIGITS = 12
CRC_END = 21
"""The position in a batch where the CRC ends and the covered bytes begin."""
BATCH_BYTES = 16_384  # batch.size of Kafka's producer
SEGMENT_BYTES = 128 * 1024 * 1024
COPIES_OF_A_KEY = 4
DISTINCT_VALUES = 5000
CONFIG = TopicConfig(
    cleanup_policy=("compact",), internal_segment_bytes=SEGMENT_BYTES, segment_ms=2**62
)
CLEANER = CleanerConfig()
KAFKAS_IO_BUFFER_BYTES = 512 * 1024
WORDS = [f"{number:x}".encode() for number in random.Random(7).sample(range(2**20), 4096)]


class Point(NamedTuple):
    record_size: int
    compression: CompressionType
    log_bytes: int
    keys: int | None = None
    """The number of different keys. With None each key is in the log four times."""

    @property
    def name(self) -> str:
        name = f"{self.record_size} B {self.compression.name.lower()}"
        return name if self.keys is None else f"{name}, {self.keys:,} keys"

    @property
    def dedupe_buffer_bytes(self) -> int:
        default = CLEANER.log_cleaner_dedupe_buffer_size
        return default if self.keys is None else max(default, 50 * self.keys)


POINTS = (
    Point(1024, CompressionType.NONE, 400_000_000),
    Point(1024, CompressionType.LZ4, 200_000_000),
    Point(100, CompressionType.NONE, 100_000_000),
    Point(100, CompressionType.LZ4, 100_000_000),
)
LARGE_POINTS = (
    Point(100, CompressionType.NONE, 1_000_000_000, keys=10_000_000),
    Point(100, CompressionType.NONE, 1_000_000_000, keys=100_000),
)
"""One round; left out with --quick."""


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION.text)
    parser.add_argument("--quick", action="store_true", help="an eighth of the data, one round")
    parser.add_argument("--rounds", type=int, help=f"default {ROUNDS}")
    parser.add_argument("--only", choices=["isotherm", "kafka"], help="measure one side alone")
    parser.add_argument("--case", help="measure the cases whose name contains this")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
        return
    rounds = options.rounds or (1 if options.quick else ROUNDS)
    names = [options.only] if options.only else ["isotherm", "kafka"]
    document = describe(QUESTION, rounds)
    with tempfile.TemporaryDirectory(prefix="isotherm-bench-") as directory:
        document["results"] = [
            run_case(
                point,
                0.125 if options.quick else 1.0,
                names,
                rounds if point in POINTS else 1,
                Path(directory),
            )
            for point in (*POINTS, *(() if options.quick else LARGE_POINTS))
            if options.case is None or options.case in point.name
        ]
    keep(document, is_whole=not (options.quick or options.only or options.case))


def run_case(
    point: Point, scale: float, names: Sequence[str], rounds: int, directory: Path
) -> dict[str, Any]:
    master = directory / "master" / "topic-0"
    make = make_log if point.keys is None else make_large_log
    records, size = make(master, point, scale)
    measured: dict[str, list[Metrics]] = {name: [] for name in names}
    buffer_bytes = point.dedupe_buffer_bytes
    with running("isotherm", buffer_bytes) as isotherm, running("kafka", buffer_bytes) as kafka:
        sides = {"isotherm": isotherm, "kafka": kafka}
        for round_number in range(rounds + 1):
            for name in names:
                metrics = measure(sides[name], master, directory / name, records, size)
                if round_number:
                    measured[name].append(metrics)
                    print(
                        f"{point.name:<12} {name:<9} {metrics['mb_per_s']:8.1f} MB/s"
                        f" {metrics['server_cpu_s_per_gb']:6.2f} CPU-s/GB"
                        f" {metrics['server_resident_mb']:6.0f} MB",
                        file=sys.stderr,
                        flush=True,
                    )
    shutil.rmtree(directory / "master")
    left = {run["records_written"] for runs in measured.values() for run in runs}
    assert len(left) == 1, f"the sides keep different records counts={left}"
    summaries = {name: summarize(runs) for name, runs in measured.items()}
    return {
        "case": point.name,
        "parameters": {
            "record_size": point.record_size,
            "compression": point.compression.name.lower(),
            "records": records,
            "batch_bytes": BATCH_BYTES,
            "segment_bytes": SEGMENT_BYTES,
            "dedupe_buffer_bytes": point.dedupe_buffer_bytes,
        },
        "bytes": size,
        "sides": summaries,
        "ratios": ratios(summaries),
        "ratio_ranges": ratio_ranges(summaries),
    }


def make_log(directory: Path, point: Point, scale: float) -> tuple[int, int]:
    """Write a log; return the records and bytes of its closed segments."""
    rng = random.Random(0)
    per_batch = BATCH_BYTES // (point.record_size + 16)
    records = int(point.log_bytes * scale / point.record_size / per_batch) * per_batch
    keys = [b"key-%012d" % rng.randrange(records // COPIES_OF_A_KEY) for _ in range(records)]
    values = [make_value(rng, point.record_size) for _ in range(DISTINCT_VALUES)]
    log = open_local_log(directory, config=CONFIG)
    for start in range(0, records, per_batch):
        batch = build_batch(
            [(T0 + start, key, rng.choice(values), ()) for key in keys[start : start + per_batch]],
            compression=point.compression,
        )
        log.append_as_leader(batch, 0, now_ms=T0)
    log.roll()
    log.close()
    return records, sum(segment.size_in_bytes for segment in log.segments())


def make_large_log(directory: Path, point: Point, scale: float) -> tuple[int, int]:
    """The same as `make_log`, from one batch into which numpy writes new keys."""
    per_batch = BATCH_BYTES // (point.record_size + 16)
    batches = int(point.log_bytes * scale / point.record_size / per_batch)
    rng, random_keys = random.Random(0), np.random.default_rng(0)
    empty = b"key-" + bytes(KEY_DIGITS)
    records = [(T0, empty, make_value(rng, point.record_size), ()) for _ in range(per_batch)]
    template = bytes(build_batch(records))
    starts = [match.end() - KEY_DIGITS for match in re.finditer(re.escape(empty), template)]
    assert len(starts) == per_batch, "no value looks like a key"
    positions = np.array(starts)[:, None] + np.arange(KEY_DIGITS)
    powers = 10 ** np.arange(KEY_DIGITS - 1, -1, -1, dtype=np.int64)
    log = open_local_log(directory, config=CONFIG)
    for _ in range(batches):
        keys = random_keys.integers(point.keys, size=per_batch)
        batch = np.frombuffer(bytearray(template), dtype=np.uint8)
        batch[positions] = keys[:, None] // powers % 10 + ord("0")
        crc = google_crc32c.value(batch[CRC_END:].tobytes())
        batch[CRC_END - 4 : CRC_END] = np.frombuffer(crc.to_bytes(4), dtype=np.uint8)
        log.append_as_leader(bytearray(batch), 0, now_ms=T0)
    log.roll()
    log.close()
    return batches * per_batch, sum(segment.size_in_bytes for segment in log.segments())


def make_value(rng: random.Random, size: int) -> bytes:
    """Words and numbers, which lz4 compresses to about two thirds."""
    value = b" ".join(rng.choices(WORDS, k=size // 5 + 1))
    return value[:size]


class Side(NamedTuple):
    """A process that reads directories from its input and cleans them."""

    process: subprocess.Popen[str]

    def clean(self, directory: Path) -> dict[str, float]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(directory, file=self.process.stdin, flush=True)
        answer: dict[str, float] = json.loads(self.process.stdout.readline())
        return answer


@contextmanager
def running(name: str, buffer_bytes: int) -> Iterator[Side]:
    command = [sys.executable, "-m", "bench.cleaner", "--serve", str(buffer_bytes)]
    if name == "kafka":
        source = Path(__file__).with_name("KafkaCleaner.java")
        settings = (
            buffer_bytes,
            KAFKAS_IO_BUFFER_BYTES,
            SEGMENT_BYTES,
        )
        command = java_command(str(source), *map(str, settings), options=["-Xmx2g", "-XX:+UseG1GC"])
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield Side(process)
    finally:
        process.communicate()


def measure(side: Side, master: Path, target: Path, records: int, size: int) -> Metrics:
    """Clean a fresh copy; the copy is not timed."""
    directory = target / "topic-0"
    memory.make_ready(2 * size)  # for the copy, and for the cleaned segments
    shutil.copytree(master, directory)
    process = psutil.Process(side.process.pid)
    before = process.cpu_times()
    answer = side.clean(directory)
    after = process.cpu_times()
    shutil.rmtree(target)
    cpu_s = after.user + after.system - before.user - before.system
    return {
        "mb_per_s": size / answer["seconds"] / 1e6,
        "records_per_s": records / answer["seconds"],
        "seconds": answer["seconds"],
        "map_seconds": answer["map_seconds"],
        "bytes_written": answer["bytes_written"],
        "records_written": answer["records_written"],
        "server_cpu_s": cpu_s,
        "server_cpu_s_per_gb": cpu_s / (size / 1e9),
        "server_resident_mb": process.memory_info().rss / 1e6,
    }


def serve(buffer_bytes: int) -> None:
    """Isotherm's counterpart of KafkaCleaner.java."""
    clock = SystemClock()
    config = dataclasses.replace(CLEANER, log_cleaner_dedupe_buffer_size=buffer_bytes)
    cleaner = Cleaner(config, clock, random.Random(0))
    for line in sys.stdin:
        checkpoints = LogCheckpoints(clean_shutdown=True)
        log = open_local_log(
            Path(line.strip()), config=CONFIG, checkpoints=checkpoints, clock=clock
        )
        log.update_high_watermark(log.log_end_offset)
        started = time.perf_counter()
        to_clean = plan_log_to_clean(log.view(), 0, CONFIG, clock.now_ms())
        stats = cleaner.clean(
            log, to_clean, throttle=lambda size: None, check_abort=lambda: None
        ).stats
        seconds = time.perf_counter() - started
        log.close()
        answer = {
            "seconds": seconds,
            "map_seconds": stats.elapsed_map_s,
            "bytes_read": stats.bytes_read,
            "bytes_written": stats.bytes_written,
            "records_read": stats.messages_read,
            "records_written": stats.messages_written,
        }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
