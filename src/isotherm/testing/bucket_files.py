"""The files of a bucket in a folder, also while a broker writes to it and deletes from it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path


def files_below(folder: Path) -> Iterator[Path]:
    """The files at any depth, in no order; none if there is no folder.

    The store removes a directory with its last object. `Path.rglob` ends with FileNotFoundError
    when a directory goes between the listing that names it and its own; this passes it over.
    """
    for directory, _, names in os.walk(folder):
        for name in names:
            yield Path(directory, name)
