"""The partitions with remote data to delete, durable across restarts.

No other state names them: their topics are deleted, or no longer tiered. The file in the
first log directory, `remote-partition-deletions`, has the text form of Kafka's checkpoints:

    0                       version
    1                       lines that follow
    <topic id> <topic> <partition>

Kafka keeps no such list: the objects of an interrupted deletion stay in its bucket.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path

from isotherm.errors import CorruptCheckpointError
from isotherm.log.fs import FileSystem
from isotherm.types import TopicIdPartition, uuid_from_text, uuid_to_text

FILE_NAME = "remote-partition-deletions"
_VERSION = "0"


class PendingDeletions:
    """Thread-safe. Every change is durable on return."""

    def __init__(self, directory: Path, fs: FileSystem) -> None:
        """Load the file, if it exists. Raises CorruptCheckpointError if it cannot be decoded."""
        self._path = directory / FILE_NAME
        self._fs = fs
        self._lock = threading.Lock()
        self._pending = self._read()

    def partitions(self) -> list[TopicIdPartition]:
        with self._lock:
            return list(self._pending)

    def add(self, partitions: Iterable[TopicIdPartition]) -> None:
        with self._lock:
            self._replace({**self._pending, **dict.fromkeys(partitions)})

    def remove(self, partition: TopicIdPartition) -> None:
        with self._lock:
            self._replace({pending: None for pending in self._pending if pending != partition})

    def _replace(self, pending: dict[TopicIdPartition, None]) -> None:
        if pending.keys() == self._pending.keys():
            return
        lines = [
            f"{uuid_to_text(partition.topic_id)} {partition.topic} {partition.partition}"
            for partition in pending
        ]
        text = "\n".join([_VERSION, str(len(lines)), *lines, ""])
        # The file first: if the write fails, memory and file still agree.
        self._fs.write_atomically(self._path, text.encode())
        self._pending = pending

    def _read(self) -> dict[TopicIdPartition, None]:
        if not self._fs.exists(self._path):
            return {}
        try:
            return _parse(self._fs.read_bytes(self._path).decode())
        except ValueError as error:
            raise CorruptCheckpointError(
                f"list of remote deletions is malformed path={self._path}"
            ) from error


def _parse(text: str) -> dict[TopicIdPartition, None]:
    """Decode the list. Raises ValueError if the text is not such a list."""
    if not text.endswith("\n"):
        raise ValueError(f"it is cut off size={len(text)}")
    version, count, *lines = text.splitlines()
    if version != _VERSION or int(count) != len(lines):
        raise ValueError(f"head does not fit version={version} count={count} lines={len(lines)}")
    return {_read_line(line): None for line in lines}


def _read_line(line: str) -> TopicIdPartition:
    topic_id, topic, partition = line.split(" ")
    return TopicIdPartition(uuid_from_text(topic_id), topic, int(partition))
