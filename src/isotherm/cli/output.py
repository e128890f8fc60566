"""The output of commands: tables for people, JSON for programs."""

from __future__ import annotations

import datetime
import itertools
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from isotherm.printable import printable

if TYPE_CHECKING:
    from rich.console import Console

_LATER_CONTROLS = re.compile(r"[\x7f-\x9f]")
_DURATIONS = ((86_400, "d"), (3600, "h"), (60, "min"))
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def print_rows(
    columns: Sequence[str],
    rows: Iterable[Mapping[str, Any]],
    *,
    as_json: bool,
    title: str | None = None,
) -> None:
    """Print rows as a table, or as JSON with one object per line, so that a long list can
    stream.
    """
    if as_json:
        for row in rows:
            print_json(row)
        return
    from rich.table import Table

    table = Table(title=title, title_justify="left", header_style="bold", show_edge=False)
    settled = list(rows)
    numeric = {
        column: all(isinstance(row.get(column), int | float | None) for row in settled)
        for column in columns
    }
    out = console()
    widths = {
        column: _least_width(
            column, [_cell(row.get(column)) for row in settled], is_number=numeric[column]
        )
        for column in columns
    }
    shown = fitting_columns(widths, out.width)
    for column in shown:
        table.add_column(
            column.replace("_", " "),
            justify="right" if numeric[column] and settled else "left",
            overflow="fold",
            min_width=widths[column],
        )
    for row in settled:
        table.add_row(*(_cell(row.get(column)) for column in shown))
    out.print(table)
    if left_out := [each.replace("_", " ") for each in columns if each not in shown]:
        out.print(f"The terminal is too narrow for: {', '.join(left_out)}. --json has them.")


_SEPARATOR_WIDTH = 3
_FOLDED_WIDTH = 16
"""A text that is longer is folded into several lines rather than its column left out."""


def fitting_columns(widths: Mapping[str, int], room: int) -> list[str]:
    """The columns that fit side by side, with their least widths. The first are the most important:
    the last ones are left out, and the first one never is."""
    shown: list[str] = []
    for column, width in widths.items():
        room -= width + (_SEPARATOR_WIDTH if shown else 1)
        if shown and room < 0:
            break
        shown.append(column)
    return shown


def _least_width(column: str, cells: Sequence[str], *, is_number: bool) -> int:
    """Neither a word of the header nor a number is ever broken."""
    longest = max(map(len, cells), default=0)
    header = max(map(len, column.split("_")))
    return max(header, longest if is_number else min(longest, _FOLDED_WIDTH))


def human_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row for people: sizes, times and durations with units, by the ends of their names."""
    return {name: _human_value(name, value) for name, value in row.items()}


def _human_value(name: str, value: Any) -> Any:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return value
    if name == "bytes" or name.endswith(("_bytes", "bytes_so_far")):
        return human_size(value)
    if name.endswith("timestamp_ms"):
        moment = datetime.datetime.fromtimestamp(value / 1000, datetime.UTC)
        return f"{moment:%Y-%m-%d %H:%M:%S}"
    if name.endswith("_ms"):
        return duration(value / 1000)
    return value


def duration(seconds: float) -> str:
    """0.25 -> '250 ms', 90 -> '1.5 min'."""
    if abs(seconds) < 1:
        return f"{seconds * 1000:.3g} ms"
    found = next((each for each in _DURATIONS if abs(seconds) >= each[0]), (1, "s"))
    return f"{seconds / found[0]:.1f}".removesuffix(".0") + f" {found[1]}"


_SETTLED_ROWS = 200
"""The number of first rows of a stream that determine the widths of its columns."""


def print_stream(
    columns: Sequence[str], rows: Iterable[Mapping[str, Any]], *, as_json: bool
) -> None:
    """Print rows as they arrive, as JSON or in columns, and keep none of them.

    The first rows determine the widths of the columns. A longer value is not cut off: it shifts the
    rest of its line.
    """
    if as_json:
        for row in rows:
            print_json(row)
        return
    stream = iter(rows)
    first = list(itertools.islice(stream, _SETTLED_ROWS))
    names = [column.replace("_", " ") for column in columns]
    cells = [[_cell(row.get(column)) for column in columns] for row in first]
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    _print_line(names, widths)
    for line in cells:
        _print_line(line, widths)
    for row in stream:
        _print_line([_cell(row.get(column)) for column in columns], widths)


def _print_line(cells: Sequence[str], widths: Sequence[int]) -> None:
    padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    sys.stdout.write("  ".join(padded).rstrip() + "\n")


def print_json(value: Mapping[str, Any]) -> None:
    sys.stdout.write(json_text(value) + "\n")


def json_text(value: Mapping[str, Any]) -> str:
    """One line of JSON. It has no control characters, which a terminal would obey."""
    # `json.dump` would write token by token, in Python code.
    text = json.dumps(value, default=str, ensure_ascii=False)
    # JSON itself escapes only those below a space.
    return _LATER_CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


_PIPE_WIDTH = 1_000_000
"""A width beyond any value, so that lines are wrapped only on a terminal, never in a pipe or a
file.
"""


def console() -> Console:
    """Standard output. If it is not a terminal, no line is wrapped."""
    from rich.console import Console

    class _Console(Console):
        def on_broken_pipe(self) -> None:
            """Rich's own ends the process. The command line ends it in order (see main.py)."""
            raise BrokenPipeError

    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    # Names may have brackets, which are no markup.
    return _Console(width=width, highlight=False, markup=False)


def error_console() -> Console:
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False)


def human_size(size: float) -> str:
    """12_345_678 -> '11.8 MiB'."""
    unit = _UNITS[0]
    for unit in _UNITS:
        if abs(size) < 1024 or unit == _UNITS[-1]:
            break
        size /= 1024
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"


def dollars(amount: float) -> str:
    """0.004 -> '< $0.01'."""
    return "< $0.01" if 0 < amount < 0.01 else f"${amount:,.2f}"


def _cell(value: Any) -> str:
    return printable(_text(value))


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, Mapping) and value.keys() == {"key", "value"}:
        # This is a header. Headers are a list, since several may have the same name.
        return f"{value['key']}={value['value']}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={item}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_text(item) for item in value)
    return str(value)
