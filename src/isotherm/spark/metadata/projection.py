"""Stores the projection of a metadata topic: its live segments, as Parquet files in a folder or
bucket.

    projection.json                      version, and identity of the topic
    segments/<partition>/<offset>.parquet    the live segments of a metadata partition
                                         (segment_fold.SEGMENTS), after all records before that
                                         offset

The newest file of a metadata partition is its state. Older files are removed only after a newer one
is stored, so an interrupted run leaves nothing to undo. A file's footer contains the rest of the
fold's state. An object appears whole or not at all, so a reader always sees a complete state of
each partition.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from isotherm.errors import (
    ConfigError,
    CorruptObjectError,
    RemoteResourceNotFoundError,
    UnknownObjectVersionError,
)
from isotherm.remote.metadata.folding.segment_fold import SEGMENTS, FoldState, OtherKey
from isotherm.remote.storage.inventory import open_for_reading
from isotherm.remote.storage.object_client import ObjectClient, open_object_store
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.metadata.remote_metadata_log import LogIdentity
from isotherm.types import Offset

VERSION = 1
_HEAD = "projection.json"
_FILE = re.compile(r"segments/(\d+)/(\d{20})\.parquet")
_OBJECT_SIZE_MAX = 2**31 - 1
_FOOTER = b"isotherm.fold"
REPLACED_FILES_MAX = 10
"""Files of one metadata partition, each replaced by a run before it was read. A run removes only
files that are older than the one that it has stored, so one is usual."""


@dataclass(frozen=True, slots=True)
class ProjectedPartition:
    """The newest file of a metadata partition, and the older ones that a run may remove."""

    number: int
    next_offset: Offset
    key: str
    outdated: tuple[str, ...] = ()


class Projection:
    """A projection in its store. Not thread-safe: each task creates its own."""

    def __init__(self, settings: ObjectStoreSettings, *, create: bool = False) -> None:
        """Raises ConfigError if a local folder is missing and must not be created."""
        self._settings = settings
        self._client = (
            ObjectClient(settings, open_object_store(settings, create_folder=True))
            if create
            else open_for_reading(settings)
        )

    def identity(self) -> LogIdentity | None:
        """The identity of the topic, or None if there is no projection yet. Raises
        UnknownObjectVersionError for another version, CorruptObjectError for a damaged projection.
        """
        try:
            head = json.loads(self._client.get(_HEAD, 1 << 20))
            if head["version"] != VERSION:
                raise UnknownObjectVersionError(
                    f"projection is of another version url={self._settings.url}"
                    f" version={head['version']} known={VERSION}"
                )
            return LogIdentity(**head["source"])
        except RemoteResourceNotFoundError:
            return None
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise CorruptObjectError(
                f"projection cannot be read url={self._settings.url} object={_HEAD}"
            ) from error

    def begin(self, source: LogIdentity) -> None:
        """Create the projection of `source`, unless it exists. Raises ConfigError if the place has
        a projection of another topic, or other objects."""
        if self.identity() is None:
            if any(self._client.list_objects("")):
                raise ConfigError(
                    f"the place is in use and holds no projection url={self._settings.url}"
                )
            # Stored before any state: after a crash the next run finds no foreign objects here.
            head = {"version": VERSION, "source": asdict(source)}
            self._client.put(_HEAD, json.dumps(head, indent=1).encode())
        self.check(source)

    def check(self, source: LogIdentity) -> None:
        """Raise ConfigError unless this is the projection of `source`."""
        projected = self.identity()
        if projected is None:
            raise ConfigError(f"there is no projection url={self._settings.url}")
        if projected.contradicts(source):
            raise ConfigError(
                "the projection is of another topic: give another place, or name its cluster"
                f" url={self._settings.url} projection={_text_of(projected)}"
                f" given={_text_of(source)}"
            )

    def partitions(self) -> dict[int, ProjectedPartition]:
        files_of: dict[int, list[tuple[Offset, str]]] = {}
        for stored in self._client.list_objects("segments/"):
            matched = _FILE.fullmatch(stored.key)
            if matched:
                files_of.setdefault(int(matched[1]), []).append((int(matched[2]), stored.key))
        partitions = {}
        for number, files in sorted(files_of.items()):
            files.sort()
            next_offset, key = files[-1]
            outdated = tuple(other for _, other in files[:-1])
            partitions[number] = ProjectedPartition(number, next_offset, key, outdated)
        return partitions

    def read(self, partition: ProjectedPartition) -> FoldState:
        """The state in the newest file. Raises CorruptObjectError for a damaged file."""
        with self._translated(partition.key):
            return _state_of(self._table(partition.key))

    def segments(self, partition: ProjectedPartition, **options: Any) -> pa.Table:
        """The rows of the newest file; `options` go to pyarrow.parquet.read_table."""
        with self._translated(partition.key):
            return self._table(partition.key, **options)

    def write(self, number: int, next_offset: Offset, state: FoldState) -> str:
        """Store the state of a metadata partition before `next_offset`; returns the object's
        key."""
        key = f"segments/{number}/{next_offset:020d}.parquet"
        buffer = pa.BufferOutputStream()
        extra = {"other_keys": list(state.other_keys), "deletions": _texts(state.deletions)}
        table = state.segments.replace_schema_metadata({_FOOTER: json.dumps(extra).encode()})
        pq.write_table(table, buffer, compression="zstd")
        self._client.put(key, buffer.getvalue().to_pybytes())
        return key

    def remove(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._client.delete(key)

    def _table(self, key: str, **options: Any) -> pa.Table:
        return pq.read_table(pa.BufferReader(self._client.get(key, _OBJECT_SIZE_MAX)), **options)

    @contextmanager
    def _translated(self, key: str) -> Iterator[None]:
        try:
            yield
        except (
            pa.ArrowException,
            ValueError,
            KeyError,
            TypeError,
            OverflowError,
            RecursionError,
        ) as error:
            raise CorruptObjectError(
                f"projection cannot be read url={self._settings.url} object={key}"
            ) from error


def read_segments(
    settings: ObjectStoreSettings, selects: Callable[[int], bool] = lambda _: True, **options: Any
) -> Iterator[pa.Table]:
    """The rows of a projection, one table for each metadata partition.

    Raises ConfigError if there is no projection. If a run replaces a file before it is read, the
    new file is read. Raises RemoteResourceNotFoundError if a file is gone and there is no newer
    one, or after REPLACED_FILES_MAX such files.
    """
    projection = Projection(settings)
    if projection.identity() is None:
        raise ConfigError(f"there is no projection url={settings.url}")
    for partition in projection.partitions().values():
        if selects(partition.number):
            yield _newest_segments(projection, partition, options)


def _newest_segments(
    projection: Projection, listed: ProjectedPartition, options: Mapping[str, Any]
) -> pa.Table:
    for _ in range(REPLACED_FILES_MAX):
        try:
            return projection.segments(listed, **options)
        except RemoteResourceNotFoundError:
            newest = projection.partitions().get(listed.number)
            # Without a newer file the listed one was not replaced. It is lost.
            if newest is None or newest.next_offset <= listed.next_offset:
                raise
            listed = newest
    return projection.segments(listed, **options)


def _state_of(table: pa.Table) -> FoldState:
    extra = json.loads((table.schema.metadata or {})[_FOOTER])
    return FoldState(
        table.select(SEGMENTS.names).cast(SEGMENTS),
        [OtherKey(*key) for key in extra["other_keys"]],
        [base64.b64decode(text) for text in extra["deletions"]],
    )


def _texts(values: Any) -> list[str]:
    return [base64.b64encode(value).decode() for value in values]


def _text_of(identity: LogIdentity) -> str:
    return f"{identity.topic}@{identity.cluster_id or 'unknown'}/{identity.topic_id or 'unknown'}"
