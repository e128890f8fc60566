"""docs/growth.md and its plots, from bench/results/growth.json."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.plot import small_multiples
from bench.report_rows import provenance, row

PAGE = Path("docs/growth.md")
PLOTS = Path("docs/benchmarks")
LINEAR = 1.1
"""Exponents up to this count as linear: the points are few and somewhat noisy."""

HEAD = """\
# How cost grows

This page shows how cost grows with records, partitions, segments, history and consumers. `python -m
bench.report` makes it from `bench/results/growth.json`; do not edit it. `bench/growth.py` describes
how each figure is taken: CPU-seconds, bytes and counts, which a busy machine changes little. Both
axes of the plots are logarithmic; the dashed line is proportional growth. The exponent is the slope
of a line fitted to the last half of the points: 0 is a constant cost, 1 is a proportional one.
"""

WORDS = {
    "records per batch": (
        "A batch is a header and bytes: appending it costs the same with one record as with a"
        " hundred, so a record's cost falls with the size of its batch until only its bytes count."
    ),
    "partitions": (
        "Each partition is loaded at a start, holds a little memory, and one open file for each"
        " segment that is written to; the indexes' files are opened only while they are written."
    ),
    "live segments": (
        "The broker's metadata of the remote tier, from two events for each segment: their fold at"
        " a start, rows and columns in memory, and a binary search per look-up. Memory is measured"
        " after all free memory was returned to the system; below ten thousand segments it is"
        " less than the free memory that a process keeps."
    ),
    "history": (
        "All events ever written, with ten thousand live segments. At level 0 each start folds"
        " them all; at level 1 compaction has dropped superseded events, so history does not count."
    ),
    "consumers": (
        "Readers of the same cold history at the same time. Ranges fetched for one serve the others"
        " as long as they are close enough together for the read-ahead memory"
        " (`remote.log.reader.read.ahead.max.bytes`), so GETs hardly grow and memory does not."
    ),
}
X_TITLES = {"history": "metadata events"}


def pages(document: Mapping[str, Any]) -> dict[Path, str]:
    """The page and its plots, by their paths in the repository."""
    made = {PAGE: "\n".join(_page(document))}
    for axis, points in document["growth"].items():
        panels = {
            name: [(point["x"], point[name]) for point in points if point[name] > 0]
            for name in _metrics(points)
        }
        panels = {name: series for name, series in panels.items() if len(series) > 1}
        made[_plot_path(axis)] = small_multiples(X_TITLES.get(axis, axis), panels)
    return made


def _plot_path(axis: str) -> Path:
    return PLOTS / f"{axis.replace(' ', '-')}.svg"


def _metrics(points: Sequence[Mapping[str, float]]) -> list[str]:
    return [name for name in points[0] if name != "x"]


def _page(document: Mapping[str, Any]) -> Iterator[str]:
    yield HEAD
    for axis, points in document["growth"].items():
        metrics = _metrics(points)
        exponents = {name: exponent([(p["x"], p[name]) for p in points]) for name in metrics}
        yield f"## {axis.capitalize()}"
        yield ""
        yield WORDS[axis]
        yield ""
        yield f"![Cost against {axis}](benchmarks/{_plot_path(axis).name})"
        yield ""
        yield row(X_TITLES.get(axis, axis), *metrics)
        yield "|---:" * (1 + len(metrics)) + "|"
        for point in points:
            yield row(f"{point['x']:,g}", *(f"{point[name]:,.2f}" for name in metrics))
        yield row("exponent", *(f"{exponents[name]:.2f}" for name in metrics))
        yield ""
        steep = [name for name, slope in exponents.items() if slope > LINEAR]
        if steep:
            yield f"More than in proportion: {', '.join(steep)}."
        else:
            yield "Everything grows in proportion or less."
        yield ""
    yield provenance(document)
    yield ""


def exponent(points: Sequence[tuple[float, float]]) -> float:
    """The slope of log y over log x, fitted to the last half of the points, two at least."""
    last = [(x, y) for x, y in points if y > 0][-max(2, math.ceil(len(points) / 2)) :]
    if len(last) < 2:
        return 0.0
    logs = [(math.log(x), math.log(y)) for x, y in last]
    x_mean = sum(x for x, _ in logs) / len(logs)
    y_mean = sum(y for _, y in logs) / len(logs)
    over = sum((x - x_mean) * (y - y_mean) for x, y in logs)
    return over / sum((x - x_mean) ** 2 for x, _ in logs)
