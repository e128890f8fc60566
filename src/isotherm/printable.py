"""Texts from outside on one line: of a log, of a table, of a terminal.

Clients, objects and records choose names, ids and messages. A line break in one of them would forge a line of the
log, and other control characters would command a terminal. So whatever is printed goes through `printable`:
each logger's lines in `LineFormatter`, the rows and messages of commands in `isotherm.cli.output`. PURE.
"""

from __future__ import annotations

import logging

TRACEBACK_INDENT = "    "


def printable(text: str) -> str:
    """Escape the characters that are not printable as Python does: `\\n`, `\\x1b`, `\\u2028`.

    Those are control characters, separators of lines, marks of text direction, and halves of pairs. Backslashes stay, so
    the result is for reading only.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def printable_lines(text: str, indent: str = "") -> str:
    """The same for each line of a text that has several, such as a traceback."""
    return "\n".join(indent + printable(line) for line in text.split("\n"))


class LineFormatter(logging.Formatter):
    """Writes a record on one line. The lines of a traceback follow it, indented, since errors have texts too."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))

    def formatException(self, ei: object) -> str:
        text = super().formatException(ei)  # type: ignore[arg-type]
        return printable_lines(text, TRACEBACK_INDENT)

    def formatStack(self, stack_info: str) -> str:
        return printable_lines(stack_info, TRACEBACK_INDENT)
