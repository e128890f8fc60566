"""No module and no folder imports itself through others, at run time or for types.

Imports within functions do not count between modules, because they run later. They do count between
folders: a reader has to know both, whenever the import runs.
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


def imported(path: Path, modules: set[str], *, within_functions: bool = False) -> Iterator[str]:
    tree = ast.parse(path.read_bytes())
    for statement in ast.walk(tree) if within_functions else statements(tree.body):
        if isinstance(statement, ast.ImportFrom) and statement.module:
            for alias in statement.names:
                whole = f"{statement.module}.{alias.name}"
                yield whole if whole in modules else statement.module
        elif isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)


def imports_of(root: Path, *, within_functions: bool = False) -> Mapping[str, set[str]]:
    paths = {module_of(path, root): path for path in root.rglob("*.py")}
    return {
        name: set(imported(path, set(paths), within_functions=within_functions)) - {name}
        for name, path in paths.items()
    }


def circle(imports: Mapping[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def beside_each_other(one: str, other: str) -> tuple[str, str] | None:
    """The two modules or folders of one folder that hold `one` and `other`; None if one of these
    holds the other."""
    first, second = one.split("."), other.split(".")
    for depth, (a, b) in enumerate(zip(first, second, strict=False), 1):
        if a != b:
            return ".".join(first[:depth]), ".".join(second[:depth])
    return None


def folder_circles(imports: Mapping[str, set[str]]) -> set[tuple[str, ...]]:
    """The modules and folders of one folder that import each other, by way of others or not."""
    edges: dict[str, set[str]] = {}
    for name, targets in imports.items():
        for target in targets & set(imports):
            pair = beside_each_other(name, target)
            if pair is not None:
                edges.setdefault(pair[0], set()).add(pair[1])
    reached = {one: reachable(edges, one) for one in edges}
    return {
        tuple(sorted(other for other in others if one in reached.get(other, ())))
        for one, others in reached.items()
        if one in others
    }


def reachable(edges: Mapping[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        more = edges.get(waiting.pop(), set()) - seen
        seen |= more
        waiting += more
    return seen


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


@pytest.mark.slow
def test_folders_import_in_no_circle() -> None:
    imports = imports_of(PACKAGE, within_functions=True)
    assert folder_circles(imports) == set()


def test_circle_of_folders_without_one_of_modules_is_found(tmp_path: Path) -> None:
    package = tmp_path / "p"
    for module, text in {
        "p/a/low.py": "",
        "p/a/high.py": "from p.b.low import x\n",
        "p/b/low.py": "",
        "p/b/high.py": "def later():\n    from p.a.low import x\n",
        "p/c.py": "from p.a import high\n",
    }.items():
        path = tmp_path / module
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert circle(imports_of(package)) == []
    assert folder_circles(imports_of(package)) == set()
    assert folder_circles(imports_of(package, within_functions=True)) == {("p.a", "p.b")}
