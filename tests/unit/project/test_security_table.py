"""The tables of docs/security.md about what others can make a process spend: what they name
exists.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

from isotherm.config.server_properties import broker_key_names

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/security.md").read_text()
SECTION = PAGE.partition("## What others can make it spend")[2].partition("\n## ")[0]
# Quotas are set for clients, not in the configuration; the others are options of commands.
NO_KEYS = {
    "controller_mutation_rate",
    "producer_byte_rate",
    "--credentials-file",
    "--log-lines-per-s",
}


class Row(NamedTuple):
    resource: str
    bound: str
    modules: str
    tests: str


ROWS = [
    Row(*(cell.strip() for cell in line.strip("|").split("|")))
    for line in SECTION.splitlines()
    if line.startswith("| ") and not line.startswith("| resource")
]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def source_of(name: str) -> str:
    path = ROOT / "src/isotherm" / name
    files = [path] if path.is_file() else sorted(path.rglob("*.py"))
    assert files, f"no such module: {name}"
    return "\n".join(file.read_text() for file in files)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.resource)
def test_each_row_names_what_exists(row: Row) -> None:
    sources = [source_of(name) for name in names(row.modules)]
    for constant in re.findall(r"\b[A-Z][A-Z_]*_[A-Z_]+\b", row.bound):
        defined = re.compile(rf"^{constant}\b[^=\n]* = ", re.MULTILINE)
        assert any(defined.search(source) for source in sources), constant
    for key in set(names(row.bound)) - NO_KEYS:
        assert key in broker_key_names(), key
    for test in names(row.tests):
        assert (ROOT / "tests" / test).exists(), test


def test_each_row_has_a_test_or_no_bound() -> None:
    assert len(ROWS) > 35
    assert [row.resource for row in ROWS if not row.tests and "**None**" not in row.bound] == []
