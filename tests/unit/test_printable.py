"""Texts that clients choose stay on their line of a log, and do not command a terminal."""

from __future__ import annotations

import io
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from isotherm.cli import output
from isotherm.printable import LineFormatter, printable

FORGED = (
    "mine-\n2026-11-27 21:00:00,000 INFO kafka.authorizer.logger: Principal = User:bob is Allowed"
)


def logged(emit: object) -> list[str]:
    """The lines that a logger with the formatter writes."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(LineFormatter("%(levelname)s %(name)s: %(message)s"))
    logger = logging.getLogger("test")
    logger.addHandler(handler)
    emit(logger)  # type: ignore[operator]
    return stream.getvalue().split("\n")[:-1]


@pytest.mark.parametrize(
    "character", ["\n", "\r", "\x0b", "\x0c", "\x1c", "\x85", "\u2028", "\u2029"]
)
def test_line_break_of_any_kind_forges_no_line(character: str) -> None:
    text = f"a{character}b"
    (line,) = logged(lambda logger: logger.warning("group=%s", text))
    assert line.splitlines() == [f"WARNING test: group=a{ascii(character)[1:-1]}b"]


@given(st.text())
def test_printable_has_one_line_and_no_control_character(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    assert shown == text or not text.isprintable()


@pytest.mark.parametrize(
    "text", ["orders", "Zürich", "日本語", "a b", "back\\slash", "emoji 🙂", ""]
)
def test_printable_text_stays_as_it_is(text: str) -> None:
    assert printable(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", "\\x1b[2J"),  # clears a terminal
        ("\u202eabc", "\\u202eabc"),  # turns the direction of text
        ("\ud800", "\\ud800"),
        ("\x00", "\\x00"),
        ("a\tb", "a\\tb"),
    ],
)
def test_characters_that_command_a_terminal_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_text_of_an_error_forges_no_line_in_its_traceback() -> None:
    def emit(logger: logging.Logger) -> None:
        try:
            raise ValueError(FORGED)
        except ValueError:
            logger.exception("request failed client_id=%s", FORGED, stack_info=True)

    first, *rest = logged(emit)
    assert first == f"ERROR test: request failed client_id={printable(FORGED)}"
    assert len(rest) > 4
    assert all(line.startswith("    ") for line in rest)


def test_cells_of_a_table_are_printed_as_they_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    """Rich would read brackets as markup, and a closing one without an opening one is an error."""
    rows = [{"group": "[/red] [bold]x", "members": ["a\x1b[2J", "b\nc"]}]
    output.print_rows(["group", "members"], rows, as_json=False)
    printed = capsys.readouterr().out
    assert "[/red] [bold]x" in printed
    assert "a\\x1b[2J, b\\nc" in printed


def test_error_of_a_command_is_one_line() -> None:
    from isotherm.cli.main import app

    done = CliRunner().invoke(app, ["topics", "list", "-b", "no\x1b[2J such host"])
    assert "\x1b[2J" not in done.output
