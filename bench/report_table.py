"""The section of docs/benchmarks.md about topics as tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from bench.report_rows import row

Queries = Callable[[Mapping[str, Any]], Iterator[str]]


def section(document: Mapping[str, Any], queries: Queries) -> Iterator[str]:
    """`queries` writes the table of a result's queries."""
    results: Sequence[Mapping[str, Any]] = document["results"]
    yield (
        "`bench/table.py` describes the measurements. CPU-seconds are those of all processes."
        " Targets: to make a"
        ' table, 3 times the rows per CPU-second of `format("kafka")`; to ask it, 8 times its rows'
        " per second for"
        " three columns, 5 times for all, and 0.9 of plain Parquet."
    )
    yield ""
    yield (
        "| case | side | seconds | spread | MB/s | M rows/CPU-s | times kafka | CPU-s/GB"
        " | MB written |"
    )
    yield "|---|---|---:|---:|---:|---:|---:|---:|---:|"
    for result in results:
        for name, side in result.get("sides", {}).items():
            yield row(result["case"], name, *_cells(name, side, result["ratios"]))
    yield ""
    yield from queries(
        {**document, "results": [result for result in results if "queries" in result]}
    )


def _cells(
    name: str, side: Mapping[str, Mapping[str, float]], ratios: Mapping[str, float]
) -> Iterator[str]:
    yield f"{side['seconds']['median']:.1f}"
    yield f"{side['seconds']['spread']:.0%}"
    if "mb_per_s" not in side:
        yield from ("-",) * 5
        return
    yield f"{side['mb_per_s']['median']:.1f}"
    yield f"{side['rows_per_cpu_s']['median'] / 1e6:.3f}"
    yield f"{ratios['rows_per_cpu_s']:.2f}" if name == "isotherm" else "-"
    yield f"{side['cpu_s_per_gb']['median']:.1f}"
    yield f"{side['written_mb']['median']:.1f}"
