"""Maintains a topic's tables between two runs. It deletes rows that Kafka has deleted, merges small
files, and expires old snapshots.

Each step reads the table, decides, and commits. If another program has replaced the same files or
deleted rows in between, the commit fails and the table stays as it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from isotherm.clock import Clock
from isotherm.errors import TableOvertakenError
from isotherm.spark.jobs.merged_files import merge_files
from isotherm.spark.jobs.table_retention import LogStarts, delete_below
from isotherm.spark.tables.table_upkeep import KeptTable, plan_compaction

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OpenSpark = Callable[[], "SparkSession"]


@dataclass(frozen=True, slots=True)
class UpkeepSettings:
    """Snapshots older than `expire_ms` expire; with None, none do. Rows below the `log_starts` are
    deleted; with None, they stay."""

    compacts: bool = False
    expire_ms: int | None = None
    log_starts: Callable[[], LogStarts] | None = None

    @property
    def has_any(self) -> bool:
        return self.compacts or self.expire_ms is not None or self.log_starts is not None


@dataclass(frozen=True, slots=True)
class UpkeepDone:
    """The counts of the table and its dead letters together. `merged_files` became `new_files`."""

    deleted_rows: int = 0
    merged_files: int = 0
    new_files: int = 0
    expired_snapshots: int = 0
    deleted_files: int = 0

    def __add__(self, other: UpkeepDone) -> UpkeepDone:
        return UpkeepDone(
            self.deleted_rows + other.deleted_rows,
            self.merged_files + other.merged_files,
            self.new_files + other.new_files,
            self.expired_snapshots + other.expired_snapshots,
            self.deleted_files + other.deleted_files,
        )


def keep_tables(
    tables: Sequence[KeptTable],
    settings: UpkeepSettings,
    open_spark: OpenSpark,
    run: str,
    clock: Clock,
    show_step: Callable[[str], None],
) -> UpkeepDone:
    """Maintain the tables as `settings` say. `run` is part of the names of files, so it must be
    unique. Spark is opened only if files are written.

    Raises TableOvertakenError if another program changed a table. Earlier commits stay.
    """
    done = UpkeepDone()
    for number, table in enumerate(tables):
        table.read()
        if settings.log_starts is not None:
            show_step("deleting rows below the log start")
            deleted = delete_below(table, settings.log_starts, open_spark, f"{run}-kept-{number}")
            done += UpkeepDone(deleted_rows=deleted)
        if settings.compacts:
            show_step("merging small files")
            done += compact(table, open_spark, f"{run}-merged-{number}")
        if settings.expire_ms is not None:
            show_step("expiring snapshots")
            expired = table.expire(clock.now_ms() - settings.expire_ms)
            done += UpkeepDone(expired_snapshots=expired.snapshots, deleted_files=expired.files)
    return done


def compact(table: KeptTable, open_spark: OpenSpark, name: str) -> UpkeepDone:
    """Replace small files by larger ones with the same rows, in one commit. There is no commit if
    no two files may be merged."""
    groups = plan_compaction(table.files())
    if not groups:
        return UpkeepDone()
    place = table.place
    made = [
        each for put in merge_files(open_spark(), groups, place, table.schema, name) for each in put
    ]
    old = [file for group in groups for file in group]
    added = [each.name for each in made]
    # A merge that loses rows must not be committed.
    assert sum(each.rows for each in made) == sum(each.rows for each in old)
    try:
        table.replace(added, [each.name for each in old], keeps_rows=True)
    # After no other error: the commit may have been made all the same.
    except TableOvertakenError:
        place.delete(added)
        raise
    return UpkeepDone(merged_files=len(old), new_files=len(made))
