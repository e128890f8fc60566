"""The topic as a table: made by `isotherm pipeline table`, read by PyIceberg."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
from broker import BrokerProcess
from pyiceberg.catalog import load_catalog

SUMMED = ("distance", "dep_delay")


def command(broker: BrokerProcess, topic: str, lake: Path) -> list[str]:
    """The command that makes the table, with the tail that only the broker has."""
    return [
        "isotherm", "pipeline", "table", topic, "--value", "json", "--path", str(broker.bucket_dir),
        "-b", broker.bootstrap_server, "--warehouse", str(lake),
    ]  # fmt: skip


def make_table(arguments: list[str], log: Path) -> dict[str, Any]:
    """Run the command; return its JSON report. SystemExit names the log if it fails."""
    with log.open("ab") as errors:
        done = subprocess.run(
            [sys.executable, "-m", "isotherm.cli.main", *arguments[1:], "--json"],
            stdout=subprocess.PIPE,
            stderr=errors,
            check=False,
        )
    if done.returncode:
        raise SystemExit(f"the table was not made; see {log}")
    summary: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return summary


def rows_and_sums(lake: Path, table: str) -> tuple[int, dict[str, int]]:
    """Row count, and sums of SUMMED, read by PyIceberg from the table's files alone."""
    catalog = load_catalog("isotherm", type="sql", uri=f"sqlite:///{lake / 'catalog.db'}")
    rows = catalog.load_table(table).scan(selected_fields=("value",)).to_arrow()
    flights = rows.column("value").combine_chunks()
    return len(rows), {name: _sum(flights.field(name).to_pandas()) for name in SUMMED}


def sums_of_source(flights: pd.DataFrame) -> dict[str, int]:
    return {name: _sum(flights[name]) for name in SUMMED}


def _sum(column: pd.Series) -> int:
    return int(column.sum())
