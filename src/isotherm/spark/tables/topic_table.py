"""The interface of a topic's table for jobs: an Iceberg table, a Delta table, or a folder of
Parquet files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from isotherm.errors import ConfigError, TableOvertakenError
from isotherm.spark.tables.debezium_values import DEBEZIUM
from isotherm.spark.tables.erasable_files import ErasableFiles
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
    """The source and settings from which a table was made. The defaults apply to older tables,
    which do not store modes and formats of keys."""

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

_OPTIONS = {
    "mode": "--mode",
    "key_format": "--key",
    "value_format": "--value",
    "unwrap": "--unwrap",
    "partition_by": "--partition-by",
}


@dataclass(frozen=True, slots=True)
class FilePlaces:
    """The places where executors put files, and the columns of files, with field ids if the table
    has these. `whole_schema` also has columns that other programs added. Each partition of
    `partition_by` has its own files."""

    rows: Place
    rows_schema: pa.Schema
    dead: Place
    dead_schema: pa.Schema
    whole_schema: pa.Schema
    partition_by: str = NO_PARTITIONS


@dataclass(frozen=True, slots=True)
class TableCommit:
    """A commit: the files that it adds, the files that it removes, and in `covered` the next offset
    of each partition after it."""

    rows: Sequence[str]
    dead: Sequence[str]
    covered: Mapping[int, Offset]
    replaced: Sequence[str] = ()


class TopicTable(Protocol):
    """A table in the driver, for one commit after the other. Not thread-safe.

    The commit is the only step that decides. It names the files of rows, those of dead letters, and
    the offsets. `settle` completes it right after that, or in the next run if this one is killed.
    """

    name: str

    def identity(self) -> Identity | None:
        """Read the table, and return its identity. None if it does not exist yet."""

    def create(self, identity: Identity) -> None:
        """Create the table. Raises TableOvertakenError if another program has created it first."""

    def covered(self) -> dict[int, Offset]:
        """The first offset of each partition that is not in the table."""

    def types(self) -> DecodedTypes: ...

    def data_files(self) -> list[str]:
        """The locations of all files of rows, as URLs without escapes. They are those that
        `identity` has read, so they match the covered offsets. Raises ConfigError if other programs
        have changed the table so that the rows of the files are not its rows."""

    def places(self, types: DecodedTypes) -> FilePlaces:
        """Add the columns of `types` that the table lacks, and return the places of files."""

    def commit(self, commit: TableCommit) -> None:
        """Commit.

        Raises TableOvertakenError if another run has committed since `identity` read the table.
        """

    def settle(self) -> None:
        """Complete the last commit, even if it is that of another run."""

    def erasable(self) -> Sequence[ErasableFiles]:
        """The files of rows and those of dead letters, for an erasure. `identity` and `settle` come
        first."""


def overtaken(
    table: str, hint: str = "nothing of this run is in it: start it again"
) -> TableOvertakenError:
    """The error of a run that another run has overtaken."""
    return TableOvertakenError(
        f"another run has written to the table meanwhile table={table} hint='{hint}'"
    )


def check_mode(mode: str, table_format: str) -> None:
    """Raise ConfigError unless tables of this format can have the mode."""
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
    """Inverse of `identity_properties`. Raises ConfigError if the properties have no identity."""
    fields = {field: properties[key] for field, key in _PROPERTIES.items() if key in properties}
    try:
        return Identity(**fields)
    except TypeError:
        raise ConfigError(
            f"the table was not made by this command table={table} hint='name another with --table'"
        ) from None


def checked_columns(columns: pa.Schema, expected: pa.Schema, table: str) -> pa.Schema:
    """The wanted columns of a table.

    Raises ConfigError if it lacks one, or has it with another type.
    """
    missing = [name for name in expected.names if name not in columns.names]
    if missing:
        raise ConfigError(
            f"the table has lost columns table={table} columns={','.join(missing)}"
            " hint='name another table with --table'"
        )
    fields = [columns.field(name) for name in expected.names]
    changed = [f.name for f, own in zip(fields, expected, strict=True) if f.type != own.type]
    if changed:
        raise ConfigError(
            "columns of the table have other types than this command gives them"
            f" table={table} columns={','.join(changed)}"
        )
    return pa.schema(fields)


def check_unwrap(unwrap: str, mode: str) -> None:
    """Raise ConfigError unless tables of this mode can be made of such events."""
    if unwrap not in UNWRAPS:
        raise ConfigError(
            f"no such events option=--unwrap value={unwrap} known={','.join(UNWRAPS)}"
        )
    if unwrap != NOTHING and mode != LATEST:
        raise ConfigError(
            f"only a table of newest values is of unwrapped events unwrap={unwrap} mode={mode}"
            " hint='--mode latest; in --mode append the whole event is the row'"
        )


def check_topic(stored: Identity, topic: str, topic_id: str, table: str) -> None:
    """Raise ConfigError unless the table is of this topic."""
    if stored.topic != topic:
        raise ConfigError(
            f"the table is of another topic table={table} its_topic={stored.topic} topic={topic}"
            " hint='name another table with --table'"
        )
    if stored.topic_id != topic_id:
        raise ConfigError(
            "the topic was deleted and made anew since the table was made, or is another cluster's"
            f" table={table} topic={topic} topic_id={topic_id} its_topic_id={stored.topic_id}"
            " hint='name another table with --table'"
        )


def check_options(stored: Identity, expected: Identity, table: str) -> None:
    """Raise ConfigError unless a run with the options of `expected` may go on with the table."""
    for name, option in _OPTIONS.items():
        before, now = getattr(stored, name), getattr(expected, name)
        if before != now:
            raise ConfigError(
                f"the table was made with another option, which it keeps table={table}"
                f" option={option} its_value={before} value={now}"
                f" hint='give {option} {before}, or name another table with --table'"
            )
