"""The interface of tables for upkeep. A topic has two: one of rows, one of dead letters.

A commit of upkeep keeps the covered offsets and the state of the dead letters. So upkeep and runs
may commit in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import pyarrow as pa

from isotherm.errors import ConfigError
from isotherm.spark.tables.parquet_files import FILE_BYTES, Place
from isotherm.types import Offset, TimestampMs

SMALL_FILE_BYTES = 128 * 1024 * 1024
"""Smaller files are merged to files of at most about FILE_BYTES."""
GROUP_FILES_MAX = 256
"""The most files that one task merges, because it fetches the footer of each."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of a table. The bounds of partitions and offsets are inclusive, and None if its writer
    gave none. Only files with the same `group`, the partition of the table, may be merged."""

    name: str
    size: int
    rows: int
    partitions: tuple[int, int] | None
    offsets: tuple[Offset, Offset] | None
    group: Hashable = None

    @property
    def first(self) -> tuple[int, Offset]:
        """A lower bound of the rows' places: partition, then offset."""
        if self.partitions is None or self.offsets is None:
            return (-1, -1)
        return self.partitions[0], self.offsets[0]


class Expired(NamedTuple):
    """The numbers of expired snapshots, and of deleted files that only they named."""

    snapshots: int
    files: int


class KeptTable(Protocol):
    """One table in the driver, in the state of its last read. Not thread-safe."""

    name: str

    @property
    def place(self) -> Place: ...

    @property
    def schema(self) -> pa.Schema:
        """The schema of new files: all columns of the table, including those that other programs
        added.
        """

    def read(self) -> None:
        """Read the current state of the table."""

    def files(self) -> list[DataFile]:
        """The files of the table. Raises ConfigError if rows were deleted without rewriting their
        files, or columns were renamed."""

    def replace(
        self,
        added: Sequence[str],
        removed: Sequence[str],
        *,
        keeps_rows: bool,
        check: Callable[[], None] | None = None,
    ) -> None:
        """Replace files in one commit. `check` is called right before each try, and may raise.
        Raises TableOvertakenError if one of the removed files is no longer in the table, or was
        changed. Nothing is committed then."""

    def expire(self, before_ms: TimestampMs) -> Expired:
        """Expire older snapshots, except the newest one, those that the next run needs, and those
        with a tag or a branch. Then delete the files that no snapshot names any more."""


def check_upkeep(option: str, table_format: str) -> None:
    """Raise ConfigError unless tables of this format have upkeep."""
    if table_format != "iceberg":
        raise ConfigError(
            f"this command maintains only Iceberg tables option={option} to={table_format}"
            " hint='--to iceberg; OPTIMIZE and VACUUM maintain a Delta table'"
        )


def plan_compaction(files: Iterable[DataFile]) -> list[list[DataFile]]:
    """Plan groups of small files to merge. The files of a group are neighbours in the order of
    partitions and offsets. Pure."""
    by_group: dict[Hashable, list[DataFile]] = {}
    for each in files:
        if each.size < SMALL_FILE_BYTES:
            by_group.setdefault(each.group, []).append(each)
    planned: list[list[DataFile]] = []
    for small in by_group.values():
        group: list[DataFile] = []
        for each in sorted(small, key=lambda file: (file.first, file.name)):
            if len(group) == GROUP_FILES_MAX or sum(f.size for f in group) >= FILE_BYTES:
                planned.append(group)
                group = []
            group.append(each)
        planned.append(group)
    return [each for each in planned if len(each) > 1]
