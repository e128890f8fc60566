"""tests/support/README.md lists every module, and none that is not there."""

from __future__ import annotations

import re
from pathlib import Path

SUPPORT = Path(__file__).parents[2] / "support"


def test_map_has_a_line_for_each_module() -> None:
    modules = {path.relative_to(SUPPORT).as_posix() for path in SUPPORT.rglob("*.py")}
    lines = re.findall(r"^- `([\w/]+\.py)`: \S", (SUPPORT / "README.md").read_text(), re.MULTILINE)
    assert sorted(lines) == sorted(name for name in modules if not name.endswith("__init__.py"))
