"""tests/unit mirrors src/isotherm: a reader of a module finds its tests by the module's path."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
UNIT = ROOT / "tests" / "unit"
SOURCES = ROOT / "src" / "isotherm"
# Tests of what is beside the product: its measurements, the repository itself, tests/support.
BESIDE_THE_SOURCES = {"bench", "project", "support"}
# Its tests go through the APIs of a broker, and share their fixtures.

TESTS = [
    path
    for path in sorted(UNIT.rglob("test_*.py"))
    if path.relative_to(UNIT).parts[0] not in BESIDE_THE_SOURCES
]
FOLDERS = sorted({path.parent.relative_to(UNIT).as_posix() for path in TESTS})


@pytest.mark.parametrize("folder", FOLDERS)
def test_each_folder_of_tests_has_the_path_of_a_package(folder: str) -> None:
    assert (SOURCES / folder / "__init__.py").is_file()


def test_a_test_with_the_name_of_a_module_that_it_imports_is_in_its_folder() -> None:
    modules_by_name: dict[str, list[str]] = {}
    for path in SOURCES.rglob("*.py"):
        modules_by_name.setdefault(path.stem, []).append(_module_of(path))
    misplaced = set()
    for test in TESTS:
        imported = _imported_modules(test)
        modules = set(modules_by_name.get(test.stem.removeprefix("test_"), ())) & imported
        if modules and _expected_module(test) not in modules:
            misplaced.add(test.relative_to(UNIT).as_posix())
    assert misplaced == set()


def _module_of(path: Path) -> str:
    return ".".join(path.relative_to(SOURCES.parent).with_suffix("").parts)


def _expected_module(test: Path) -> str:
    folder = SOURCES / test.parent.relative_to(UNIT)
    return _module_of(folder / f"{test.stem.removeprefix('test_')}.py")


def _imported_modules(test: Path) -> set[str]:
    """The modules after `from`, and what is imported from each, which may be modules too."""
    modules = set()
    for node in ast.walk(ast.parse(test.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules |= {node.module} | {f"{node.module}.{name.name}" for name in node.names}
    return modules
