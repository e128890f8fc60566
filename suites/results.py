"""What became of the cases of a suite: `PASS`, `FAIL` or `SKIP` by the name of the case."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

LISTS = Path(__file__).parents[1] / "tests" / "interop"

Outcomes = dict[str, str]

# `go test -v=test2json` begins what it says itself with \x16: a test may print half a line before.
_GO = re.compile(r"(?:^|\x16)[ ]*--- (PASS|FAIL|SKIP): (\S+) \(", re.MULTILINE)
_LIBRDKAFKA_ENDED = re.compile(r"=== Test (\d{4}_\w+) (PASS|SKIP|FAIL)(?:ED|PED) ===")
_LIBRDKAFKA_FAILED = re.compile(r'### Test "(\d{4}_\w+)[^"]*" failed at ')
_COLOR = re.compile(r"\x1b\[[0-9;]*m")


class SuiteUnavailableError(Exception):
    """The suite cannot be built here; the text says what is missing."""


def of_go_test(text: str) -> Outcomes:
    return {name: outcome for outcome, name in _GO.findall(text)}


def of_librdkafka(text: str) -> Outcomes:
    """A test that has failed may be said to have passed afterwards."""
    plain = _COLOR.sub("", text)
    ended = dict(_LIBRDKAFKA_ENDED.findall(plain))
    return ended | dict.fromkeys(_LIBRDKAFKA_FAILED.findall(plain), "FAIL")


def lines_of(outcomes: Mapping[str, str]) -> list[str]:
    return [f"{outcome} {name}" for name, outcome in sorted(outcomes.items())]


def read_lines(lines: list[str]) -> Outcomes:
    """The inverse of `lines_of`."""
    return {name: outcome for outcome, name in (line.split(" ") for line in lines)}
