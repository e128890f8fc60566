"""The files of an Iceberg table, for an erasure.

A snapshot that removes files names them in its manifests, with bounds of their columns. So an empty
snapshot follows it, which does not, and all older ones expire.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
from pyarrow import fs
from pyiceberg.io.pyarrow import PyArrowFileIO

from isotherm.errors import ConfigError
from isotherm.spark.tables.iceberg_snapshots import translated
from isotherm.spark.tables.iceberg_upkeep import IcebergKept
from isotherm.spark.tables.parquet_files import Place

_EVERY_MS = 2**62
_SUFFIX = ".parquet"


class IcebergErasure:
    """`ErasableFiles` over Iceberg. `commit` adds and removes files in one snapshot, from which the
    next run can go on."""

    def __init__(
        self, kept: IcebergKept, commit: Callable[[Sequence[str], Sequence[str]], None]
    ) -> None:
        self.name = kept.name
        self._kept = kept
        self._commit = commit

    @property
    def place(self) -> Place:
        return self._kept.place

    @property
    def schema(self) -> pa.Schema | None:
        return self._kept.schema

    def read(self) -> None:
        self._kept.read()

    def files(self) -> list[str]:
        return [file.name for file in self._kept.files()]

    def replace(self, added: Sequence[str], removed: Sequence[str]) -> None:
        if removed:
            self._commit(added, removed)
        self._commit((), ())
        self._kept.read()
        self._kept.expire(_EVERY_MS)

    def older(self) -> list[str]:
        return sorted(self._named() - set(self.files()))

    def unnamed(self) -> list[str]:
        named = self._named()
        return [file for file in self._listed() if file not in named]

    def _named(self) -> set[str]:
        with translated("the table cannot be read"):
            return {file for file in self._kept.named_files() if file.endswith(_SUFFIX)}

    def _listed(self) -> list[str]:
        io, folder = self._kept.data_folder()
        if not isinstance(io, PyArrowFileIO):
            raise ConfigError(
                "the files of the table cannot be listed, and some that no snapshot names may have"
                f" erased rows table={self.name} io={type(io).__name__}"
                " hint='the property py-io-impl of the catalog: PyArrowFileIO'"
            )
        with translated("the table's folder cannot be listed"):
            scheme, netloc, path = PyArrowFileIO.parse_location(folder, io.properties)
            files = io.fs_by_scheme(scheme, netloc).get_file_info(
                fs.FileSelector(path, recursive=True, allow_not_found=True)
            )
        # The store has names without the scheme, the table has them with it.
        return sorted(
            f"{folder}{info.path.removeprefix(path)}"
            for info in files
            if info.is_file and info.path.endswith(_SUFFIX)
        )
