"""The documentation agrees with the repository: options, links, tests and modules that pages
name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from isotherm.cli.config import configuration_page
from scripts.mutant_tests import TESTS

ROOT = Path(__file__).parents[3]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def test_configuration_page_is_what_the_declarations_say() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert page == configuration_page(), "run: isotherm config docs > docs/configuration.md"


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_tests_that_a_page_names_are_there(page: Path) -> None:
    named = set(re.findall(r"`(test_\w+)`", page.read_text(encoding="utf-8")))
    if named:
        sources = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
        found = set(re.findall(r"^def (test_\w+)", "\n".join(sources), re.MULTILINE))
        assert named - found == set()


def test_modules_that_delete_are_there_and_their_mutants_are_tried() -> None:
    """The page gives module paths below src/isotherm or src/isotherm/remote."""
    page = (ROOT / "docs" / "destructive-acts.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z_/]+/[a-z_]+\.py)`", page))
    sources = ROOT / "src" / "isotherm"
    modules = {
        f"{folder}{name}"
        for name in named
        for folder in ("", "remote/")
        if (sources / folder / name).exists()
    }
    assert len(named) > 15
    assert len(modules) == len(named), named
    assert modules - TESTS.keys() == set()
    paths = {path for tests in TESTS.values() for path in tests}
    missing = {path for path in paths if not (ROOT / path).exists()}
    assert missing | {module for module in TESTS if not (sources / module).exists()} == set()


def test_folders_of_the_source_tree_are_there() -> None:
    """The indented block of docs/architecture.md below `Source tree`: a folder lies in the one
    above it that is indented less."""
    section = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    section = section.partition("## Source tree")[2].partition("\n## ")[0]
    parents: list[tuple[int, Path]] = [(4, ROOT / "src" / "isotherm")]
    missing = []
    for indent, names in re.findall(
        r"^( {6,})((?:[a-z_]+/ )*[a-z_]+/)(?= )", section, re.MULTILINE
    ):
        while parents[-1][0] >= len(indent):
            parents.pop()
        for name in names.split():
            folder = parents[-1][1] / name
            missing += [] if folder.is_dir() else [str(folder.relative_to(ROOT))]
        parents.append((len(indent), folder))
    assert missing == []
