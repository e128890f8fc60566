"""A folder for very many small files, which a disk would take longer to write than a test to
check.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_MEMORY = Path("/dev/shm")


@contextmanager
def memory_folder() -> Iterator[Path]:
    """A new folder in memory if the system has a file system there, else among temporary files.

    It is removed at the end. Only for tests whose file system counts a sync itself or needs none:
    nothing here survives a power failure.
    """
    folder = Path(tempfile.mkdtemp(dir=_MEMORY if _MEMORY.is_dir() else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
