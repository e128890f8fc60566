"""Makes the statistics of a file for Delta's log, by which readers skip files, from the file's
footer. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

from pyarrow import parquet

COLUMNS_MAX = 32
"""The columns of a file that get statistics. This is Delta's default."""

_MILLISECOND = timedelta(milliseconds=1)


def file_statistics(footer: parquet.FileMetaData) -> dict[str, Any]:
    """`numRecords`, the counts of nulls, and the bounds of whole numbers and times, including those
    inside structs. Bounds that the footer lacks, or that Delta cannot write, are left out."""
    statistics: dict[str, Any] = {"numRecords": footer.num_rows}
    groups = range(footer.num_row_groups)
    for index in range(min(footer.num_columns, COLUMNS_MAX) if groups else 0):
        column = footer.schema.column(index)
        # Values inside lists are not one for each row, and Delta has no statistics of them.
        if column.max_repetition_level:
            continue
        # The stubs lack attributes of these.
        parts: list[Any] = [footer.row_group(group).column(index).statistics for group in groups]
        if not all(part is not None and part.has_null_count for part in parts):
            continue
        path = column.path.split(".")
        _put(statistics, ["nullCount", *path], sum(part.null_count for part in parts))
        bounds = _bounds([part for part in parts if part.num_values])
        if bounds is not None:
            _put(statistics, ["minValues", *path], bounds[0])
            _put(statistics, ["maxValues", *path], bounds[1])
    return statistics


def _bounds(parts: Sequence[Any]) -> tuple[Any, Any] | None:
    if not parts or not all(part.has_min_max for part in parts):
        return None
    try:
        smallest = min(part.min for part in parts)
        largest = max(part.max for part in parts)
        for kind, writes in _WRITERS.items():
            if type(smallest) is kind:
                return writes(smallest, False), writes(largest, True)
    except (OverflowError, ValueError):
        # The bound is a time outside Python's range.
        return None
    return None


def _time(value: datetime, is_upper: bool) -> str:
    """The text of a time in milliseconds, as in Delta's own writer: rounded down, or up for an
    upper bound.
    """
    rest = timedelta(microseconds=value.microsecond % 1000)
    value = value - rest + (_MILLISECOND if is_upper and rest else timedelta())
    if value.tzinfo is None:
        return value.isoformat(timespec="milliseconds")
    return value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


# There are no bounds for float, because a footer leaves out NaN, which is the largest value for
# Spark. The exact type counts: bool is a subclass of int, but has no bounds in Delta, and datetime
# one of date.
_WRITERS: dict[type, Callable[[Any, bool], Any]] = {
    int: lambda value, is_upper: value,
    datetime: _time,
    date: lambda value, is_upper: value.isoformat(),
}


def _put(target: dict[str, Any], path: Sequence[str], value: object) -> None:
    for name in path[:-1]:
        target = target.setdefault(name, {})
    target[path[-1]] = value
