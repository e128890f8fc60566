"""A log directory that this process writes to: its lock, clean shutdown marker and checkpoints.

A lost or damaged checkpoint of the directory is rebuilt, and a warning logged, as in Kafka. Without
recovery points an unclean stop needs more recovery. Without high watermarks the logs start at their
log starts, and the leader raises them. Without log starts each log starts with its first leader
epoch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from isotherm.errors import CorruptCheckpointError, LogDirFailedError
from isotherm.log.checkpoints import (
    encode_offset_checkpoint,
    load_offset_checkpoint,
    take_clean_shutdown,
)
from isotherm.log.fs import FileLock, FileSystem
from isotherm.log.log_dir import LogDir
from isotherm.log.log_loader import LogCheckpoints
from isotherm.log.partition_log import PartitionLog
from isotherm.segment.file_names import (
    CLEANER_OFFSET_CHECKPOINT_NAME,
    LOCK_NAME,
    LOG_START_OFFSET_CHECKPOINT_NAME,
    RECOVERY_POINT_CHECKPOINT_NAME,
    REPLICATION_OFFSET_CHECKPOINT_NAME,
)
from isotherm.types import Offset, TopicPartition

logger = logging.getLogger(__name__)

_OffsetCheckpoint = dict[TopicPartition, Offset]

_NAMES = (
    RECOVERY_POINT_CHECKPOINT_NAME,
    LOG_START_OFFSET_CHECKPOINT_NAME,
    REPLICATION_OFFSET_CHECKPOINT_NAME,
)


@dataclass(frozen=True, slots=True)
class LockedDir:
    """The offsets are those in the files when the directory was locked."""

    log_dir: LogDir
    lock: FileLock
    clean_broker_epoch: int | None
    """The broker epoch of the last stop; None if that was not clean."""
    recovery_points: Mapping[TopicPartition, Offset]
    log_start_offsets: Mapping[TopicPartition, Offset] | None
    """The log starts from the file; None if it is lost: then the start of a log is unknown."""
    high_watermarks: Mapping[TopicPartition, Offset]
    cleaned_to: Mapping[TopicPartition, Offset] = field(default_factory=dict)
    """The end of the part of each log that was cleaned, from the cleaner's checkpoint."""
    named: set[TopicPartition] = field(default_factory=set)
    """Partitions that are in the files on disk now."""
    stored_high_watermarks: _OffsetCheckpoint = field(default_factory=dict)
    """The high watermarks that this process wrote last."""

    @property
    def was_clean(self) -> bool:
        return self.clean_broker_epoch is not None

    def checkpoints(self, topic_partition: TopicPartition) -> LogCheckpoints:
        starts = self.log_start_offsets
        return LogCheckpoints(
            self.recovery_points.get(topic_partition, 0),
            (starts or {}).get(topic_partition, 0),
            self.high_watermarks.get(topic_partition, 0),
            self.was_clean,
            knows_log_start=starts is not None,
            cleaned_to=self.cleaned_to.get(topic_partition, 0),
        )

    def save(
        self, fs: FileSystem, logs: Iterable[PartitionLog], offline: Iterable[TopicPartition]
    ) -> None:
        """Write the three files, with the present offsets of `logs`, and for offline partitions the
        offsets that were found. Raises OSError."""
        logs, offline = list(logs), list(offline)
        recovery_points = _of(self.recovery_points, offline)
        for log in logs:
            recovery_points[log.topic_partition] = log.recovery_point
        self._write(fs, RECOVERY_POINT_CHECKPOINT_NAME, recovery_points)
        self.save_log_starts(fs, logs, offline)
        # Forces the write: the three files are written together, and a missing one counts as lost.
        self.stored_high_watermarks.clear()
        self.save_high_watermarks(fs, logs, offline)
        self.named.clear()
        self.named.update(recovery_points)

    def save_log_starts(
        self, fs: FileSystem, logs: Iterable[PartitionLog], offline: Iterable[TopicPartition]
    ) -> None:
        """Write the file of log starts only, and confirm it to the logs. Raises OSError."""
        log_start_offsets = _of(self.log_start_offsets or {}, offline)
        # Read once: a log start may move during the write, and only what is written is confirmed.
        starts = [(log, log.log_start_offset_to_store) for log in logs]
        for log, log_start_offset in starts:
            # For other logs the base of the first segment is enough. A tiered log may start far
            # below.
            if log.remote_log_enabled or log_start_offset > log.segments()[0].base_offset:
                log_start_offsets[log.topic_partition] = log_start_offset
        self._write(fs, LOG_START_OFFSET_CHECKPOINT_NAME, log_start_offsets)
        self.named.update(log_start_offsets)
        for log, log_start_offset in starts:
            log.log_start_is_durable(log_start_offset)

    def save_high_watermarks(
        self, fs: FileSystem, logs: Iterable[PartitionLog], offline: Iterable[TopicPartition]
    ) -> None:
        """Write the file of high watermarks only, if one has moved. Raises OSError."""
        high_watermarks = _of(self.high_watermarks, offline)
        high_watermarks |= {log.topic_partition: log.high_watermark for log in logs}
        if high_watermarks != self.stored_high_watermarks:
            self._write(fs, REPLICATION_OFFSET_CHECKPOINT_NAME, high_watermarks)
            self.stored_high_watermarks.clear()
            self.stored_high_watermarks.update(high_watermarks)
            self.named.update(high_watermarks)

    def _write(self, fs: FileSystem, name: str, offsets: _OffsetCheckpoint) -> None:
        fs.write_atomically(self.log_dir.path / name, encode_offset_checkpoint(offsets))


