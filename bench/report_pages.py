"""docs/performance.md and docs/capacity.md: the texts in bench/pages/ with figures from the
results.

In a text `{name}` stands for a figure that `figures` computes, in the unit that the text gives. It
reads "(not measured)" if its result is not stored.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.report_bounds import Documents, decoding_bounds, processor_split, spark_bounds

DIRECTORY = Path(__file__).with_name("pages")
GIB = 1 << 30
SEGMENT_BYTES = GIB
PART_BYTES = 5 << 20
TERABYTE = 1e12
SECONDS_A_DAY = 86_400
PRODUCE = "librdkafka 1024 B acks=all none"
SMALL_PRODUCE = "librdkafka 100 B acks=all none"
TAIL = "fetch client x1 1024 B none"
TAIL_20 = "fetch client x20 1024 B none"
COLD = "fetch client x1, 10 MiB a fetch"
COLD_4 = "fetch client x4, 1 MiB a fetch"
Compute = Callable[[Documents], float]

TABLES: Mapping[str, Callable[[Documents], str]] = {
    "processor_split": processor_split,
    "decoding_bounds": decoding_bounds,
    "spark_bounds": spark_bounds,
}


def pages(documents: Sequence[Mapping[str, Any]]) -> dict[Path, str]:
    """The pages by their paths in the repository."""
    by_question = {document["question"]: document for document in documents}
    values = figures(by_question) | {name: rows(by_question) for name, rows in TABLES.items()}
    return {
        Path("docs", path.name): re.sub(
            r"\{(\w+)\}", lambda match: values[match[1]], path.read_text()
        )
        for path in sorted(DIRECTORY.glob("*.md"))
    }


def figures(documents: Documents) -> dict[str, str]:
    """Every figure that a text may name, in its printed form."""
    texts = {}
    for name, (digits, compute) in FIGURES.items():
        try:
            texts[name] = f"{compute(documents):,.{digits}f}"
        except (KeyError, IndexError, StopIteration):  # a result, a case or a metric is missing
            texts[name] = "(not measured)"
    return texts


def _median(question: str, case: str, metric: str, side: str = "isotherm") -> Compute:
    def compute(documents: Documents) -> float:
        result = next(r for r in documents[question]["results"] if r["case"] == case)
        return float(result["sides"][side][metric]["median"])

    return compute


def _growth(axis: str, x: float, metric: str) -> Compute:
    return lambda documents: next(
        float(point[metric]) for point in documents["growth"]["growth"][axis] if point["x"] == x
    )


def _slope(axis: str, metric: str) -> Compute:
    """The growth of `metric` for each unit of the axis, between its first and last point."""

    def compute(documents: Documents) -> float:
        first, *_, last = documents["growth"]["growth"][axis]
        return (last[metric] - first[metric]) / (last["x"] - first["x"])

    return compute


def _bootstrap(metric: str) -> Compute:
    def compute(documents: Documents) -> float:
        year = next(p for p in documents["metadata_bootstrap"]["bootstrap"] if p["years"] == 1)
        return float(year[metric])

    return compute


def _bootstrap_side(side: str) -> Compute:
    return lambda documents: next(
        float(point["sides"][side]["seconds"])
        for point in documents["metadata_bootstrap"]["bootstrap"]
        if point["years"] == 1
    )


def _million_segments(metric: str) -> Compute:
    return lambda documents: next(
        float(point[metric])
        for point in documents["metadata_memory"]["memory"]
        if (point["segments"], point["level"]) == (1_000_000, 1)
    )


def _limit(name: str, metric: str = "mb_per_s") -> Compute:
    return lambda documents: float(documents["limits"]["limits"][name][metric])


def _cold_gets(documents: Documents) -> float:
    return float(documents["cold_store"]["store"]["one consumer"]["gets_per_gib"])


def _request_us(documents: Documents) -> float:
    """The broker's CPU-microseconds for a produce request of one record: 200 clients send ten a
    second each.
    """
    results = documents["connections"]["results"]
    return statistics.median(
        result["sides"]["isotherm"]["server_cpu_s_per_gb"]["median"]
        * result["parameters"]["record_size"]
        / 1e3
        for result in results
    )


def _times(compute: Compute, factor: float) -> Compute:
    return lambda documents: compute(documents) * factor


def _loop_mb_per_s(reads: float) -> Compute:
    """The MB/s that one core of the broker accepts when each byte is read `reads` times from the
    tail.
    """
    produce = _median("produce", PRODUCE, "server_cpu_s_per_gb")
    tail = _median("tail_consume", TAIL, "server_cpu_s_per_gb")
    return lambda documents: 1e3 / (produce(documents) + reads * tail(documents))


def _core_percent_of_a_terabyte(documents: Documents) -> float:
    mb_per_s = TERABYTE / SECONDS_A_DAY / 1e6
    return 100 * mb_per_s / _loop_mb_per_s(3)(documents)


FIGURES: Mapping[str, tuple[int, Compute]] = {
    "append_batch_us": (0, _growth("records per batch", 1, "append, CPU µs a batch")),
    "append_1000_us": (0, _growth("records per batch", 1000, "append, CPU µs a batch")),
    "append_1000_bytes": (
        0,
        _times(_growth("records per batch", 1000, "bytes a record"), 1000),
    ),
    "append_record_1_us": (1, _growth("records per batch", 1, "append, CPU µs a record")),
    "append_record_1000_us": (2, _growth("records per batch", 1000, "append, CPU µs a record")),
    "request_us": (0, _request_us),
    "produce_cpu": (2, _median("produce", PRODUCE, "server_cpu_s_per_gb")),
    "produce_cpu_kafka": (2, _median("produce", PRODUCE, "server_cpu_s_per_gb", "kafka")),
    "small_produce_cpu": (2, _median("produce", SMALL_PRODUCE, "server_cpu_s_per_gb")),
    "tail_cpu": (2, _median("tail_consume", TAIL, "server_cpu_s_per_gb")),
    "tail_cpu_kafka": (2, _median("tail_consume", TAIL, "server_cpu_s_per_gb", "kafka")),
    "tail_20_cpu": (2, _median("tail_consume", TAIL_20, "server_cpu_s_per_gb")),
    "tail_20_mb": (0, _median("tail_consume", TAIL_20, "mb_per_s")),
    "cold_cpu": (2, _median("cold_consume", COLD, "server_cpu_s_per_gb")),
    "cold_cpu_kafka": (2, _median("cold_consume", COLD, "server_cpu_s_per_gb", "kafka")),
    "cold_4_cpu": (2, _median("cold_consume", COLD_4, "server_cpu_s_per_gb")),
    "cold_mb": (0, _median("cold_consume", COLD, "mb_per_s")),
    "send_cpu_floor": (2, _limit("loopback, send", "cpu_s_per_gb")),
    "sendfile_cpu_floor": (2, _limit("loopback, sendfile", "cpu_s_per_gb")),
    "receive_cpu_floor": (2, _limit("loopback, receive", "cpu_s_per_gb")),
    "crc_cpu_floor": (2, _limit("CRC-32C", "cpu_s_per_gb")),
    "page_cache_cpu_floor": (2, _limit("page cache, write", "cpu_s_per_gb")),
    "produce_cpu_floor": (
        2,
        lambda documents: sum(
            _limit(name, "cpu_s_per_gb")(documents)
            for name in ("loopback, receive", "CRC-32C", "page cache, write")
        ),
    ),
    "start_s": (1, _median("partitions", "0 partitions", "start_s")),
    "start_s_kafka": (1, _median("partitions", "0 partitions", "start_s", "kafka")),
    "idle_mb": (0, _median("partitions", "0 partitions", "resident_mb")),
    "idle_mb_kafka": (0, _median("partitions", "0 partitions", "resident_mb", "kafka")),
    "partition_kb": (1, _times(_slope("partitions", "memory, MB"), 1e3)),
    "partition_files": (1, _slope("partitions", "open files")),
    "partition_start_ms": (2, _times(_slope("partitions", "start, CPU s"), 1e3)),
    "partition_idle_us": (0, _times(_slope("partitions", "idle, CPU ms a second"), 1e3)),
    "partitions_start_s": (1, _times(_slope("partitions", "start, CPU s"), 10_000)),
    "segment_bytes": (0, _million_segments("bytes_per_segment")),
    "segments_million_s": (1, _growth("live segments", 1_000_000, "fold, CPU s")),
    "segments_million_mb": (0, _million_segments("memory_mb")),
    "lookup_us": (1, _million_segments("lookup_us")),
    "loop_mb": (0, _loop_mb_per_s(3)),
    "loop_produce_mb": (0, _loop_mb_per_s(0)),
    "tb_segments": (0, lambda documents: TERABYTE / SEGMENT_BYTES),
    "tb_parts": (0, lambda documents: TERABYTE / PART_BYTES),
    "tb_core_percent": (1, _core_percent_of_a_terabyte),
    "tb_gets": (0, lambda documents: _cold_gets(documents) * TERABYTE / GIB),
    "gets_per_gib": (0, _cold_gets),
    "tb_put_dollars": (2, lambda documents: 5e-6 * TERABYTE * (1 / PART_BYTES + 4 / SEGMENT_BYTES)),
    "tb_get_dollars": (3, lambda documents: 4e-7 * _cold_gets(documents) * TERABYTE / GIB),
    "tb_events_million": (2, lambda documents: 4 * 365 * TERABYTE / SEGMENT_BYTES / 1e6),
    "year_fold_0_s": (2, _bootstrap_side("isotherm, level 0")),
    "year_fold_1_s": (2, _bootstrap_side("isotherm, level 1")),
    "year_level_0_mb": (0, _times(_bootstrap("size_level_0"), 1e-6)),
    "year_level_1_mb": (1, _times(_bootstrap("size_level_1"), 1e-6)),
}
