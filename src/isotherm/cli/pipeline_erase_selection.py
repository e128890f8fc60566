"""The options of `isotherm pipeline erase` that select records."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from isotherm.cli.options import Registry, RegistryOption, parse_pairs
from isotherm.cli.point_in_time import time_ms

if TYPE_CHECKING:
    from isotherm.spark.jobs.erase_selection import Selector

_PARTITION_MAX = 1_000_000

Keys = Annotated[
    Path | None,
    typer.Option(
        "--keys",
        metavar="FILE",
        help="Erase the records with these keys: a text file with a key on each line, CSV with a"
        " column key, JSON lines with a member key, or Parquet with a column key.",
    ),
]


KeysFormat = Annotated[
    str | None,
    typer.Option(
        help="text, csv, json or parquet. Without it the name's suffix decides.",
    ),
]


KeyEncoding = Annotated[
    str, typer.Option(help="How a key is written in the file: text, hex or base64.")
]


Where = Annotated[
    str | None,
    typer.Option(
        metavar="SQL",
        help="Erase the records for which this is true: Spark's SQL over key, value, headers,"
        " timestamp, partition and offset.",
    ),
]


Value = Annotated[
    str,
    typer.Option(
        "--value",
        metavar="FORMAT",
        help="What `value` is in --where: raw, unchanged bytes; string, UTF-8; json, objects, as in"
        " value.user.id = 42; avro, protobuf or json-schema, after the id of a schema in"
        " --registry.",
    ),
]


Partitions = Annotated[
    str | None, typer.Option(metavar="N,N", help="Only in these partitions: 0,3,5-7.")
]


From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="OFFSET|TIME",
        help="Only from this offset on, or from this time on (2026-01-31T12:00, UTC).",
    ),
]


Until = Annotated[
    str | None,
    typer.Option(metavar="OFFSET|TIME", help="Only below this offset, or before this time."),
]


@dataclass(frozen=True, slots=True)
class SelectedRecords:
    """The records to erase. All that is given applies."""

    keys: Keys = None
    keys_format: KeysFormat = None
    key_encoding: KeyEncoding = "text"
    where: Where = None
    value: Value = "raw"
    registry: Registry = None
    registry_option: RegistryOption = None
    partitions: Partitions = None
    from_: From = None
    until: Until = None


def selector_of(selected: SelectedRecords) -> Selector:
    from isotherm.spark.jobs.erase_keys import KEY_ENCODINGS, KEY_FORMATS, read_keys
    from isotherm.spark.jobs.erase_selection import Selector
    from isotherm.spark.tables.schema_registry import registry_settings
    from isotherm.spark.tables.value_formats import RAW, formats

    if selected.keys is None and selected.where is None:
        raise typer.BadParameter(
            "name the records with --keys or --where", param_hint="--keys / --where"
        )
    if selected.keys_format not in (None, *KEY_FORMATS):
        raise typer.BadParameter(f"one of {', '.join(KEY_FORMATS)}", param_hint="--keys-format")
    if selected.key_encoding not in KEY_ENCODINGS:
        raise typer.BadParameter(f"one of {', '.join(KEY_ENCODINGS)}", param_hint="--key-encoding")
    registered = registry_settings(selected.registry, parse_pairs(selected.registry_option))
    value_format = formats(RAW, selected.value, registered).value
    if selected.where is None and value_format.name != RAW:
        raise typer.BadParameter("it is for --where", param_hint="--value")
    keys = None
    if selected.keys is not None:
        keys = read_keys(selected.keys, selected.keys_format, selected.key_encoding)
    start_offset, start_ms = _place(selected.from_)
    end_offset, end_ms = _place(selected.until)
    if _is_behind(start_offset, end_offset) or _is_behind(start_ms, end_ms):
        raise typer.BadParameter("no record is between them", param_hint="--from / --until")
    return Selector(
        keys=keys,
        where=selected.where,
        partitions=_numbers(selected.partitions),
        start_offset=start_offset,
        end_offset=end_offset,
        start_ms=start_ms,
        end_ms=end_ms,
        value_format=value_format,
    )


def _place(text: str | None) -> tuple[int | None, int | None]:
    """An offset, or a time in milliseconds."""
    if text is None:
        return None, None
    if text.isascii() and text.isdigit():
        return int(text), None
    return None, time_ms(text)


def _is_behind(start: int | None, end: int | None) -> bool:
    return start is not None and end is not None and start >= end


def _numbers(text: str | None) -> frozenset[int] | None:
    if text is None:
        return None
    numbers: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.partition("-")
        last = last if dash else first
        is_range = first.isascii() and first.isdigit() and last.isascii() and last.isdigit()
        if not is_range or not int(first) <= int(last) <= _PARTITION_MAX:
            raise typer.BadParameter(f"numbers such as 0,3,5-7: {text}", param_hint="--partitions")
        numbers |= set(range(int(first), int(last) + 1))
    return frozenset(numbers)
