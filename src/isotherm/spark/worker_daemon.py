"""The daemon from which Spark forks Python workers, with the workers' modules loaded before the
fork.

    spark.python.daemon.module = isotherm.spark.worker_daemon

It differs from Spark's own daemon, `pyspark.daemon`, in two ways:
- `pyspark.daemon` imports PySpark from the zip that Spark puts first on PYTHONPATH. The zip has no
  byte code, so each daemon spends a CPU-second on compiling the sources, and a session's first
  query starts four. This daemon moves the zip to the end of the path if the installed PySpark has
  the same files.
- Each worker of `pyspark.daemon` imports Arrow and compiled kernels by itself. Spark ends
  idle workers after a minute, and forks new ones for the next query. This daemon loads these
  modules before it forks, and the workers share their memory.

It is also quiet about sockets that Spark has closed (closed_sockets.py).

A fork is safe only without other threads, so nothing here starts one. Arrow's allocator starts a
thread, but handles forks itself.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
import traceback
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from isotherm.spark.closed_sockets import be_quiet

_TASK_WORKER = "pyspark.worker"
# Folders of PySpark that are in its zip, but are not installed.
_NOT_INSTALLED = frozenset({"tests", "benchmark"})
# The modules that planning imports, and below those that a task imports. A worker imports the rest
# itself.
_PLANNING = (
    "isotherm.spark.source",
    "isotherm.spark.driver.batch_query",
    "isotherm.spark.tier.open_log",
    "isotherm.spark.tier.tier_settings",
)
_TASK = (
    "isotherm.spark.tasks_source",
    "isotherm.spark.reading.task_codec",
    "isotherm.spark.reading.task_reading",
    "isotherm.spark.tier.open_log",
    "isotherm.spark.tier.tier_settings",
    "isotherm.remote.storage.object_client",
    "isotherm.remote.storage.object_store",
    "isotherm.kernels.batches",
    "isotherm.kernels.columns",
    "isotherm.kernels.crc",
    "isotherm.kernels.heads",
)


def main() -> None:
    sys.path[:] = installed_first(sys.path)
    # Spark reads the address of the daemon from its standard output.
    with contextlib.redirect_stdout(sys.stderr):
        load(modules_of(sys.argv[1] if len(sys.argv) > 1 else _TASK_WORKER))
    os.register_at_fork(after_in_child=reseed_numpy)
    # Frozen objects are never scanned in the workers, so their memory pages stay shared after a
    # fork.
    gc.collect()
    gc.freeze()

    from pyspark import daemon

    be_quiet(daemon)
    daemon.manager()


def modules_of(worker: str) -> Iterator[str]:
    """The modules to load for workers that run the module `worker`."""
    yield worker
    if worker == _TASK_WORKER:
        yield from _TASK
    elif worker.startswith("pyspark.sql.worker."):
        yield from _PLANNING


def installed_first(path: Sequence[str]) -> list[str]:
    """`path`, where the zips whose modules are also in a folder of it come last."""
    folders = [Path(entry) for entry in path if os.path.isdir(entry)]
    last = [
        entry
        for entry in path
        if entry.endswith(".zip") and any(_is_same(entry, f) for f in folders)
    ]
    return [*(entry for entry in path if entry not in last), *last]


def _is_same(archive: str, folder: Path) -> bool:
    """Whether `folder` has the modules of a zip, by name and size, except those that are never
    installed."""
    try:
        with zipfile.ZipFile(archive) as opened:
            modules = [
                (folder / entry.filename, entry.file_size)
                for entry in opened.infolist()
                if entry.filename.endswith(".py")
                and _NOT_INSTALLED.isdisjoint(entry.filename.split("/"))
            ]
        return bool(modules) and all(path.stat().st_size == size for path, size in modules)
    except (OSError, zipfile.BadZipFile):
        return False


def load(modules: Iterator[str]) -> None:
    """Import the modules. A failure is only printed: the worker's own import fails too, and Spark
    shows that error to the user."""
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception:  # noqa: BLE001 - printed
            traceback.print_exc()


def reseed_numpy() -> None:
    """Seed NumPy's random numbers in a forked worker. Otherwise all workers would have the same
    ones."""
    random = sys.modules.get("numpy.random")
    if random is not None:
        random.seed()


if __name__ == "__main__":
    main()
