"""The ratios of a stored result of any form, by case and metric.

For questions to both brokers a ratio is Isotherm's median over Kafka's. With other sides the metric
says what is divided: `records_per_s of java` is the rate of Isotherm's decoder over Java's,
`seconds of level 1` is Kafka's time over Isotherm's.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple


class Ratio(NamedTuple):
    case: str
    metric: str
    value: float
    smallest: float
    """The smallest ratio of the rounds; like `largest` it is `value` if a result has medians
    only."""
    largest: float


def ratios_of(document: Mapping[str, Any]) -> list[Ratio]:
    """All ratios of a result, in the order of its cases."""
    ratios = []
    for form, read in _FORMS.items():
        for entry in document.get(form, ()):
            ratios += read(entry)
    if "store" in document:
        ratios += [
            _plain(case, "share", figures["share"]) for case, figures in document["store"].items()
        ]
    return ratios


def matching(ratios: list[Ratio], case: str, metric: str) -> list[Ratio]:
    """The ratios with a case that matches a pattern such as `java *`."""
    return [
        ratio
        for ratio in ratios
        if ratio.metric == metric and fnmatch.fnmatchcase(ratio.case, case)
    ]


def _plain(case: str, metric: str, value: float) -> Ratio:
    return Ratio(case, metric, value, value, value)


def _of_brokers(entry: Mapping[str, Any]) -> Iterator[Ratio]:
    ranges = entry.get("ratio_ranges", {})
    for metric, value in entry.get("ratios", {}).items():
        yield Ratio(entry["case"], metric, value, *ranges.get(metric, (value, value)))
    # How a metric compares within one side: `publish_p99_times_quiet` is such a ratio itself.
    for metric, figures in entry.get("sides", {}).get("isotherm", {}).items():
        if metric.endswith("_times_quiet"):
            values = figures.get("values", [figures["median"]])
            yield Ratio(entry["case"], f"own {metric}", figures["median"], min(values), max(values))
    for query, sides in entry.get("queries", {}).items():
        yield from _of_queries(entry["case"], query, sides)


def _of_queries(case: str, query: str, sides: Mapping[str, Any]) -> Iterator[Ratio]:
    for name in ("read", "isotherm"):
        for metric in ("rows_per_s", "rows_per_cpu_s"):
            if name in sides and "kafka" in sides:
                ours, theirs = sides[name][metric], sides["kafka"][metric]
                value = ours["median"] / theirs["median"]
                rounds = zip(ours.get("values", ()), theirs.get("values", ()), strict=False)
                values = [our / their for our, their in rounds] or [value]
                yield Ratio(
                    f"{case}, {query}", f"{metric} of {name}", value, min(values), max(values)
                )


def _of_decoders(entry: Mapping[str, Any]) -> Iterator[Ratio]:
    sides = entry["sides"]
    for name, figures in sides.items():
        if name != "columns":
            value = sides["columns"]["records_per_s"] / figures["records_per_s"]
            yield _plain(entry["case"], f"records_per_s of {name}", value)


def _of_bootstraps(entry: Mapping[str, Any]) -> Iterator[Ratio]:
    sides = entry["sides"]
    for level in ("level 0", "level 1"):
        for metric in ("seconds", "cpu_seconds"):
            value = sides["kafka, level 0"][metric] / sides[f"isotherm, {level}"][metric]
            yield _plain(f"{entry['years']:g} years", f"{metric} of {level}", value)


_FORMS = {
    "results": _of_brokers,
    "starting": _of_brokers,
    "decoding": _of_decoders,
    "bootstrap": _of_bootstraps,
}
