"""What upkeep needs of the tables that a topic has become: one of rows, one of dead letters.

Its commits keep the rows' offsets and the state of the dead letters. So they may come between those
of runs, and runs between them.
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
"""Smaller files are written again, together, as files of at most about FILE_BYTES."""
GROUP_FILES_MAX = 256
"""Files that one task writes again: it asks for the footer of each."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of a table. The bounds of partitions and offsets, both ends included, are None if
    its maker has told none. Only files of one `group` may become one: the table's own partition."""

    name: str
    size: int
    rows: int
    partitions: tuple[int, int] | None
    offsets: tuple[Offset, Offset] | None
    group: Hashable = None

    @property
    def first(self) -> tuple[int, Offset]:
        """No row has a lower partition, or the same and a lower offset."""
        if self.partitions is None or self.offsets is None:
            return (-1, -1)
        return self.partitions[0], self.offsets[0]


class Expired(NamedTuple):
    """Snapshots that are gone, and the files that only they named."""

    snapshots: int
    files: int


class KeptTable(Protocol):
    """One table on the driver, as it was read last. Not thread-safe."""

    name: str

    @property
    def place(self) -> Place: ...

    @property
    def schema(self) -> pa.Schema:
        """Of new files: all columns of the table, also those of others."""

    def read(self) -> None:
        """Read the table anew."""

    def files(self) -> list[DataFile]:
        """ConfigError if rows were deleted without rewriting their files, or columns renamed."""

    def replace(
        self,
        added: Sequence[str],
        removed: Sequence[str],
        *,
        keeps_rows: bool,
        check: Callable[[], None] | None = None,
    ) -> None:
        """One commit. `check` is called right before each try of it, and may raise. TableOvertakenError if one of the removed files is not in the table any more,
        or not as it was: then nothing is committed."""

    def expire(self, before_ms: TimestampMs) -> Expired:
        """Let go of snapshots that are older, but for the newest one, those that the next run needs,
        and those that others have named. Then delete the files that no snapshot names any more."""


def check_upkeep(option: str, table_format: str) -> None:
    """Raises ConfigError unless tables of this format can be kept."""
    if table_format != "iceberg":
        raise ConfigError(
            f"only an Iceberg table is kept by this command option={option} to={table_format}"
            " hint='--to iceberg; a Delta table is kept by OPTIMIZE and VACUUM'"
        )


def plan_compaction(files: Iterable[DataFile]) -> list[list[DataFile]]:
    """Small files that become one, or a few: neighbours in the order of partitions and offsets.
    Pure."""
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
