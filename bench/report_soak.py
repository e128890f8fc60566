"""The section of docs/benchmarks.md about an hour of all kinds of work, and its plot."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from bench.plot import over_time
from bench.report_rows import row

PLOT = Path("docs/benchmarks/soak.svg")
COLUMNS = (
    "seconds", "resident_mb", "anonymous_mb", "read_ahead_mb", "descriptors", "threads", "cpu_s",
)  # fmt: skip
"""The figures of a sample, in their order."""
PANELS = {
    "resident_mb": "resident memory, MB",
    "anonymous_mb": "without files, MB",
    "read_ahead_mb": "of that read ahead of the tier, MB",
    "descriptors": "descriptors",
    "threads": "threads",
}


def section(document: Mapping[str, Any]) -> Iterator[str]:
    result = document["soak"]
    parameters = result["parameters"]
    yield (
        f"`bench/soak.py` has all of this at once for {parameters['seconds'] / 60:.0f} minutes: a"
        f" producer with acks=all and {parameters['records_per_s']:,} records of"
        f" {parameters['record_size']} bytes a second, and a consumer of its tail, in a topic whose"
        " segments are copied, expire locally and are deleted from the bucket;"
        f" {parameters['cold_readers']} readers of a history of {parameters['history_gb']:g} GB in"
        f" the bucket; {parameters['idle_connections']:,} idle connections, and"
        f" {parameters['active_connections']} that send a record ten times a second. The columns"
        " are the medians of the second and of the last quarter of the time."
    )
    yield ""
    yield f"![Memory over time](benchmarks/{PLOT.name})"
    yield ""
    yield "| figure | second quarter | last quarter | times |"
    yield "|---|---:|---:|---:|"
    for name, title in PANELS.items():
        quarters = result["quarters"][name]
        yield row(
            title,
            f"{quarters['second']:,.0f}",
            f"{quarters['last']:,.0f}",
            f"{quarters['times']:.2f}",
        )
    yield ""
    p99s = sorted(result["publish_p99_ms"])
    first, last = result["samples"][0], result["samples"][-1]
    processors = (last[-1] - first[-1]) / (last[0] - first[0])
    yield (
        f"Read from the tail: {result['tail_read_mb'] / 1000:,.0f} GB; from the history:"
        f" {result['cold_read_mb'] / 1000:,.0f} GB. The broker took {processors:.2f} processors."
        f" Minutes of the producer: {len(p99s)}, with a p99 of {p99s[0]:,.0f} to {p99s[-1]:,.0f}"
        f" ms, median {p99s[len(p99s) // 2]:,.0f}; failed: {result['failed_rounds']}. The reader of"
        " the tail"
        f" fell behind retention {result['tail_resets']} times."
    )


def plot(result: Mapping[str, Any]) -> str:
    """An SVG document with a panel for each of PANELS."""
    return over_time(
        "minutes",
        {
            title: [
                (sample[0] / 60, float(sample[COLUMNS.index(name)])) for sample in result["samples"]
            ]
            for name, title in PANELS.items()
        },
    )
