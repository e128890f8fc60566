"""How does the cost of Isotherm grow?

    records per batch   a log of one partition is written and read on one thread, batch by batch
    partitions          an idle broker, after a stop and a start (bench/partitions.py)
    live segments       the fold of a metadata topic with live segments only, two events for each
                        segment, and look-ups in its result (bench/metadata_memory.py)
    history             the fold of a metadata topic of level 0 and of level 1 with 10,000 live
                        segments (bench/metadata_history.py)
    consumers           readers of the same history in an S3 server that answers after 20 ms,
                        through a broker (bench/cold_store.py); GETs are those that reach the server

CPU-seconds, bytes and counts; no time of the clock. Isotherm alone.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench import cold_store, metadata_bootstrap, metadata_memory, partitions
from bench.harness import RESULTS_DIRECTORY, Question, describe, keep
from bench.metadata_history import EVENTS_PER_YEAR, write_history
from bench.servers import IsothermServer
from bench.start_stop import fill_partitions
from isotherm.log.log_read import FetchIsolation
from isotherm.record.batch import build_batch, iterate_batches
from tests.support.local_log import open_local_log

QUESTION = Question("growth", "How does the cost of Isotherm grow?", lambda scale: ())
RECORDS = 100_000
VALUE = bytes(100)
T0 = 1_700_000_000_000
FETCH_BYTES = 1 << 20

Point = dict[str, float]
"""`x`, and the measured values there, by name with unit."""


def records_per_batch(*, is_quick: bool) -> Iterator[Point]:
    for per_batch in (1, 1000) if is_quick else (1, 10, 100, 1000):
        template = build_batch([(T0, b"key", VALUE, ())] * per_batch)
        with tempfile.TemporaryDirectory(prefix="isotherm-bench-") as folder:
            log = open_local_log(Path(folder) / "topic-0")
            began = time.process_time()
            for _ in range(RECORDS // per_batch):
                log.append_as_leader(bytearray(template), 0, now_ms=T0)
            log.update_high_watermark(log.log_end_offset)
            appended = time.process_time()
            offset = size = 0
            while offset < log.log_end_offset:
                read = log.read(offset, FETCH_BYTES, isolation=FetchIsolation.HIGH_WATERMARK)
                size += len(read.records)
                *_, (_, last) = iterate_batches(read.records)
                offset = last.next_offset
            done = time.process_time()
            log.close()
        yield {
            "x": per_batch,
            "append, CPU µs a record": (appended - began) / RECORDS * 1e6,
            "append, CPU µs a batch": (appended - began) / RECORDS * per_batch * 1e6,
            "read, CPU µs a record": (done - appended) / RECORDS * 1e6,
            "bytes a record": size / RECORDS,
        }


def idle_partitions(*, is_quick: bool) -> Iterator[Point]:
    for count in (100, 300) if is_quick else (100, 1_000, 3_000, 10_000):
        with tempfile.TemporaryDirectory(prefix="isotherm-bench-") as folder:
            server = IsothermServer(Path(folder))
            server.start()
            try:
                fill_partitions(server, count=count)
                measured = partitions.measure(server)
            finally:
                server.stop()
        yield {
            "x": count,
            "start, CPU s": measured["start_cpu_s"],
            "start after a kill, CPU s": measured["unclean_start_cpu_s"],
            "idle, CPU ms a second": measured["idle_cpu_percent"] * 10,
            "memory, MB": measured["resident_mb"],
            "open files": measured["open_files"],
        }


def live_segments(*, is_quick: bool) -> Iterator[Point]:
    for count in (1_000, 10_000) if is_quick else (1_000, 10_000, 100_000, 1_000_000):
        measured = metadata_memory.measure(count, 0)
        yield {
            "x": count,
            "fold, CPU s": measured["fold_cpu_s"],
            "memory, MB": measured["memory_mb"],
            "look-up, CPU µs": measured["lookup_us"],
            "metadata, MB": measured["topic_mb"],
        }


def history(*, is_quick: bool) -> Iterator[Point]:
    for years in (0.1, 0.2) if is_quick else (0.1, 1, 5):
        events = int(EVENTS_PER_YEAR * years)
        with tempfile.TemporaryDirectory(prefix="isotherm-bench-") as folder:
            level_0, level_1 = Path(folder, "0"), Path(folder, "1")
            size_0 = write_history(level_0, events)
            size_1 = metadata_bootstrap.write_compacted(level_0, level_1)
            fold = metadata_bootstrap.isotherm
            fold(level_1, columnar_records_min=0)  # the kernels are loaded
            yield {
                "x": events,
                "level 0, CPU s": fold(level_0)["cpu_seconds"],
                "level 0, MB": size_0 / 1e6,
                "level 1, CPU s": fold(level_1, columnar_records_min=0)["cpu_seconds"],
                "level 1, MB": size_1 / 1e6,
            }


def cold_consumers(*, is_quick: bool) -> Iterator[Point]:
    size = (300 if is_quick else 600) * cold_store.MIB
    with tempfile.TemporaryDirectory(prefix="isotherm-bench-") as folder:
        bench = cold_store.Bench(Path(folder), size)
        with bench.running():
            for count in (1, 4) if is_quick else (1, 2, 5, 10, 20):
                measured = bench.consumers(count)
                read = measured["bytes"]
                yield {
                    "x": count,
                    "broker, CPU s": measured["server_cpu_s_per_gb"] * count * read / 1e9,
                    "broker, CPU s a GB": measured["server_cpu_s_per_gb"],
                    "memory, MB": measured["server_resident_mb"],
                    "GETs": measured["gets_per_gib"] * read / cold_store.GIB,
                }


AXES: dict[str, Callable[..., Iterator[Point]]] = {
    "records per batch": records_per_batch,
    "partitions": idle_partitions,
    "live segments": live_segments,
    "history": history,
    "consumers": cold_consumers,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=QUESTION.text)
    parser.add_argument("--quick", action="store_true", help="the smallest points, not stored")
    parser.add_argument("--only", choices=AXES, help="measure along one axis, keep the others")
    options = parser.parse_args()
    document = describe(QUESTION, 1)
    stored = RESULTS_DIRECTORY / f"{QUESTION.name}.json"
    with_others = options.only and stored.exists()
    document["growth"] = json.loads(stored.read_text())["growth"] if with_others else {}
    for axis, measure in AXES.items():
        if options.only in (None, axis):
            points = document["growth"][axis] = []
            for point in measure(is_quick=options.quick):
                points.append(point)
                figures = "  ".join(f"{name} {value:,.2f}" for name, value in point.items())
                print(f"{axis:<18} {figures}", file=sys.stderr, flush=True)
    keep(document, is_whole=not options.quick)


if __name__ == "__main__":
    main()
