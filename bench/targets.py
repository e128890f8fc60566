"""The targets in targets.toml, and whether the results meet them."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.ratios import Ratio, matching, ratios_of
from bench.report_rows import row

# A question that began at a higher load average was measured beside other work.
QUIET_LOAD_MAX = 1.0
TARGETS = Path(__file__).with_name("targets.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """A bound, at least or at most, on the ratios of a question's cases."""

    question: str
    metric: str
    case: str = "*"
    at_least: float | None = None
    at_most: float | None = None

    def __post_init__(self) -> None:
        assert (self.at_least is None) != (self.at_most is None), self

    def __str__(self) -> str:
        return f"≥ {self.at_least:g}" if self.at_least is not None else f"≤ {self.at_most:g}"

    def is_met_by(self, ratio: float) -> bool:
        if self.at_least is not None:
            return ratio >= self.at_least
        assert self.at_most is not None
        return ratio <= self.at_most


@dataclass(frozen=True, slots=True, kw_only=True)
class Target(Bound):
    """`bound_by` is what the measured cases cannot go beyond. Headlines are shown in the README."""

    text: str
    bound_by: str = ""
    headline: bool = False


def read_targets() -> list[Target]:
    return [Target(**entry) for entry in tomllib.loads(TARGETS.read_text())["target"]]


def table(documents: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A row for each target with its measured ratios, from the worst case to the best, and the load
    average at the start of the question."""
    by_question = {document["question"]: document for document in documents}
    yield "| what | target | measured | met | bound by | load |"
    yield "|---|---:|---:|---|---|---:|"
    for target in read_targets():
        ratios = _of(target, by_question)
        load = _load(by_question.get(target.question, {}))
        yield row(
            target.text,
            str(target),
            _measured(ratios),
            _verdict(target, ratios),
            target.bound_by,
            "-" if load is None else f"{load:.1f}",
        )


def headline(documents: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The rows marked `headline` with their direction and target, and the number of all met
    targets.
    """
    by_question = {document["question"]: document for document in documents}
    yield "| Isotherm / Kafka | ratio | better is | target | met | measured on a machine that was |"
    yield "|---|---:|---|---:|---|---|"
    verdicts = []
    for target in read_targets():
        ratios = _of(target, by_question)
        verdict = _verdict(target, ratios)
        verdicts.append(verdict.partition(",")[0])
        if target.headline:
            better = "higher" if target.at_least is not None else "lower"
            state = _state(by_question.get(target.question, {}))
            yield row(target.text, _measured(ratios), better, str(target), verdict, state)
    yield ""
    met, missed = verdicts.count("yes"), verdicts.count("no")
    partly = len(verdicts) - met - missed - verdicts.count("-")
    yield f"Of {len(verdicts)} targets {met} are met, {partly} in some cases, {missed} in none."


def _of(target: Target, by_question: Mapping[str, Mapping[str, Any]]) -> list[Ratio]:
    document = by_question.get(target.question)
    ratios = [] if document is None else ratios_of(document)
    return matching(ratios, target.case, target.metric)


def _load(document: Mapping[str, Any]) -> float | None:
    return document.get("load_average")


def _state(document: Mapping[str, Any]) -> str:
    load = _load(document)
    if load is None:
        return "-"
    return "quiet" if load <= QUIET_LOAD_MAX else f"loaded ({load:.1f})"


def _measured(ratios: Sequence[Ratio]) -> str:
    if not ratios:
        return "not yet"
    values = sorted(ratio.value for ratio in ratios)
    texts = [f"{value:,.2f}" if value < 100 else f"{value:,.0f}" for value in values]
    return texts[0] if len(ratios) == 1 else f"{texts[0]} to {texts[-1]}"


def _verdict(target: Target, ratios: Sequence[Ratio]) -> str:
    met = sum(target.is_met_by(ratio.value) for ratio in ratios)
    if not ratios:
        return "-"
    if met == len(ratios):
        return "yes" if met == 1 else f"yes, {met} of {met}"
    return "no" if not met else f"{met} of {len(ratios)}"
