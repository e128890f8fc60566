"""Keeps a topic as a folder of Parquet files, with a log of commits beside them.

    <table>/<file>.parquet                the rows, below folders if the table has partitions
    <table>/_commits/<number>.json        the files that commit `number` added, and the offsets
                                          after it
    <table>/_staged/<file>.parquet        files that readers should not see yet
    <table>_dead_letters/<file>.parquet   the dead letters

Readers of Parquet ignore names that begin with an underscore. A commit is the creation of its
object, at which only one of several runs succeeds. Then its files are moved to where readers see
them. If a run is killed in between, the next one moves them.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from isotherm.errors import (
    ConfigError,
    CorruptMetadataError,
    RemoteResourceNotFoundError,
)
from isotherm.remote.storage.object_client import ObjectClient, StoredObject
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.tables.dead_letters import DeadLetterReading, DeadLetters
from isotherm.spark.tables.erasable_files import ErasableFiles
from isotherm.spark.tables.folder_place import (
    FolderPlace,
    OpenedPlace,
    check_unused,
    is_made,
    plain_url,
    store_client,
)
from isotherm.spark.tables.listed_table import ListedTable
from isotherm.spark.tables.table_rows import dead_schema, rows_schema
from isotherm.spark.tables.topic_table import (
    DEAD_LETTERS_SUFFIX,
    FilePlaces,
    Identity,
    TableCommit,
    overtaken,
)
from isotherm.spark.tables.value_formats import first_types
from isotherm.spark.tables.value_types import DecodedTypes, KeyValue, decoded_types
from isotherm.types import Offset

_COMMIT_SIZE_MAX = 256 * 1024 * 1024
_COMMIT_THREADS = 16
_OWN_FOLDERS = ("_commits", "_staged")


class ParquetTable:
    """`TopicTable` over a folder of Parquet files."""

    def __init__(self, settings: ObjectStoreSettings, name: str) -> None:
        self.name = name
        self._settings = settings
        self._forget()

    @cached_property
    def _client(self) -> ObjectClient:
        """Makes a local folder."""
        return store_client(self._settings)

    def _forget(self) -> None:
        self._identity: Identity | None = None
        self._types: DecodedTypes = KeyValue(None, None)
        self._last: dict[str, Any] = {}
        self._number = 0

    def identity(self) -> Identity | None:
        # Numbers have 20 digits, so the newest commit is the last in the order of keys.
        stored = max(self._commits(), default=None)
        if stored is None:
            # The folder may have been deleted since the last commit. A table that is made again
            # begins at the topic's start.
            self._forget()
            return None
        text = self._client.get(stored.key, _COMMIT_SIZE_MAX)
        try:
            self._last = json.loads(text)
            self._number = int(Path(stored.key).stem)
            self._identity = Identity(**self._last["identity"])
            schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self._last["schema"])))
        except (ValueError, KeyError, TypeError, pa.ArrowInvalid) as error:
            raise CorruptMetadataError(f"a commit cannot be read object={stored.key}") from error
        self._types = decoded_types(schema)
        return self._identity

    def create(self, identity: Identity) -> None:
        """Remember the identity. The first commit creates the table."""
        try:
            check_unused(self._settings, self.name, _OWN_FOLDERS)
            check_unused(self._settings, self.name + DEAD_LETTERS_SUFFIX)
        except ConfigError:
            # The unknown files are those of another run, which has created the table since.
            if self._commits():
                raise overtaken(self.name) from None
            raise
        self._identity = identity
        self._types = first_types(identity.key_format, identity.value_format)

    def listed(self) -> ListedTable | None:
        """The table for a list, whose rows nothing counts. None if there is none."""
        identity = self.identity()
        if identity is None:
            return None
        newest = max(self._commits())
        has_dead_letters = bool(self._last["dead"] or self._dead_letter_files())
        return ListedTable(
            "parquet",
            self.name,
            identity,
            None,
            None,
            newest.last_modified_ms,
            self.covered(),
            None if has_dead_letters else 0,
        )

    def newest_dead_letters(self) -> DeadLetters:
        """The dead letters of the newest files. Raises RemoteStorageError if the store fails, or if
        a file is not one of dead letters."""
        place = OpenedPlace(self._settings, self.name + DEAD_LETTERS_SUFFIX)
        files = sorted(self._dead_letter_files(), key=lambda file: file.last_modified_ms)
        reading = DeadLetterReading()
        for stored in reversed(files):
            if not reading.has_room:
                break
            name = stored.key.removeprefix(f"{place.folder}/")
            with place.open(name) as file:
                reading.read(file, stored.key)
        return reading.result()

    def _dead_letter_files(self) -> list[StoredObject]:
        folder = f"{self.name}{DEAD_LETTERS_SUFFIX}/"
        objects = self._client.list_objects(folder)
        return [stored for stored in objects if stored.key.endswith(".parquet")]

    def erasable(self) -> list[ErasableFiles]:
        folders = (self.name, self.name + DEAD_LETTERS_SUFFIX)
        return [_FolderErasure(self._settings, folder) for folder in folders]

    @property
    def _known_identity(self) -> Identity:
        assert self._identity is not None, "identity or create comes first"
        return self._identity

    def covered(self) -> dict[int, Offset]:
        covered = self._last.get("covered", {})
        return {int(partition): offset for partition, offset in covered.items()}

    def types(self) -> DecodedTypes:
        return self._types

    def data_files(self) -> list[str]:
        commits = [
            commit.key for commit in self._commits() if int(Path(commit.key).stem) < self._number
        ]
        with ThreadPoolExecutor(_COMMIT_THREADS, thread_name_prefix="isotherm-commit") as pool:
            before = list(
                pool.map(lambda key: json.loads(self._client.get(key, _COMMIT_SIZE_MAX)), commits)
            )
        # The run of the last commit may still be moving its files, or may have been killed before
        # that.
        folder = f"{self.name}/_staged/"
        staged = {object_.key.removeprefix(folder) for object_ in self._client.list_objects(folder)}
        url = plain_url(self._settings.url)
        last = [
            f"{url}/{self.name}/{'_staged/' if name in staged else ''}{name}"
            for name in self._last["rows"]
        ]
        return [f"{url}/{self.name}/{name}" for made in before for name in made["rows"]] + last

    def places(self, types: DecodedTypes) -> FilePlaces:
        self._types = types
        staged = FolderPlace(self._settings, f"{self.name}/_staged")
        rows = rows_schema(types)
        by = self._known_identity.partition_by
        return FilePlaces(staged, rows, staged, dead_schema(), rows, by)

    def commit(self, commit: TableCommit) -> None:
        schema = rows_schema(self._types).serialize().to_pybytes()
        made = {
            "identity": asdict(self._known_identity),
            "schema": base64.b64encode(schema).decode(),
            "covered": {str(partition): offset for partition, offset in commit.covered.items()},
            "rows": list(commit.rows),
            "dead": list(commit.dead),
        }
        key = f"{self.name}/_commits/{self._number + 1:020}.json"
        content = json.dumps(made).encode()
        # If the store's answer was lost, the repeated request is refused. Compare the content,
        # since the commit may be our own.
        if not self._client.create(key, content) and not self._is(key, content):
            raise overtaken(self.name)
        self._last, self._number = made, self._number + 1

    def _commits(self) -> list[StoredObject]:
        if not is_made(self._settings):
            return []
        return self._client.list_level(f"{self.name}/_commits/")[1]

    def _is(self, key: str, content: bytes) -> bool:
        return bytes(self._client.get(key, _COMMIT_SIZE_MAX)) == content

    def settle(self) -> None:
        """Move the files of the last commit to where readers see them."""
        for kind, folder in (("rows", self.name), ("dead", self.name + DEAD_LETTERS_SUFFIX)):
            for name in self._last.get(kind, ()):
                staged = f"{self.name}/_staged/{name}"
                # Copied first, then deleted: after a crash in between it is copied again.
                try:
                    self._client.copy(staged, f"{folder}/{name}")
                except RemoteResourceNotFoundError:
                    continue  # it was moved already
                self._client.delete(staged)


class _FolderErasure:
    """`ErasableFiles` of a folder. A file without the rows takes the place of the file with them,
    so that commits stay true. A reader sees either."""

    schema = None

    def __init__(self, settings: ObjectStoreSettings, folder: str) -> None:
        self.name = folder
        self.place = OpenedPlace(settings, folder)
        self._settings = settings

    def read(self) -> None:
        """The folder is listed each time."""

    def files(self) -> list[str]:
        return [name for name in self._listed() if not name.startswith("_staged/")]

    def replace(self, added: Sequence[str], removed: Sequence[str]) -> None:
        """The files are written over themselves."""

    def older(self) -> list[str]:
        return []

    def unnamed(self) -> list[str]:
        """The files of runs that were killed before their commit."""
        return [name for name in self._listed() if name.startswith("_staged/")]

    def _listed(self) -> list[str]:
        folder = f"{self.name}/"
        objects = store_client(self._settings).list_objects(folder)
        names = (object_.key.removeprefix(folder) for object_ in objects)
        return sorted(name for name in names if name.endswith(".parquet"))
