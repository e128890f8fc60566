"""The log directories that this process has locked, and the checkpoints of their logs.

A checkpoint file has the offsets of all logs of a directory, so each write needs all of them:

- A directory is written only after its logs are loaded. The files would be incomplete before.
- Partitions that are offline keep the offsets that were found when the directory was locked.
- One thread at a time writes. The latest offsets are written last, and a log that is deleted
  meanwhile is not written again.

locked_dir.py has the files of one directory. Source: Kafka
LogManager.checkpointRecoveryOffsetsInDir and its like, and ReplicaManager.checkpointHighWatermarks.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

from isotherm.config.secret_files import warn_of_open_folder
from isotherm.log.checkpoints import NO_BROKER_EPOCH, save_clean_shutdown
from isotherm.log.environment import StartedLog
from isotherm.log.fs import FileSystem
from isotherm.log.locked_dir import LockedDir, lock_directory
from isotherm.log.log_dir import LogDir
from isotherm.log.log_loader import LogCheckpoints
from isotherm.log.offline_logs import OfflineLog, partitions_of
from isotherm.log.partition_log import PartitionLog
from isotherm.types import TopicPartition


class LockedDirs:
    """Thread-safe."""

    def __init__(
        self,
        fs: FileSystem,
        log_dirs: Sequence[LogDir],
        lock: threading.RLock,
        logs: Callable[[], Iterable[PartitionLog]],
        offline_logs: Callable[[], Iterable[OfflineLog]],
    ) -> None:
        """`lock` is the one that guards the set of logs. `logs` and `offline_logs` return the
        present ones."""
        self._fs = fs
        self._log_dirs = log_dirs
        self._lock = lock
        self._logs = logs
        self._offline_logs = offline_logs
        self._locked: dict[Path, LockedDir] = {}
        # Directories whose logs are all loaded.
        self._loaded: set[Path] = set()

    def __iter__(self) -> Iterator[LockedDir]:
        return iter(self._locked.values())

    def lock(self) -> None:
        """Lock every directory that is online and not locked yet. One that cannot be opened goes
        offline. Raises LogDirFailedError if another process writes to one."""
        with self._lock:
            for log_dir in self._log_dirs:
                if log_dir.is_online and log_dir.path not in self._locked:
                    try:
                        self._locked[log_dir.path] = lock_directory(self._fs, log_dir)
                        warn_of_open_folder(log_dir.path)
                    except OSError as error:
                        log_dir.fail(error, "open")

    def note_loaded(self, log_dir: LogDir) -> None:
        """Include the directory in checkpoints from now on."""
        self._loaded.add(log_dir.path)

    def checkpoints(self, log_dir: LogDir, topic_partition: TopicPartition) -> LogCheckpoints:
        """The offsets of a log that were in the files when the directory was locked."""
        return self._locked[log_dir.path].checkpoints(topic_partition)

    def names(self, topic_partition: TopicPartition) -> bool:
        """Whether the files of any directory name this partition now."""
        return any(topic_partition in locked.named for locked in self)

    def previous_broker_epoch(self) -> int:
        """The broker epoch of the last stop if it was clean in every directory, else -1. The logs
        may then have lost their ends."""
        epochs = {directory.clean_broker_epoch for directory in self}
        if len(self._locked) < len(self._log_dirs) or len(epochs) != 1:
            return NO_BROKER_EPOCH
        (epoch,) = epochs
        return NO_BROKER_EPOCH if epoch is None else epoch

    def release(self, broker_epoch: int) -> None:
        """Write the markers of a clean shutdown and unlock. Call it with the logs closed and
        checkpointed. Idempotent."""
        with self._lock:
            for path, locked in self._locked.items():
                # A directory that was never loaded keeps its state. One with an offline log gets
                # no marker, as that log may have to be recovered later.
                is_whole = not partitions_of(self._offline_logs(), locked.log_dir)
                if locked.log_dir.is_online and (
                    is_whole if path in self._loaded else locked.was_clean
                ):
                    locked.log_dir.try_to(
                        "shut down", partial(save_clean_shutdown, self._fs, path, broker_epoch)
                    )
                # Last: the next process must find the marker.
                locked.lock.release()
            self._locked.clear()
            self._loaded.clear()

    # ---- checkpoints

    def checkpoint(self) -> None:
        """Write recovery points, log start offsets and high watermarks of every live directory."""
        self._for_loaded(LockedDir.save)

    def checkpoint_high_watermarks(self) -> None:
        """Write the high watermarks of every live directory where one has moved."""

        def save(
            locked: LockedDir,
            fs: FileSystem,
            logs: Iterable[PartitionLog],
            offline: Iterable[TopicPartition],
        ) -> None:
            # At first all files are written together: a missing one counts as lost.
            write = locked.save_high_watermarks if locked.named else locked.save
            write(fs, logs, offline)

        self._for_loaded(save)

    def checkpoint_log_start(self, log: StartedLog) -> None:
        """Write the log starts of all logs of the directory, so that calls that wait for the lock
        find theirs written. Raises OSError."""
        with self._lock:
            if log.durable_log_start_offset < log.log_start_offset:
                locked = self._locked.get(log.log_dir.path)
                if locked is not None and log.log_dir.path in self._loaded:
                    # At first all files are written together: a missing one counts as lost.
                    save = locked.save_log_starts if locked.named else locked.save
                    save(self._fs, self._logs_in(log.log_dir), self._offline_in(log.log_dir))

    def checkpoint_with(self, log: PartitionLog, log_dir: LogDir) -> None:
        """Write the files of `log_dir` with a log that is about to move there. Raises OSError."""
        with self._lock:
            logs = [*self._logs_in(log_dir), log]
            self._locked[log_dir.path].save(self._fs, logs, self._offline_in(log_dir))

    def _for_loaded(
        self,
        save: Callable[
            [LockedDir, FileSystem, Iterable[PartitionLog], Iterable[TopicPartition]], None
        ],
    ) -> None:
        with self._lock:
            for log_dir in self._log_dirs:
                if log_dir.is_online and log_dir.path in self._loaded:
                    locked = self._locked[log_dir.path]
                    logs, offline = self._logs_in(log_dir), self._offline_in(log_dir)
                    log_dir.try_to("checkpoint", partial(save, locked, self._fs, logs, offline))

    def _logs_in(self, log_dir: LogDir) -> list[PartitionLog]:
        return [log for log in self._logs() if log.log_dir is log_dir]

    def _offline_in(self, log_dir: LogDir) -> tuple[TopicPartition, ...]:
        return partitions_of(self._offline_logs(), log_dir)
