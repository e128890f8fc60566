"""The files of one segment: their changing names, and cached access to them.

The suffix of a name is the file's state: `.cleaned` and `.swap` before it is in use, `.deleted`
after, none while in use. Readers hold no lock. So between the lookup of a name and its opening, the
name may change, and be reused by the segment that replaces this one.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from isotherm.log.file_cache import FileCache
from isotherm.log.fs import File
from isotherm.segment.file_names import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    segment_file_name,
)
from isotherm.types import Offset

_SUFFIXES = (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)

Loaded = TypeVar("Loaded")


class SegmentFiles:
    """`suffix` is one of LOG_SUFFIX and the three index suffixes."""

    def __init__(
        self, cache: FileCache, directory: Path, base_offset: Offset, temporary_suffix: str
    ) -> None:
        self._cache = cache
        self._fs = cache.fs
        self._directory = directory
        self._base_offset = base_offset
        self._temporary_suffix = temporary_suffix
        # Differs from _temporary_suffix while the files are being renamed.
        self._next_suffix = temporary_suffix
        self._cache_keys = {suffix: object() for suffix in _SUFFIXES}

    def path(self, suffix: str) -> Path:
        return self._path(suffix, self._temporary_suffix)

    def _path(self, suffix: str, temporary_suffix: str) -> Path:
        return self._directory / segment_file_name(self._base_offset, suffix, temporary_suffix)

    def paths(self) -> list[Path]:
        return [self.path(suffix) for suffix in _SUFFIXES]

    def open_log(self) -> File:
        return self._cache.file(
            self._cache_keys[LOG_SUFFIX], lambda: self._load(LOG_SUFFIX, self._fs.open_readable)
        )

    def read_index(self, suffix: str) -> bytes:
        """The bytes of an index. Without a file (a new or deleted segment) it is empty."""
        try:
            return self._cache.index(
                self._cache_keys[suffix], lambda: self._load(suffix, self._fs.read_bytes)
            )
        except FileNotFoundError:
            return b""

    def kept_index(self, suffix: str) -> bytes | None:
        """What `read_index` has read, if it is still in memory."""
        return self._cache.kept_index(self._cache_keys[suffix])

    def _load(self, suffix: str, load: Callable[[Path], Loaded]) -> Loaded:
        while True:
            names = self._temporary_suffix, self._next_suffix
            try:
                try:
                    loaded = load(self._path(suffix, names[0]))
                except FileNotFoundError:
                    if names[1] == names[0]:
                        raise
                    loaded = load(self._path(suffix, names[1]))
            except FileNotFoundError:
                # If the names are unchanged, the file is gone. If not, it was renamed: try again.
                if names == (self._temporary_suffix, self._next_suffix):
                    raise
            else:
                # After a rename the old name may belong to another segment: try again.
                if names[0] == self._temporary_suffix:
                    return loaded

    def rename(self, temporary_suffix: str) -> None:
        """Change the temporary suffix of the files: the log first, then the indexes.

        Once readers know the segment, only to `.deleted`.
        """
        self._next_suffix = temporary_suffix
        for suffix in _SUFFIXES:
            path = self.path(suffix)
            if self._fs.exists(path):
                self._fs.rename(path, self._path(suffix, temporary_suffix))
        self._temporary_suffix = temporary_suffix
        # A segment that is about to be deleted is rarely read, so it leaves the cache.
        self.forget()

    def forget(self) -> None:
        """Drop the cached files before they change or are removed. Running readers keep theirs."""
        self._cache.discard(self._cache_keys.values())

    def remove(self) -> None:
        """Remove the files. Missing files are no error. Idempotent.

        The log is removed last: indexes without a log mean that the log was lost.
        """
        self.forget()
        for path in reversed(self.paths()):
            self._fs.remove(path)
