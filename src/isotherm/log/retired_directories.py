"""Partition directories that belong to no log any more. They are renamed at once and deleted later.

    <topic>-<partition>.<id>-delete    its files are removed when a delay has passed
    <topic>-<partition>.<id>-stray     an operator looks at it; nothing here deletes it

The rename frees the name: the topic can be created again while clients still read the old files. A
start deletes the `-delete` directories that a stop leaves.
"""

from __future__ import annotations

import random
import threading
import uuid
from functools import partial
from pathlib import Path
from typing import NamedTuple

from isotherm.clock import Clock
from isotherm.log.fs import FileSystem
from isotherm.log.log_dir import PartitionDirectory
from isotherm.segment.file_names import PartitionDirectoryState, retired_partition_directory_name
from isotherm.types import TimestampMs


class _Due(NamedTuple):
    due_ms: TimestampMs
    directory: PartitionDirectory


class RetiredDirectories:
    """Thread-safe."""

    def __init__(self, fs: FileSystem, clock: Clock, rng: random.Random) -> None:
        self._fs = fs
        self._clock = clock
        self._rng = rng
        self._due: list[_Due] = []
        self._lock = threading.Lock()

    def retire(self, directory: PartitionDirectory, delay_ms: int) -> None:
        """Rename a directory to `-delete`, and delete it after `delay_ms`. Durable on return.
        Raises LogDirFailedError."""
        renamed = self._rename(directory, PartitionDirectoryState.DELETED)
        self.delete_later(directory._replace(path=renamed), delay_ms)

    def set_aside(self, directory: PartitionDirectory) -> Path:
        """Rename a directory to `-stray`; returns its new path. Durable on return. Raises
        LogDirFailedError."""
        return self._rename(directory, PartitionDirectoryState.STRAY)

    def delete_later(self, directory: PartitionDirectory, delay_ms: int) -> None:
        """Delete a directory that is renamed already after `delay_ms`."""
        with self._lock:
            self._due.append(_Due(self._clock.now_ms() + delay_ms, directory))

    def delete_due(self, now_ms: TimestampMs) -> None:
        """Delete the directories whose delay has passed. One that fails takes its log directory
        offline, the others are deleted."""
        with self._lock:
            due = [retired for retired in self._due if retired.due_ms <= now_ms]
            self._due = [retired for retired in self._due if retired.due_ms > now_ms]
        for _, (log_dir, path, _) in due:
            log_dir.try_to("delete a directory", partial(self._fs.remove_directory, path))

    def _rename(self, directory: PartitionDirectory, state: PartitionDirectoryState) -> Path:
        log_dir, path, topic_partition = directory
        unique = uuid.UUID(int=self._rng.getrandbits(128))
        renamed = path.with_name(retired_partition_directory_name(topic_partition, unique, state))
        with log_dir.errors_fail_it(f"rename {topic_partition}"):
            self._fs.rename(path, renamed)
            self._fs.sync_directory(log_dir.path)
        return renamed
