"""No module imports itself through others, at run time or for types.

Imports within functions do not count, because they run later.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import isotherm

PACKAGE = Path(isotherm.__file__).parent


def module_of(path: Path, root: Path) -> str:
    parts = path.relative_to(root.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements that run, or that a type checker reads, when the module is imported."""
    for statement in body:
        yield statement
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            for inner in ("body", "orelse", "handlers", "finalbody"):
                yield from statements(getattr(statement, inner, []))


def imported(path: Path, modules: set[str]) -> Iterator[str]:
    for statement in statements(ast.parse(path.read_bytes()).body):
        if isinstance(statement, ast.ImportFrom) and statement.module:
            for alias in statement.names:
                whole = f"{statement.module}.{alias.name}"
                yield whole if whole in modules else statement.module
        elif isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)


def imports_of(root: Path) -> Mapping[str, set[str]]:
    paths = {module_of(path, root): path for path in root.rglob("*.py")}
    return {name: set(imported(path, set(paths))) - {name} for name, path in paths.items()}


def circle(imports: Mapping[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


@pytest.mark.slow
def test_no_module_imports_itself_by_way_of_others() -> None:
    assert circle(imports_of(PACKAGE)) == []


def test_circle_of_types_alone_is_found(tmp_path: Path) -> None:
    package = tmp_path / "p"
    package.mkdir()
    (package / "a.py").write_text("from p.b import B\n")
    (package / "b.py").write_text(
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p import a\n"
    )
    assert set(circle(imports_of(package))) == {"p.a", "p.b"}
