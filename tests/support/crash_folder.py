"""The bucket in a folder, on a `CrashFileSystem`: records the store's writes, syncs and renames."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from unittest import mock

from isotherm.remote.storage import folder_objects
from tests.support.crash_fs import CrashFileSystem


@contextmanager
def folder_noted(fs: CrashFileSystem) -> Iterator[None]:
    """Let the folder store write to `fs` within the block.

    Deletions are not recorded: after a crash the deleted objects exist again.
    """
    begin = folder_objects._begin

    def noted_begin(target: Path) -> tuple[Path, BinaryIO]:
        path, file = begin(target)
        fs.note_created(path)
        return _NotedPath(path, fs), file

    def noted_sync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if path.is_dir():
            fs.sync_directory(path)
        else:
            fs.note_synced(path)

    with (
        mock.patch.object(folder_objects, "_begin", noted_begin),
        mock.patch.object(folder_objects, "_sync", noted_sync),
    ):
        yield


class _NotedPath(type(Path())):  # type: ignore[misc]
    """An unfinished object; `replace` gives it its name."""

    _fs: CrashFileSystem

    def __new__(cls, path: Path, fs: CrashFileSystem) -> _NotedPath:
        made: _NotedPath = super().__new__(cls, path)
        made._fs = fs
        return made

    def replace(self, target: Path | str) -> Path:
        Path(self).replace(target)
        self._fs.note_renamed(Path(self), Path(target))
        return Path(target)
