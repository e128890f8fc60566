"""Files that end with their process: nothing is made durable."""

from __future__ import annotations

import os
from pathlib import Path

from isotherm.log.fs import File, OsFile, OsFileSystem
from isotherm.segment.offset_index import Buffer


class _ScratchFile(OsFile):
    def sync(self) -> None:
        """Do nothing."""


class ScratchFileSystem(OsFileSystem):
    """For a process that finds all that matters elsewhere at its next start."""

    def open_readable(self, path: Path) -> File:
        return _ScratchFile(path, os.O_RDONLY)

    def open_writable(self, path: Path) -> File:
        return _ScratchFile(path, os.O_RDWR | os.O_CREAT)

    def write_atomically(self, path: Path, data: Buffer) -> None:
        """Write the file. Another thread may see a part of it, another process never reads it."""
        self.write_bytes(path, data)

    def sync_file(self, path: Path) -> None:
        """Do nothing."""

    def sync_directory(self, path: Path) -> None:
        """Do nothing."""
