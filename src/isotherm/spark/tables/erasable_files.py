"""The files of a table from which an erasure deletes rows, whatever the table's format.

A topic has two of these: one of rows, one of dead letters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from isotherm.spark.tables.parquet_files import Place


class ErasableFiles(Protocol):
    """Files of rows in the driver. No run of `isotherm pipeline table` may be in progress. Not
    thread-safe.

    `place` opens a file, and takes new ones. `schema` is that of new files. Without one a file is
    written over itself, with its own schema, and `replace` has nothing to do.
    """

    name: str

    @property
    def place(self) -> Place: ...

    @property
    def schema(self) -> pa.Schema | None: ...

    def read(self) -> None:
        """Read the newest state."""

    def files(self) -> list[str]:
        """The files of the newest state. Raises ConfigError if rows of a file were deleted without
        rewriting it."""

    def replace(self, added: Sequence[str], removed: Sequence[str]) -> None:
        """Replace files in one commit, and then expire all older states, as far as nothing else
        names them (a tag, a branch).

        Raises TableOvertakenError if another program has changed the table.
        """

    def older(self) -> list[str]:
        """The files of older states that are still there, and that may not be deleted."""

    def unnamed(self) -> list[str]:
        """The files in the table's folder that no state names any more, or never did."""
