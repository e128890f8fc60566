"""Folders of tasks, for files that they write before they put them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def task_folder(prefix: str) -> Iterator[Path]:
    """In an executor: a folder of its own where Spark has its files (spark.local.dir), deleted at the
    end. Spark deletes what a killed executor leaves there. Elsewhere it is a temporary one."""
    # PythonRunner gives the folders of the executor's block manager to its workers.
    own = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
    parent = own if os.path.isdir(own) else None
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent) as folder:
        yield Path(folder)