def lock_directory(fs: FileSystem, log_dir: LogDir) -> LockedDir:
    """Lock a directory, created if missing. Raises LogDirFailedError if it is in use; OSError."""
    path = log_dir.path
    fs.make_directory(path)
    try:
        lock = fs.lock(path / LOCK_NAME)
    except BlockingIOError as error:
        raise LogDirFailedError(
            "log directory is in use by another process: stop it, or give this one another"
            f" log.dirs dir={path}"
        ) from error
    # The marker is removed before anything is written, so that a crash is seen as one.
    clean_broker_epoch = take_clean_shutdown(fs, path)
    # The files are written together. If one exists, the others existed, too.
    is_new = not any(fs.exists(path / name) for name in _NAMES)
    recovery_points, log_starts, high_watermarks = (
        {} if is_new else _read(fs, path / name) for name in _NAMES
    )
    return LockedDir(
        log_dir,
        lock,
        clean_broker_epoch,
        recovery_points or {},
        log_starts,
        high_watermarks or {},
        _read_cleaned(fs, path / CLEANER_OFFSET_CHECKPOINT_NAME),
        {*(recovery_points or {}), *(log_starts or {}), *(high_watermarks or {})},
    )


def _read(fs: FileSystem, path: Path) -> _OffsetCheckpoint | None:
    """The offsets in a file; None if it is lost."""
    try:
        if fs.exists(path):
            return load_offset_checkpoint(fs, path)
        reason = "it is missing"
    except CorruptCheckpointError as error:
        reason = str(error)
    logger.warning("checkpoint is lost and made again file=%s reason='%s'", path, reason)
    return None


def _read_cleaned(fs: FileSystem, path: Path) -> _OffsetCheckpoint:
    # The cleaner warns of a damaged file when it reads it. Here that costs a needless error for a
    # log that was compacted once.
    with suppress(CorruptCheckpointError):
        return load_offset_checkpoint(fs, path)
    return {}


def _of(
    offsets: Mapping[TopicPartition, Offset], partitions: Iterable[TopicPartition]
) -> _OffsetCheckpoint:
    return {partition: offsets[partition] for partition in partitions if partition in offsets}
