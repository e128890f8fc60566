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
from isotherm.types import NO_TIMESTAMP

if TYPE_CHECKING:
    from rich.console import Console

_LATER_CONTROLS = re.compile(r"[\x7f-\x9f]")
_DURATIONS = ((86_400, "d"), (3600, "h"), (60, "min"))
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


class Quantity(str):
    """A number with its unit, for people. In tables it is aligned as numbers are."""

    __slots__ = ()


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
    from rich.cells import cell_len
    from rich.table import Table

    table = Table(title=title, title_justify="left", header_style="bold", show_edge=False)
    settled = list(rows)
    numeric = {column: all(_is_number(row.get(column)) for row in settled) for column in columns}
    out = console()
    widths = {
        column: _least_width(
            column, [_cell(row.get(column)) for row in settled], is_number=numeric[column]
        )
        for column in columns
    }
    room = out.width - _EDGES_WIDTH
    shown = fitting_columns(widths, room)
    spare = room - sum(widths[column] + _SEPARATOR_WIDTH for column in shown) + _SEPARATOR_WIDTH
    for column in shown:
        whole = max(len(column), *(cell_len(_cell(row.get(column))) for row in settled), 0)
        # Rich itself would take from the widest column, even below its least width.
        growth = max(0, min(whole - widths[column], spare))
        spare -= growth
        table.add_column(
            column.replace("_", " "),
            justify="right" if numeric[column] and settled else "left",
            overflow="fold",
            width=widths[column] + growth,
        )
    for row in settled:
        table.add_row(*(_cell(row.get(column)) for column in shown))
    out.print(table)
    _print_left_out(columns, shown)


def _print_left_out(columns: Sequence[str], shown: Sequence[str]) -> None:
    if left_out := [column.replace("_", " ") for column in columns if column not in shown]:
        console().print(f"The terminal is too narrow for: {', '.join(left_out)}. --json has them.")


_SEPARATOR_WIDTH = 3
_EDGES_WIDTH = 2
"""Rich pads the first column on its left and the last one on its right."""
_STREAM_SEPARATOR_WIDTH = 2
_FOLDED_WIDTH = 16
"""A text that is longer is folded into several lines rather than its column left out."""


def fitting_columns(
    widths: Mapping[str, int], room: int, *, separator_width: int = _SEPARATOR_WIDTH
) -> list[str]:
    """The columns that fit side by side, with their least widths. The first are the most important:
    the last ones are left out, and the first one never is."""
    shown: list[str] = []
    for column, width in widths.items():
        room -= width + (separator_width if shown else 0)
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
    """The row for people: sizes, times (UTC) and durations with units, by the ends of their
    names."""
    return {name: _human_value(name, value) for name, value in row.items()}


def _human_value(name: str, value: Any) -> Any:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return value
    if name in ("bytes", "size") or name.endswith(("_bytes", "bytes_so_far")):
        return human_size(value)
    if name.endswith(("timestamp_ms", "timestamp", "horizon_ms")):
        return _moment(value)
    if name.endswith("_ms"):
        return duration(value / 1000)
    return value


def _moment(timestamp_ms: float) -> str | float | None:
    """A client may send any number: one beyond the calendar stays as it is."""
    if timestamp_ms == NO_TIMESTAMP:
        return None
    try:
        moment = datetime.datetime.fromtimestamp(timestamp_ms / 1000, datetime.UTC)
    except (OverflowError, ValueError, OSError):
        return timestamp_ms
    return f"{moment:%Y-%m-%d %H:%M:%S}"


def duration(seconds: float) -> Quantity:
    """0.25 -> '250 ms', 90 -> '1.5 min'."""
    if abs(seconds) < 1:
        return Quantity(f"{seconds * 1000:.3g} ms")
    unit_s, unit = next((step for step in _DURATIONS if abs(seconds) >= step[0]), (1, "s"))
    return Quantity(f"{seconds / unit_s:.1f}".removesuffix(".0") + f" {unit}")


_SETTLED_ROWS = 200
"""The number of first rows of a stream that determine the widths of its columns."""


def print_stream(
    columns: Sequence[str], rows: Iterable[Mapping[str, Any]], *, as_json: bool
) -> None:
    """Print rows as they arrive, as JSON or in columns with units, and keep none of them.

    The first rows determine the widths of the columns, and which of them fit a terminal. A longer
    value is not cut off: it shifts the rest of its line.
    """
    if as_json:
        for row in rows:
            print_json(row)
        return
    stream = map(human_row, rows)
    first = list(itertools.islice(stream, _SETTLED_ROWS))
    names = {column: column.replace("_", " ") for column in columns}
    widths = {
        column: max(len(name), *(len(_cell(row.get(column))) for row in first))
        if first
        else len(name)
        for column, name in names.items()
    }
    shown = fitting_columns(widths, console().width, separator_width=_STREAM_SEPARATOR_WIDTH)
    to_right = {column for column in shown if all(_is_number(row.get(column)) for row in first)}

    def print_line(row: Mapping[str, Any]) -> None:
        cells = [
            cell.rjust(widths[column]) if column in to_right else cell.ljust(widths[column])
            for column, cell in ((column, _cell(row.get(column))) for column in shown)
        ]
        sys.stdout.write((" " * _STREAM_SEPARATOR_WIDTH).join(cells).rstrip() + "\n")

    print_line(names)
    for row in itertools.chain(first, stream):
        print_line(row)
    _print_left_out(columns, shown)


def print_json(value: Mapping[str, Any]) -> None:
    sys.stdout.write(json_text(value) + "\n")


def json_text(value: Mapping[str, Any]) -> str:
    """One line of JSON. It has no control characters, which a terminal would obey."""
    # `json.dump` would write token by token, in Python code.
    text = json.dumps(value, default=str, ensure_ascii=False)
    # JSON itself escapes only those below a space.
    return _LATER_CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


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


def human_size(size: float) -> Quantity:
    """12_345_678 -> '11.8 MiB'."""
    unit = _UNITS[0]
    for unit in _UNITS:
        if abs(size) < 1024 or unit == _UNITS[-1]:
            break
        size /= 1024
    return Quantity(f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}")


def dollars(amount: float) -> Quantity:
    """0.004 -> '< $0.01'."""
    return Quantity("< $0.01" if 0 < amount < 0.01 else f"${amount:,.2f}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Quantity | None)


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
