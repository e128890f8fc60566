"""Runs `isotherm` in a process that kills itself before or after a durable write.

    python -m tests.support.crashing_broker '{"write": "put .log", "side": "after", "nth": 2,
        "delays": {"read audit": 0.8}}' serve --data-dir ...

The first argument names the crash point, and delays in seconds for kinds of reads and writes; both
are optional. The other arguments are the command line of Isotherm. The file system, the object
client and the metadata topics are wrapped, and the broker is unchanged. The first write of each
kind is printed on standard error (see `tests.support.correctness.crash_points`).
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from isotherm.broker import node
from isotherm.broker.surroundings import Surroundings
from isotherm.broker.tier.embedded_remote_metadata_topic import EmbeddedRemoteMetadataTopic
from isotherm.cli.main import main as isotherm
from isotherm.errors import CorruptMetadataError
from isotherm.log.fs import File, OsFile, OsFileSystem
from isotherm.remote.metadata.api import NewMetadataRecord
from isotherm.remote.metadata.wire.serde import decode_event
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
)
from isotherm.remote.storage.object_client import ObjectClient
from isotherm.segment.file_names import TEMPORARY_SUFFIX
from isotherm.segment.offset_index import Buffer
from isotherm.types import REMOTE_LOG_METADATA_TOPIC, Offset, Position
from tests.support.correctness.crash_points import (
    AUDIT,
    METADATA,
    TOMBSTONE,
    CrashPlan,
    CrashPoint,
    Side,
    kills_line,
    seen_line,
)

_PARTITION = re.compile(r"(.+)-\d+(\.[0-9a-f]+-\w+)?")
_NUMBERED = re.compile(r"\d+(_[\w-]{22})?(?=\.)")


class Watch:
    """Counts reads and writes by name, delays them, and kills the process. Thread-safe."""

    def __init__(self, plan: CrashPlan | None, delays: Mapping[str, float]) -> None:
        self._plan = plan
        self._delays = delays
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def write(self, name: str) -> Iterator[None]:
        with self._lock:
            self._counts[name] += 1
            count = self._counts[name]
        if count == 1:
            _say(seen_line(name))
        self.hold_up(name)
        self._die_at(CrashPoint(name, Side.BEFORE), count)
        yield
        self._die_at(CrashPoint(name, Side.AFTER), count)

    def hold_up(self, name: str) -> None:
        if name in self._delays:
            threading.Event().wait(self._delays[name])

    def _die_at(self, point: CrashPoint, count: int) -> None:
        if self._plan == CrashPlan(point, count):
            _say(kills_line(point))
            os.kill(os.getpid(), signal.SIGKILL)


def _say(line: str) -> None:
    os.write(sys.stderr.fileno(), f"{line}\n".encode())


class WatchedFile(OsFile):
    __slots__ = ("_name", "_watch")

    def __init__(self, path: Path, watch: Watch) -> None:
        super().__init__(path, os.O_RDWR | os.O_CREAT)
        self._name = file_name(path)
        self._watch = watch

    def write_at(self, position: Position, data: Buffer) -> None:
        with self._watch.write(f"write {self._name}"):
            super().write_at(position, data)

    def truncate(self, size: int) -> None:
        with self._watch.write(f"truncate {self._name}"):
            super().truncate(size)

    def sync(self) -> None:
        with self._watch.write(f"sync {self._name}"):
            super().sync()


class WatchedFileSystem(OsFileSystem):
    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def open_writable(self, path: Path) -> File:
        return WatchedFile(path, self._watch)

    def write_bytes(self, path: Path, data: Buffer) -> None:
        with self._watch.write(f"write {file_name(path)}"):
            super().write_bytes(path, data)

    def write_atomically(self, path: Path, data: Buffer) -> None:
        with self._watch.write(f"checkpoint {file_name(path)}"):
            super().write_atomically(path, data)

    def rename(self, source: Path, target: Path) -> None:
        with self._watch.write(f"rename {file_name(target)}"):
            super().rename(source, target)

    def remove(self, path: Path) -> None:
        with self._watch.write(f"remove {file_name(path)}"):
            super().remove(path)

    def remove_directory(self, path: Path) -> None:
        with self._watch.write(f"remove {file_name(path)}"):
            super().remove_directory(path)

    def sync_file(self, path: Path) -> None:
        with self._watch.write(f"sync {file_name(path)}"):
            super().sync_file(path)

    def sync_directory(self, path: Path) -> None:
        with self._watch.write(f"sync {file_name(path)}"):
            super().sync_directory(path)


def file_name(path: Path) -> str:
    """The kind of a file or directory: its name without offsets, partition numbers and topics."""
    if own := _PARTITION.fullmatch(path.name):
        return f"{_topic_kind(own[1])} directory{'.delete' if own[2] else ''}"
    name = _NUMBERED.sub("", path.name).removesuffix(TEMPORARY_SUFFIX)
    partition = _PARTITION.fullmatch(path.parent.name)
    return f"{_topic_kind(partition[1])} {name}" if partition else name


def _topic_kind(topic: str) -> str:
    return topic if topic.startswith("__") else "topic"


def _event_name(record: NewMetadataRecord) -> str:
    if record.value is None:
        return TOMBSTONE
    try:
        event = decode_event(record.value)
    except CorruptMetadataError:
        return "unreadable"
    match event:
        case (
            RemoteLogSegmentMetadata()
            | RemoteLogSegmentMetadataUpdate()
            | RemotePartitionDeleteMetadata()
        ):
            return event.state.name
        case other:
            return type(other).__name__


def watch_metadata_topics(watch: Watch) -> None:
    append, read = EmbeddedRemoteMetadataTopic._append, EmbeddedRemoteMetadataTopic.read

    def kind(topic: EmbeddedRemoteMetadataTopic) -> str:
        return METADATA if topic._topic == REMOTE_LOG_METADATA_TOPIC else AUDIT

    @functools.wraps(append)
    def watched_append(
        topic: EmbeddedRemoteMetadataTopic,
        partition: int,
        records: Sequence[NewMetadataRecord],
        expected_end: Offset | None,
    ) -> Offset:
        # A tombstone is appended with a state, which names the write.
        named = next((record for record in records if record.value is not None), records[0])
        with watch.write(f"{kind(topic)} {_event_name(named)}"):
            return append(topic, partition, records, expected_end)

    @functools.wraps(read)
    def watched_read(topic: EmbeddedRemoteMetadataTopic, *arguments: Any) -> Any:
        watch.hold_up(f"read {kind(topic)}")
        return read(topic, *arguments)

    _patch(EmbeddedRemoteMetadataTopic, "_append", watched_append)
    _patch(EmbeddedRemoteMetadataTopic, "read", watched_read)


def watch_objects(watch: Watch) -> None:
    def watched(operation: str) -> Callable[..., Any]:
        act: Callable[..., Any] = getattr(ObjectClient, operation)

        @functools.wraps(act)
        def watched_act(client: ObjectClient, key: str, *arguments: Any) -> Any:
            with watch.write(f"{operation} {Path(key).suffix}"):
                return act(client, key, *arguments)

        return watched_act

    for operation in ("put", "delete", "copy"):
        _patch(ObjectClient, operation, watched(operation))


def _patch(owner: object, name: str, function: Callable[..., Any]) -> None:
    if not hasattr(owner, name):
        raise AttributeError(f"nothing would be watched: {owner} has no {name}")
    setattr(owner, name, function)


def main(arguments: Sequence[str]) -> None:
    wanted = json.loads(arguments[0])
    plan = None
    if "write" in wanted:
        point = CrashPoint(wanted["write"], Side(wanted["side"]))
        plan = CrashPlan(point, int(wanted["nth"]))
    watch = Watch(plan, wanted.get("delays", {}))
    _patch(node, "Surroundings", functools.partial(Surroundings, fs=WatchedFileSystem(watch)))
    watch_metadata_topics(watch)
    watch_objects(watch)
    sys.argv = ["isotherm", *arguments[1:]]
    isotherm()


if __name__ == "__main__":
    main(sys.argv[1:])
