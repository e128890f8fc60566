"""Folders in which tasks write files before they put them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def task_folder(prefix: str) -> Iterator[Path]:
    """A new folder for a task, deleted at the end. In an executor it is below spark.local.dir,
    where Spark deletes the files of a killed executor. Elsewhere it is in the system's temporary
    folder."""
    # PythonRunner gives the folders of the executor's block manager to its workers.
    own = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
    parent = own if os.path.isdir(own) else None
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent) as folder:
        yield Path(folder)
