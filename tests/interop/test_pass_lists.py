"""The lists of tests that pass with each client are correct, and only grow.

A line of `<client>/passes.txt` names a test of this folder, or of the client's own suite.
"""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LISTS = sorted(HERE.rglob("passes.txt"))


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split()


def names_in(name: str) -> set[str]:
    """The names of a file's tests, in the form of the lists."""
    tree = ast.parse((HERE / name).read_text(encoding="utf-8"))
    return {
        f"{name}::{node.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    }


def findings(passes: Path) -> str:
    """FINDINGS.md beside the list, or one folder above for a client with several suites."""
    pages = (passes.with_name("FINDINGS.md"), passes.parents[1] / "FINDINGS.md")
    return next(page.read_text(encoding="utf-8") for page in pages if page.exists())


@pytest.mark.parametrize("passes", LISTS, ids=lambda path: str(path.relative_to(HERE).parent))
def test_pass_list_is_sorted_and_has_its_findings(passes: Path) -> None:
    assert lines(passes) == sorted(set(lines(passes)))
    assert "passes.txt" in findings(passes)


def test_names_in_clients_are_in_one_list_each_and_exist() -> None:
    listed = [line for passes in LISTS for line in lines(passes) if ".py::" in line]
    assert len(listed) == len(set(listed))
    files = {line.partition("::")[0] for line in listed}
    assert set(listed) == set().union(*map(names_in, files))


@pytest.mark.parametrize("passes", LISTS, ids=lambda path: str(path.relative_to(HERE).parent))
def test_what_has_left_a_list_is_explained(passes: Path) -> None:
    """Checked as far back as this checkout's history goes."""
    command = ["git", "log", "--format=", "--patch", "--unified=0", "--", str(passes)]
    listing = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    if listing.returncode != 0:
        pytest.skip("there is no history here")
    once = {
        line[1:]
        for line in listing.stdout.splitlines()
        if line.startswith("-") and not line.startswith("---")
    }
    gone = once - set(lines(passes))
    assert {line for line in gone if line not in findings(passes)} == set()
