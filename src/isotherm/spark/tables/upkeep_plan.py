"""The upkeep of a topic's tables, apart from their format: the files, and which are merged.

A commit of upkeep keeps the covered offsets and the state of the dead letters. So upkeep and runs
may commit in any order.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from isotherm.errors import ConfigError
from isotherm.spark.tables.parquet_files import FILE_BYTES
from isotherm.types import Offset

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
    for data_file in files:
        if data_file.size < SMALL_FILE_BYTES:
            by_group.setdefault(data_file.group, []).append(data_file)
    planned: list[list[DataFile]] = []
    for small in by_group.values():
        group: list[DataFile] = []
        for data_file in sorted(small, key=lambda file: (file.first, file.name)):
            if len(group) == GROUP_FILES_MAX or sum(f.size for f in group) >= FILE_BYTES:
                planned.append(group)
                group = []
            group.append(data_file)
        planned.append(group)
    return [group for group in planned if len(group) > 1]
