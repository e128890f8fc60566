"""A folder of an object store, or of this machine, that contains the files of a table."""

from __future__ import annotations

import io
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote

import obstore

from isotherm.errors import ConfigError
from isotherm.remote.storage.object_client import ObjectClient, open_object_store
from isotherm.remote.storage.settings import ObjectStoreSettings

_NAMES_SHOWN = 3


@dataclass(frozen=True)
class FolderPlace:
    """`Place` in a folder. The name of a file is `root` and its path below the folder."""

    settings: ObjectStoreSettings
    folder: str

    @property
    def root(self) -> str:
        return ""

    def path_of(self, name: str) -> str:
        """The path of a file below the folder."""
        return name.removeprefix(self.root)

    def put(self, name: str, path: Path) -> str:
        store_client(self.settings).put(f"{self.folder}/{name}", path)
        return f"{self.root}{name}"

    def open(self, name: str) -> IO[bytes]:
        raise NotImplementedError("a table in a folder is only appended to")

    def delete(self, files: Sequence[str]) -> None:
        client = store_client(self.settings)
        for name in files:
            client.delete(f"{self.folder}/{self.path_of(name)}")


@dataclass(frozen=True)
class OpenedPlace(FolderPlace):
    """A folder whose files are read again."""

    def open(self, name: str) -> IO[bytes]:
        """Open a file. Raises FileNotFoundError or OSError as the store does."""
        key = f"{self.folder}/{self.path_of(name)}"
        if self.settings.scheme == "file":
            return Path(plain_url(self.settings.url).removeprefix("file://"), key).open("rb")
        store = open_object_store(self.settings, create_folder=False)
        return io.BufferedReader(_StoredFile(obstore.open_reader(store, key)))


class _StoredFile(io.RawIOBase):
    """An object as a file, which is read in ranges."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._reader.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self._reader.seek(offset, whence))

    def tell(self) -> int:
        return int(self._reader.tell())


def check_unused(settings: ObjectStoreSettings, folder: str, own: Collection[str] = ()) -> None:
    """Raises ConfigError if the folder of a table that is to be made has anything but its `own`
    folders: readers would take other files for a part of the table."""
    if not is_made(settings):
        return
    folders, objects = store_client(settings).list_level(f"{folder}/")
    names = {folder.rstrip("/") for folder in folders} | {object_.key for object_ in objects}
    others = sorted({name.rpartition("/")[2] for name in names} - set(own))
    if others:
        raise ConfigError(
            "the folder of the table has files that this command has not put there"
            f" folder={plain_url(settings.url)}/{folder} files={','.join(others[:_NAMES_SHOWN])}"
            " hint='name another table with --table, or another --warehouse'"
        )


def check_warehouse(folder: Path) -> None:
    """Raise ConfigError if the folder cannot be made because a file is in its place."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir():
        raise ConfigError(
            f"the warehouse cannot be made key=--warehouse folder={folder}"
            f" reason='{existing} is not a folder'"
        )


def is_made(settings: ObjectStoreSettings) -> bool:
    """False for a local folder that does not exist. The first file makes it, so that a run that
    ends before leaves nothing behind."""
    folder = local_folder(settings)
    return folder is None or folder.is_dir()


def local_folder(settings: ObjectStoreSettings) -> Path | None:
    """None for a store that is no folder of this machine."""
    if settings.scheme != "file":
        return None
    return Path(plain_url(settings.url).removeprefix("file://"))


def store_client(settings: ObjectStoreSettings) -> ObjectClient:
    return ObjectClient(settings, open_object_store(settings, create_folder=True))


def plain_url(url: str) -> str:
    """The URL of a folder. A local one is not escaped, because readers use it as a path."""
    url = url.rstrip("/")
    return unquote(url) if url.startswith("file://") else url
