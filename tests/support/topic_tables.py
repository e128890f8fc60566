"""Runs `isotherm pipeline table`, and reads the table by PyIceberg as a consumer's records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table
from typer.testing import CliRunner

from isotherm.cli.main import app

Row = dict[str, Any]


def run_table(topic: str, path: Path | str, *options: str) -> Row:
    """Run the command; return its JSON. Raises its errors."""
    place = str(path)
    arguments = ["pipeline", "table", topic, "--path", place, "--json", *options]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    row: Row = json.loads(result.stdout.splitlines()[-1])
    return row


def follow_table(topic: str, path: Path | str, *options: str) -> list[Row]:
    """Run the command with `--follow` until a signal ends it; return the JSON of each run.

    Raises its errors.
    """
    arguments = ["pipeline", "table", topic, "--path", str(path), "--json", "--follow", *options]
    result = CliRunner().invoke(app, [*arguments, "--interval", "0"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def load_table(warehouse: Path, name: str) -> Table:
    """Open the table from its files alone, as another program would."""
    uri = f"sqlite:///{warehouse / 'catalog.db'}"
    return load_catalog("isotherm", type="sql", uri=uri).load_table(name)


def rows_of(table: Table) -> list[Row]:
    """The rows of the table, by partition, then offset."""
    rows: list[Row] = table.scan().to_arrow().to_pylist()
    return sorted(rows, key=lambda row: (row["partition"], row["offset"]))


def records_of(rows: list[Row]) -> list[tuple[object, ...]]:
    """Rows of raw values, as the fields of oracle.consumed_records.ConsumedRecord."""
    return [
        (
            row["partition"],
            row["offset"],
            round(row["timestamp"].timestamp() * 1000),
            row["key"],
            row["value"],
            tuple((header["key"], header["value"]) for header in row["headers"] or ()),
        )
        for row in rows
    ]
