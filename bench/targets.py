"""The targets in targets.toml, and whether the results meet them."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.ratios import Ratio, matching, ratios_of
from bench.report_rows import row

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
    text: str
    # Shown in the README.
    headline: bool = False


def read_targets() -> list[Target]:
    return [Target(**entry) for entry in tomllib.loads(TARGETS.read_text())["target"]]


def table(documents: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A row for each target with its measured ratios, from the worst case to the best."""
    by_question = {document["question"]: ratios_of(document) for document in documents}
    yield "| what | target | measured | met |"
    yield "|---|---:|---:|---|"
    for target in read_targets():
        found = matching(by_question.get(target.question, []), target.case, target.metric)
        yield row(target.text, str(target), _measured(found), _verdict(target, found))


def headline(documents: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """The rows marked `headline` with their direction and target, and the number of all met
    targets.
    """
    by_question = {document["question"]: ratios_of(document) for document in documents}
    yield "| Isotherm / Kafka | ratio | better is | target | met |"
    yield "|---|---:|---|---:|---|"
    verdicts = []
    for target in read_targets():
        found = matching(by_question.get(target.question, []), target.case, target.metric)
        verdict = _verdict(target, found)
        verdicts.append(verdict.partition(",")[0])
        if target.headline:
            better = "higher" if target.at_least is not None else "lower"
            yield row(target.text, _measured(found), better, str(target), verdict)
    yield ""
    met, missed = verdicts.count("yes"), verdicts.count("no")
    partly = len(verdicts) - met - missed - verdicts.count("-")
    yield f"Of {len(verdicts)} targets {met} are met, {partly} in some cases, {missed} in none."


def _measured(found: Sequence[Ratio]) -> str:
    if not found:
        return "not yet"
    values = sorted(ratio.value for ratio in found)
    texts = [f"{value:,.2f}" if value < 100 else f"{value:,.0f}" for value in values]
    return texts[0] if len(found) == 1 else f"{texts[0]} to {texts[-1]}"


def _verdict(target: Target, found: Sequence[Ratio]) -> str:
    met = sum(target.is_met_by(ratio.value) for ratio in found)
    if not found:
        return "-"
    if met == len(found):
        return "yes" if met == 1 else f"yes, {met} of {met}"
    return "no" if not met else f"{met} of {len(found)}"
