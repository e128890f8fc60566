"""The files of an Iceberg table: where they lie, their columns, and whether names find them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import types
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.table import Table

from isotherm.errors import ConfigError, RemoteStorageError

_map: Any = pa.map_  # the stubs do not know fields


@dataclass(frozen=True)
class IcebergPlace:
    """The data folder of an Iceberg table."""

    io: FileIO
    folder: str

    def put(self, name: str, path: Path) -> str:
        """Put a file. Raises RemoteStorageError if the store fails. The partial file is then
        deleted, unless that fails too."""
        location = f"{self.folder}/{name}"
        try:
            with path.open("rb") as source, self.io.new_output(location).create() as target:
                shutil.copyfileobj(source, target)
        except OSError as error:
            with suppress(OSError):
                self.io.delete(location)
            raise RemoteStorageError(
                f"a file of the table cannot be written file={location}"
                f" size={path.stat().st_size} reason={error.strerror or str(error)!r}"
            ) from error
        return location

    def open(self, name: str) -> Any:
        return self.io.new_input(name).open()

    def delete(self, files: Sequence[str]) -> None:
        for file in files:
            self.io.delete(file)


def place_of(table: Table) -> IcebergPlace:
    return IcebergPlace(table.io, table.location_provider().new_data_location("")[:-1])


def arrow_columns(table: Table) -> pa.Schema:
    """The table's columns as Arrow types, not the large ones, with field ids."""
    return pa.schema([f.with_type(_small(f.type)) for f in schema_to_pyarrow(table.schema())])


def check_column_names(table: Table, name: str) -> None:
    """Raise ConfigError if a column was renamed. Spark finds columns in files by name, Iceberg by
    field id, so older files would have it under another name."""
    ids: dict[str, int] = {}
    names: dict[int, str] = {}
    for schema in table.metadata.schemas:
        for column in schema.column_names:
            field_id = schema.find_field(column).field_id
            if (
                ids.setdefault(column, field_id) != field_id
                or names.setdefault(field_id, column) != column
            ):
                raise ConfigError(
                    f"a column of the table was renamed or made anew table={name} column={column}"
                    " hint='read it by an engine that knows Iceberg, or make the table anew, under"
                    " another name with --table'"
                )


def _small(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.StructType):
        return pa.struct([field.with_type(_small(field.type)) for field in kind])
    if isinstance(kind, pa.ListType | pa.LargeListType):
        return pa.list_(kind.value_field.with_type(_small(kind.value_type)))
    if isinstance(kind, pa.MapType):
        inner = (kind.key_field, kind.item_field)
        small: pa.DataType = _map(*(field.with_type(_small(field.type)) for field in inner))
        return small
    if types.is_large_string(kind):
        return pa.string()
    return pa.binary() if types.is_large_binary(kind) else kind
