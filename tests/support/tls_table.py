"""The table of docs/security.md with what listeners offer of TLS."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
KEYS = ("EC", "RSA")


def offers_of_page(server: str, key: str) -> set[str]:
    """The versions and cipher suites that the page lists for a server with this type of key."""
    table = PAGE.read_text().partition("### What is offered")[2].partition("\n#")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in re.findall(r"^\|.*\|$", table, re.MULTILINE)
    ]
    column = rows[0].index(f"{server}, {key} key")
    return {row[0] for row in rows[2:] if row[column] == "yes"}
