"""A mutant's fork replaces only the changed functions, and runs only the tests of the changed
statement."""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scripts.mutant_runs import MutantRuns, changed_functions, replace_functions, statement_lines

SOURCE = """\
LIMIT = 3

class Log:
    size = 1

    def grow(self, by=1):
        if by > LIMIT:
            return [each > 0
                    for each in range(by)]
        self.size += by

    @property
    def half(self):
        return self.size // 2
"""


def changed(before: str, after: str) -> list[tuple[str, int]] | None:
    assert before in SOURCE
    mutated = SOURCE.replace(before, after)
    found = changed_functions(*(compile(each, "log.py", "exec") for each in (SOURCE, mutated)))
    return None if found is None else list(found)


@pytest.mark.parametrize(
    ("before", "after", "functions"),
    [
        ("by > LIMIT", "by >= LIMIT", [("Log.grow", 6)]),
        ("each > 0", "each > 1", [("Log.grow", 6)]),
        ("// 2", "// 3", [("Log.half", 12)]),
        ("LIMIT = 3", "LIMIT = 4", None),
        ("size = 1", "size = 2", None),
        ("by=1", "by=2", None),
        ("    @property\n", "\n", None),
    ],
)
def test_change_belongs_to_a_function_or_to_the_import(
    before: str, after: str, functions: list[tuple[str, int]] | None
) -> None:
    assert changed(before, after) == functions


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        ("by > LIMIT", "by < LIMIT", {7}),
        ("each > 0", "each < 0", {8, 9}),
        ("range(by)", "range(-by)", {8, 9}),
        ("size += by", "size -= by", {10}),
        ("by=1", "by=2", {6}),
    ],
)
def test_tests_of_a_mutant_are_those_of_its_statement(
    before: str, after: str, lines: set[int]
) -> None:
    assert statement_lines(SOURCE, SOURCE.replace(before, after)) == lines


def test_function_is_replaced_though_the_collector_is_frozen() -> None:
    """tests/conftest.py freezes what the tests import."""
    scope: dict[str, Any] = {}
    exec(compile("def answer():\n    return 1\n", "frozen.py", "exec"), scope)
    gc.freeze()
    mutated = compile("def answer():\n    return 2\n", "frozen.py", "exec")
    replace_functions("frozen.py", {("answer", 1): mutated.co_consts[0]})
    assert scope["answer"]() == 2


def test_a_package_that_is_not_installed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "coverage", None)
    runs = MutantRuns({"modules": [], "outcomes": str(tmp_path / "outcomes.json")})
    session: Any = SimpleNamespace(items=[])
    assert runs.pytest_runtestloop(session)
    broken = json.loads((tmp_path / "outcomes.json").read_text())["broken"]
    assert "ModuleNotFoundError: import of coverage" in broken
