"""Objects of a store that is a local folder. Writes are atomic and durable.

    <folder>/<key>       an object
    <folder>/<key>#<n>   one that is being written, or was when a crash came; obstore, by which
                         objects are found, shows none of these in a listing

An object's bytes are synced before it gets its name, and its name and those of the folders above it
are synced before `store_object` returns. Otherwise a broker could delete its local copy of a
segment before the remote copy is durable.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO

_COPIED_SIZE = 4 * 1024 * 1024
"""Bytes of a file that are copied before their writeback begins."""

_BEGINNING = threading.Lock()


def store_object(folder: Path, key: str, content: Path | bytes | Iterable[bytes]) -> None:
    """Write an object, replacing one of this name. Thread-safe. Raises OSError, and the errors of
    `content`; no file is left behind then."""
    _write_object(folder / key, content, _rename)


def create_object(folder: Path, key: str, content: bytes) -> None:
    """Same as `store_object`, but raises FileExistsError if there is an object of this name."""
    _write_object(folder / key, content, _rename_to_new)


def _write_object(
    target: Path,
    content: Path | bytes | Iterable[bytes],
    rename: Callable[[Path, Path], object],
) -> None:
    unfinished, file = _begin(target)
    try:
        with file:
            _write(file, content)
            _sync(file.fileno())
        rename(unfinished, target)
    except BaseException:
        # Not after a rename: another writer may have begun a file of that name.
        unfinished.unlink(missing_ok=True)
        raise
    _sync_folder(target.parent)


def _rename(unfinished: Path, target: Path) -> None:
    unfinished.replace(target)


def _rename_to_new(unfinished: Path, target: Path) -> None:
    # A link fails in one step where the name exists; a rename would replace the object. A crash
    # before the unlink leaves a second name, which listings do not show.
    os.link(unfinished, target)
    unfinished.unlink()


def _begin(target: Path) -> tuple[Path, BinaryIO]:
    number = 1
    # One thread at a time: the others may then rely on an existing folder having a durable name.
    with _BEGINNING:
        while True:
            unfinished = target.with_name(f"{target.name}#{number}")
            try:
                return unfinished, unfinished.open("xb")
            except FileExistsError:
                number += 1
            # Again in a loop: a deletion of the last object in a folder removes the folder too.
            except FileNotFoundError:
                _make_folders(target.parent)


def _make_folders(folder: Path) -> None:
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        # Another process may make it at the same time.
        path.mkdir(exist_ok=True)
        _sync_folder(path.parent)


def _write(file: BinaryIO, content: Path | bytes | Iterable[bytes]) -> None:
    if isinstance(content, Path):
        with content.open("rb") as source:
            _copy(source, file)
    else:
        file.writelines([content] if isinstance(content, bytes) else content)
    file.flush()


def _copy(source: BinaryIO, target: BinaryIO) -> None:
    """Copy a file. On Linux the kernel does it: the bytes do not pass through this process, and so
    do not evict the event loop's data from the processor's cache."""
    if sys.platform != "linux":  # elsewhere sendfile writes only to sockets
        shutil.copyfileobj(source, target, _COPIED_SIZE)
        return
    position = 0
    while count := os.sendfile(target.fileno(), source.fileno(), position, _COPIED_SIZE):
        # Linux begins to write these pages, and keeps them: the sync at the end finds little to do.
        os.posix_fadvise(target.fileno(), position, count, os.POSIX_FADV_DONTNEED)
        position += count


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _sync(descriptor)
    finally:
        os.close(descriptor)


def _sync(descriptor: int) -> None:
    os.fsync(descriptor)  # noqa: TID251 - files of a store, not of a FileSystem
