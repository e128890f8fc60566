"""What a job needs of a table that a topic becomes: Iceberg's, Delta's, or a folder of Parquet files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from isotherm.errors import ConfigError
from isotherm.spark.tables.debezium_values import DEBEZIUM
from isotherm.spark.tables.parquet_files import Place
from isotherm.spark.tables.time_partitions import NO_PARTITIONS
from isotherm.spark.tables.value_types import DecodedTypes
from isotherm.types import Offset

APPEND, LATEST = "append", "latest"
NOTHING = "none"
UNWRAPS = (NOTHING, DEBEZIUM)
MODES = (APPEND, LATEST)
DEAD_LETTERS_SUFFIX = "_dead_letters"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a table was made from. The defaults are those of tables that do not name them: older than modes
    and formats of keys."""

    topic: str
    topic_id: str
    value_format: str
    key_format: str = "raw"
    mode: str = APPEND
    unwrap: str = NOTHING
    partition_by: str = NO_PARTITIONS


_PROPERTIES = {
    "topic": "isotherm.topic",
    "topic_id": "isotherm.topic-id",
    "mode": "isotherm.mode",
    "key_format": "isotherm.key-format",
    "value_format": "isotherm.value-format",
    "unwrap": "isotherm.unwrap",
    "partition_by": "isotherm.partition-by",
}


@dataclass(frozen=True, slots=True)
class FilePlaces:
    """Where executors put files, and the columns of these, with field ids if the table has such. The
    `whole_schema` is with columns of others in the table. Rows of each partition are in files of their own."""

    rows: Place
    rows_schema: pa.Schema
    dead: Place
    dead_schema: pa.Schema
    whole_schema: pa.Schema
    partition_by: str = NO_PARTITIONS


@dataclass(frozen=True, slots=True)
class TableCommit:
    """Files that become visible together, as those are gone that they replace; `covered` are the next
    offsets by partition, after it."""

    rows: Sequence[str]
    dead: Sequence[str]
    covered: Mapping[int, Offset]
    replaced: Sequence[str] = ()


class TopicTable(Protocol):
    """A table on the driver. One commit after the other; not thread-safe.

    The commit is the one step that counts: with the files of rows it names those of dead letters,
    and the offsets. What follows from it is done by `settle`, at once, or by the next run if this
    one is killed.
    """

    name: str

    def identity(self) -> Identity | None:
        """None for a table that does not exist yet."""

    def create(self, identity: Identity) -> None:
        """TableOvertakenError if it was made meanwhile."""

    def covered(self) -> dict[int, Offset]:
        """The first offset of each partition that is not in the table."""

    def types(self) -> DecodedTypes: ...

    def data_files(self) -> list[str]:
        """The locations of all files of rows, URLs in which nothing is escaped, as `identity` found the table: no more than its offsets
        cover. ConfigError if others have made their rows something else than the table's."""

    def places(self, types: DecodedTypes) -> FilePlaces:
        """The places of files, once the table has all columns of these types."""

    def commit(self, commit: TableCommit) -> None:
        """TableOvertakenError if another run has committed since `covered` was asked."""

    def settle(self) -> None:
        """Finish what the last commit of any run has begun."""


def check_mode(mode: str, table_format: str) -> None:
    """Raises ConfigError unless tables of this format can have the mode."""
    if mode not in MODES:
        raise ConfigError(f"no such mode option=--mode value={mode} known={','.join(MODES)}")
    if mode == LATEST and table_format == "parquet":
        raise ConfigError(
            f"a folder cannot have newest values mode={mode} to={table_format}"
            " hint='--to iceberg, or --to delta'"
        )


def identity_properties(identity: Identity) -> dict[str, str]:
    """The identity as properties of a table."""
    return {key: getattr(identity, field) for field, key in _PROPERTIES.items()}


def stored_identity(properties: Mapping[str, str], table: str) -> Identity:
    """That of `identity_properties`; ConfigError if there is none."""
    found = {field: properties[key] for field, key in _PROPERTIES.items() if key in properties}
    try:
        return Identity(**found)
    except TypeError as error:
        raise ConfigError(
            f"the table was not made by this command table={table} hint='name another with --table'"
        ) from error


def checked_columns(columns: pa.Schema, wanted: pa.Schema, table: str) -> pa.Schema:
    """Those of a table's columns that are wanted. ConfigError if it lacks one, or has it with another
    type."""
    missing = [name for name in wanted.names if name not in columns.names]
    if missing:
        raise ConfigError(
            f"the table has lost columns table={table} columns={','.join(missing)}"
            " hint='name another table with --table'"
        )
    fields = [columns.field(name) for name in wanted.names]
    changed = [f.name for f, own in zip(fields, wanted, strict=True) if f.type != own.type]
    if changed:
        raise ConfigError(
            "columns of the table have other types than this command gives them"
            f" table={table} columns={','.join(changed)}"
        )
    return pa.schema(fields)


def check_unwrap(unwrap: str, mode: str) -> None:
    """Raises ConfigError unless tables of this mode can be made of such events."""
    if unwrap not in UNWRAPS:
        raise ConfigError(
            f"no such events option=--unwrap value={unwrap} known={','.join(UNWRAPS)}"
        )
    if unwrap != NOTHING and mode != LATEST:
        raise ConfigError(
            f"only a table of newest values is of unwrapped events unwrap={unwrap} mode={mode}"
            " hint='--mode latest; in --mode append the whole event is the row'"
        )


def check_identity(found: Identity, wanted: Identity, table: str) -> None:
    """Raises ConfigError unless a run with `wanted` may go on with the table."""
    names = ("topic", "topic_id", "mode", "key_format", "value_format", "unwrap", "partition_by")
    for name in names:
        if getattr(found, name) != getattr(wanted, name):
            raise ConfigError(
                f"the table was made from something else table={table} {name}={getattr(found, name)}"
                f" wanted={getattr(wanted, name)} hint='name another table with --table'"
            )
