"""Runs of `isotherm pipeline table` that end at one of their durable writes, before or after it.

    python -m tests.support.crashing_table 'then commit rows' after 1 pipeline table ...

As a program it kills itself and Spark with SIGKILL. In a test's process, `watched` raises `Killed`
instead, and writes of executors do not count. The catalog, Iceberg's files, delta-rs and the object
client are wrapped; the command is unchanged.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, NoReturn, Self

from deltalake import DeltaTable
from deltalake.table import TableAlterer
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from pyiceberg.table.update import AddSnapshotUpdate

from isotherm.remote.storage.object_client import ObjectClient
from isotherm.spark.tables.topic_table import DEAD_LETTERS_SUFFIX

BEFORE, AFTER = "before", "after"
SIDES = (BEFORE, AFTER)
DRIVER_ENV = "ISOTHERM_TEST_DRIVER_PID"
POINT_ENV = "ISOTHERM_TEST_CRASH_POINT"
_FILES = (
    (re.compile(r"\.metadata\.json$"), "metadata"),
    (re.compile(r"/snap-[^/]*\.avro$"), "manifest list"),
    (re.compile(r"-m\d+\.avro$"), "manifest"),
    (re.compile(r"-newest-[^/]*\.parquet$"), "rewritten rows"),
    (re.compile(r"-merged-[^/]*\.parquet$"), "merged rows"),
    (re.compile(r"-gone-\d+\.parquet$"), "tombstones"),
    (re.compile(r"-dead-\d+\.parquet$"), "dead letters"),
    (re.compile(r"-rows(?:-\d+)+\.parquet$"), "rows"),
)


class Killed(BaseException):
    """The run ends here."""


class Point(NamedTuple):
    """The `number`th write of this name, from 1."""

    name: str
    side: str
    number: int = 1


class Watch:
    """Counts writes by name, and ends the run at the point."""

    def __init__(self, point: Point | None, die: Callable[[], NoReturn]) -> None:
        self.counts: Counter[str] = Counter()
        self._point = point
        self._die = die

    @contextmanager
    def write(self, name: str) -> Iterator[None]:
        number = self.counts[name] + 1
        if Point(name, BEFORE, number) == self._point:
            self._die()
        yield
        # A write that was refused does not count.
        self.counts[name] = number
        if Point(name, AFTER, number) == self._point:
            self._die()


class _Stream:
    """A file that exists once it is closed."""

    def __init__(self, stream: Any, watch: Watch, name: str) -> None:
        self._stream = stream
        self._watch = watch
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._stream.closed:
            return
        with self._watch.write(self._name):
            self._stream.close()


def install(watch: Watch, patch: Callable[[Any, str, Any], None] = setattr) -> None:
    """Let `watch` count, and end the run at, each durable write of the command in this process."""
    for wrapped in (_iceberg_writes, _delta_writes, _object_writes):
        for owner, name, watched in wrapped(watch):
            patch(owner, name, watched)


def _iceberg_writes(watch: Watch) -> Iterator[tuple[Any, str, Any]]:
    create_table, commit_table = SqlCatalog.create_table, SqlCatalog.commit_table
    create_file, delete_file = PyArrowFile.create, PyArrowFileIO.delete

    def created_table(self: Any, identifier: Any, *given: Any, **named: Any) -> Any:
        with watch.write(f"create table{_of(str(identifier[-1]))}"):
            return create_table(self, identifier, *given, **named)

    def committed(self: Any, table: Any, requirements: Any, updates: Any) -> Any:
        has_rows = any(isinstance(update, AddSnapshotUpdate) for update in updates)
        kind = "snapshot" if has_rows else "columns"
        with watch.write(f"commit {kind}{_of(table.name()[-1])}"):
            return commit_table(self, table, requirements, updates)

    def created_file(self: Any, overwrite: bool = False) -> Any:
        return _Stream(create_file(self, overwrite), watch, f"write {_file(self.location)}")

    def deleted_file(self: Any, location: Any) -> None:
        with watch.write(f"delete {_file(str(location))}"):
            delete_file(self, location)

    yield SqlCatalog, "create_table", created_table
    yield SqlCatalog, "commit_table", committed
    yield PyArrowFile, "create", created_file
    yield PyArrowFileIO, "delete", deleted_file


def _delta_writes(watch: Watch) -> Iterator[tuple[Any, str, Any]]:
    create_table, add_columns = DeltaTable.create, TableAlterer.add_columns
    write = DeltaTable.create_write_transaction

    def created(uri: Any, *given: Any, **named: Any) -> Any:
        with watch.write(f"create table{_of(str(uri))}"):
            return create_table(uri, *given, **named)

    def committed(self: Any, *given: Any, **named: Any) -> None:
        with watch.write(f"commit snapshot{_of(self.table_uri.rstrip('/'))}"):
            write(self, *given, **named)

    def altered(self: Any, *given: Any, **named: Any) -> None:
        with watch.write("commit columns"):
            add_columns(self, *given, **named)

    yield DeltaTable, "create", created
    yield DeltaTable, "create_write_transaction", committed
    yield TableAlterer, "add_columns", altered


def _object_writes(watch: Watch) -> Iterator[tuple[Any, str, Any]]:
    put, create, copy, delete = (
        getattr(ObjectClient, name) for name in ("put", "create", "copy", "delete")
    )

    def stored(self: Any, key: str, content: Any) -> None:
        with watch.write(f"stage {_file(key)}"):
            put(self, key, content)

    def made(self: Any, key: str, content: bytes) -> bool:
        with watch.write("create the commit"):
            done: bool = create(self, key, content)
            return done

    def copied(self: Any, key: str, target: str) -> None:
        with watch.write(f"move {_file(target)}"):
            copy(self, key, target)

    def deleted(self: Any, key: str) -> None:
        with watch.write(f"delete staged {_file(key)}"):
            delete(self, key)

    yield ObjectClient, "put", stored
    yield ObjectClient, "create", made
    yield ObjectClient, "copy", copied
    yield ObjectClient, "delete", deleted


def _of(name: str) -> str:
    return " of dead letters" if name.endswith(DEAD_LETTERS_SUFFIX) else ""


def _file(location: str) -> str:
    kind = next((name for pattern, name in _FILES if pattern.search(location)), "other file")
    is_of_dead = DEAD_LETTERS_SUFFIX + "/metadata/" in location
    return f"{kind} of dead letters" if is_of_dead else kind


def _raise() -> NoReturn:
    raise Killed


def raising(point: Point | None) -> Watch:
    return Watch(point, _raise)


def _kill() -> NoReturn:
    """The driver, and if this is an executor's process it too. Spark's JVM ends with its driver."""
    os.kill(int(os.environ[DRIVER_ENV]), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def install_in_executor() -> None:
    """Called by tests.support.crashing_daemon."""
    name, side, number = os.environ[POINT_ENV].split("|")
    install(Watch(Point(name, side, int(number)), _kill))


def main() -> None:
    name, side, number, *arguments = sys.argv[1:]
    os.environ[DRIVER_ENV] = str(os.getpid())
    os.environ[POINT_ENV] = f"{name}|{side}|{number}"
    install_in_executor()
    sys.argv[1:] = [
        *arguments,
        "--spark-config",
        "spark.python.daemon.module=tests.support.crashing_daemon",
    ]
    from isotherm.cli.main import main as isotherm

    isotherm()


if __name__ == "__main__":
    main()
