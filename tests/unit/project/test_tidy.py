"""Rules on the source itself that no linter of the set holds."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
BANNED_NAMES = re.compile(r"^(utils?|helpers?|common|misc|base|manager)(_.*)?\.py$")


def _ids(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", SOURCES, ids=_ids)
def test_module_is_named_after_a_concept(path: Path) -> None:
    assert not BANNED_NAMES.match(path.name)


@pytest.mark.parametrize("path", [path for path in SOURCES if path.name == "__init__.py"], ids=_ids)
def test_init_module_has_no_logic(path: Path) -> None:
    allowed = (ast.Expr, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert all(isinstance(node, allowed) for node in tree.body)


def test_text_does_not_name_unfinished_work() -> None:
    marks = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    found = [_ids(path) for path in SOURCES if marks.search(path.read_text(encoding="utf-8"))]
    assert not found


def test_every_module_is_imported_somewhere() -> None:
    """A module nobody imports is dead, or is an entry point that says so here."""
    entry_points = {
        "isotherm.cli.main",
        "isotherm.cli.__main__",
        "isotherm.kernels.__main__",
        "isotherm.spark.session",
        "isotherm.testing.schedules.__main__",
    }
    everything = [*SOURCES, *(ROOT / "tests").rglob("*.py"), *(ROOT / "bench").rglob("*.py")]
    texts = {path: path.read_text(encoding="utf-8") for path in everything}
    dead = []
    for path in SOURCES:
        module = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        if path.name == "__init__.py" or module in entry_points:
            continue
        package, _, name = module.rpartition(".")
        spelled = re.compile(
            rf"\b{re.escape(module)}\b|from {re.escape(package)} import [^\n]*\b{name}\b"
            rf"|from {re.escape(package)} import \([^)]*\b{name}\b"
        )
        if not any(spelled.search(text) for other, text in texts.items() if other != path):
            dead.append(module)
    assert not dead
