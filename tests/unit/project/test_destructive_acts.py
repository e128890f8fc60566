"""docs/destructive-acts.md: each row names a rule that exists, and modules that use it."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/destructive-acts.md").read_text(encoding="utf-8")
SOURCES = ROOT / "src/isotherm"
RULES = SOURCES / "remote/tasks/deletion_rules.py"
REMOTE_OBJECTS = "Remote objects"


class Row(NamedTuple):
    section: str
    act: str
    rules: list[str]
    modules: list[Path]


def rows() -> Iterator[Row]:
    section = ""
    for line in PAGE.splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif line.startswith("| ") and not line.startswith("| act |"):
            act, _, _, rules, modules = (cell.strip() for cell in line.strip("|").split(" | "))
            yield Row(section, act, in_code(rules), [path_of(each) for each in in_code(modules)])


def in_code(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def path_of(module: str) -> Path:
    """The page leaves out `remote/` of a module of the remote tier."""
    path = SOURCES / module
    return path if path.is_file() else SOURCES / "remote" / module


def defined(path: Path) -> set[str]:
    """The functions, methods, classes and constants of a module."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def used(path: Path) -> set[str]:
    """The names that the code of a module reads."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    return {node.id for node in nodes if isinstance(node, ast.Name)} | {
        node.attr for node in nodes if isinstance(node, ast.Attribute)
    }


@functools.cache
def defined_anywhere() -> set[str]:
    return {name for path in SOURCES.rglob("*.py") for name in defined(path)}


ROWS = list(rows())


def test_page_has_rows_for_remote_objects_and_for_other_acts() -> None:
    assert len({row.section for row in ROWS}) == 4


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.act)
def test_rule_exists_and_a_module_of_its_row_uses_it(row: Row) -> None:
    assert row.rules
    assert [path for path in row.modules if not path.is_file()] == []
    allowed = defined(RULES) if row.section == REMOTE_OBJECTS else defined_anywhere()
    assert [rule for rule in row.rules if rule not in allowed] == []
    names = {name for path in row.modules for name in used(path) | defined(path)}
    assert [rule for rule in row.rules if rule not in names] == []


def test_each_rule_of_remote_objects_has_a_row() -> None:
    tree = ast.parse(RULES.read_text(encoding="utf-8"))
    predicates = {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}
    public = {name for name in predicates if not name.startswith("_")}
    assert public - {rule for row in ROWS for rule in row.rules} == set()
