"""Lists the files of a bucket in a folder, even while a broker writes and deletes there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def files_below(folder: Path) -> Iterator[Path]:
    """The files at any depth, in no order. None if there is no folder.

    The store removes a directory with its last object. `Path.rglob` raises FileNotFoundError if a
    directory is removed before it is listed itself. This function skips it.
    """
    for directory, _, names in os.walk(folder):
        for name in names:
            yield Path(directory, name)
