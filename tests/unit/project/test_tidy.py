"""Rules on the source itself that no linter checks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import LONGEST

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


NAMES_THAT_SAY_NOTHING = {"found", "known", "wanted", "asked", "told", "each"}
"""They say how a value came, not what it is."""
# A key of the JSON that `isotherm doctor` prints.
NAMED_FOR_USERS = {("src/isotherm/cli/doctor.py", "found")}


def test_variables_are_named_after_what_they_are() -> None:
    vague = [
        f"{path}:{line} {name}"
        for path in map(_ids, [*SOURCES, *(ROOT / "bench").glob("*.py")])
        for line, name in _variables((ROOT / path).read_text(encoding="utf-8"))
        if name in NAMES_THAT_SAY_NOTHING and (path, name) not in NAMED_FOR_USERS
    ]
    assert not vague


def test_vague_variables_are_noticed() -> None:
    text = "def f(found):\n    for each in found: wanted = each\n    return lambda known: told"
    named = {name for _, name in _variables(text)}
    assert named & NAMES_THAT_SAY_NOTHING == {"found", "each", "wanted", "known"}


def _variables(text: str) -> Iterator[tuple[int, str]]:
    """Line and name of each variable and parameter that is set."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


def test_every_module_is_imported_somewhere() -> None:
    """A module that nothing imports is dead, unless it is an entry point listed here."""
    entry_points = {
        "isotherm.cli.main",
        "isotherm.__main__",
        "isotherm.kernels.__main__",
        "isotherm.spark.session",
        "pyspark_isotherm.default_source",
        "tests.support.schedules.__main__",
    }
    mentioned_by: dict[str, set[Path]] = {}
    folders = ("src", "tests", "bench")
    for path in (file for folder in folders for file in (ROOT / folder).rglob("*.py")):
        for name in _mentioned(path.read_text(encoding="utf-8")):
            mentioned_by.setdefault(name, set()).add(path)
    dead = []
    for path in SOURCES:
        module = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        if path.name != "__init__.py" and module not in entry_points:
            dead += [] if mentioned_by.get(module, set()) - {path} else [module]
    assert not dead


_DOTTED = re.compile(r"\bisotherm(?:\.\w+)+")
_FROM = re.compile(r"from (isotherm[\w.]*) import (\([^)]*\)|[^\n]*)")


def _mentioned(text: str) -> set[str]:
    """The dotted names in the text with all their prefixes, and the names imported with `from`."""
    names = set()
    for dotted in _DOTTED.findall(text):
        parts = dotted.split(".")
        names |= {".".join(parts[:length]) for length in range(2, len(parts) + 1)}
    for module, imported in _FROM.findall(text):
        names |= {f"{module}.{name}" for name in re.findall(r"\w+", imported)}
    return names


def test_tests_wait_for_conditions_and_do_not_sleep() -> None:
    """A sleep of zero seconds is a turn of the event loop."""
    sleepers = [
        f"{_ids(path)}:{line}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if path != ROOT / "tests/support/conditions.py"
        for line in _sleeps(path.read_text(encoding="utf-8"))
    ]
    assert sleepers == [], "use tests/support/conditions.py, or a SimClock"


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("time.sleep(1)", [1]),
        ("\nawait asyncio.sleep(PAUSE_S)", [2]),
        ("from time import monotonic, sleep", [1]),
        ("poll = time.sleep", [1]),
        ("await asyncio.sleep(0)", []),
        ("clock.sleep(1)", []),
    ],
)
def test_sleeps_are_noticed(source: str, lines: list[int]) -> None:
    assert _sleeps(source) == lines


def _sleeps(source: str) -> list[int]:
    lines = []
    turns = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute() as function, args=[ast.Constant(value=0)]):
                turns.add(function)
            case ast.ImportFrom(module="time" | "asyncio", names=names):
                lines += [node.lineno for name in names if name.name == "sleep"]
            case ast.Attribute(value=ast.Name(id="time" | "asyncio"), attr="sleep"):
                lines += [] if node in turns else [node.lineno]
    return lines


def test_files_that_begin_first_are_there() -> None:
    """A renamed file would lose its early start, and might then end long after all others."""
    assert [name for name in LONGEST if not (ROOT / "tests" / name).is_file()] == []
