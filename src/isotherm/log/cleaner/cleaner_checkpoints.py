"""`cleaner-offset-checkpoint`: the offset up to which each log of a directory is clean.

If an entry is lost, the next round of that log repeats the work of earlier ones. Nothing else
depends on it.
Source: Kafka LogCleanerManager.updateCheckpoints, OffsetCheckpointFile.
"""

from __future__ import annotations

import logging
from collections.abc import Container

from isotherm.errors import CorruptCheckpointError
from isotherm.log.checkpoints import encode_offset_checkpoint, load_offset_checkpoint
from isotherm.log.fs import FileSystem
from isotherm.log.log_dir import LogDir
from isotherm.segment.file_names import CLEANER_OFFSET_CHECKPOINT_NAME
from isotherm.types import Offset, TopicPartition

logger = logging.getLogger(__name__)


class CleanerCheckpoints:
    """The checkpoint files of all directories. Each is read once. Not thread-safe.

    Raises LogDirFailedError if a directory is offline or goes offline.
    """

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self._offsets: dict[LogDir, dict[TopicPartition, Offset]] = {}

    def offset(self, log_dir: LogDir, topic_partition: TopicPartition) -> Offset | None:
        return self._of(log_dir).get(topic_partition)

    def save(
        self,
        log_dir: LogDir,
        topic_partition: TopicPartition,
        offset: Offset | None,
        existing: Container[TopicPartition],
    ) -> None:
        """Set one entry, or remove it (None). Also removes entries of logs that do not exist."""
        before = self._of(log_dir)
        offsets = {
            each: known
            for each, known in before.items()
            if each in existing and each != topic_partition
        }
        if offset is not None:
            offsets[topic_partition] = offset
        if offsets != before:
            # Before the write: if that fails, the directory is offline, and the file is read again
            # by the next process.
            self._offsets[log_dir] = offsets
            with log_dir.errors_fail_it("checkpoint the cleaner"):
                path = log_dir.path / CLEANER_OFFSET_CHECKPOINT_NAME
                self._fs.write_atomically(path, encode_offset_checkpoint(offsets))

    def _of(self, log_dir: LogDir) -> dict[TopicPartition, Offset]:
        if log_dir not in self._offsets:
            with log_dir.errors_fail_it("read the cleaner's checkpoint"):
                self._offsets[log_dir] = self._read(log_dir)
        return self._offsets[log_dir]

    def _read(self, log_dir: LogDir) -> dict[TopicPartition, Offset]:
        path = log_dir.path / CLEANER_OFFSET_CHECKPOINT_NAME
        try:
            return load_offset_checkpoint(self._fs, path)
        except CorruptCheckpointError as error:
            logger.warning("checkpoint is ignored path=%s: %s", path, error)
            return {}
