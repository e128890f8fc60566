"""A table that `isotherm pipeline table` made, as a listing shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from isotherm.spark.tables.topic_table import Identity
from isotherm.types import Offset, TimestampMs

TABLES_MAX = 200
"""The most tables of a catalog or folder that are looked at, those of dead letters included."""


@dataclass(frozen=True, slots=True)
class ListedTable:
    """A table of a topic. `snapshots` are the versions of a Delta table. `rows`, `snapshots` and
    `dead_letters` are None if nothing counts them: some engines leave out the counts in a snapshot,
    and a folder of Parquet files has none. `covered` has the first offset of each partition that is
    not in it."""

    table_format: str
    name: str
    identity: Identity
    rows: int | None
    snapshots: int | None
    last_commit_ms: TimestampMs | None
    covered: Mapping[int, Offset]
    dead_letters: int | None
