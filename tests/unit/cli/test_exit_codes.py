"""The page of exit codes lists every code with which a command ends."""

from __future__ import annotations

import re
from pathlib import Path

from isotherm.cli.main import COMMANDS

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "exit-codes.md").read_text(encoding="utf-8")
_CODE = re.compile(r"(?:\b_?EXIT_[A-Z]+ = |typer\.Exit\(|sys\.exit\()(\d+)")


def test_each_code_of_a_command_is_on_the_page_and_no_other() -> None:
    sources = [
        path.read_text(encoding="utf-8") for path in (ROOT / "src/isotherm/cli").glob("*.py")
    ]
    codes = {int(code) for text in sources for code in _CODE.findall(text)}
    assert codes == {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)}


def test_commands_on_the_page_exist() -> None:
    rows = re.findall(r"^\| (`[a-z].*?) \| \d", PAGE, re.MULTILINE)
    commands = re.findall(r"`([a-z-]+)", " ".join(rows))
    named = {command for command in commands if command != "replay"}
    assert named
    assert named <= set(COMMANDS)
