"""Partitions with damaged files that the broker cannot repair.

Only such a partition is offline; the broker serves the others. Its files are not touched until they
are repaired and the broker restarts, or the topic is deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from isotherm.errors import CorruptDataError, CorruptLogError
from isotherm.log.log_dir import LogDir, PartitionDirectory
from isotherm.segment.leader_epoch_checkpoint import EpochEntry
from isotherm.types import REMOTE_LOG_METADATA_TOPICS, Offset, TopicPartition

logger = logging.getLogger(__name__)

RESTORE_HINT = "restore the file, or delete the topic, and start again"
GIVE_UP_HINT = (
    "restore the file and start again; to give up what is missing, see docs/operations.md,"
    " damaged files"
)
_METADATA_HINT = (
    "nothing of its segments is copied or deleted meanwhile; restore the file, or make the tier's"
    " metadata again from the bucket with isotherm pipeline rebuild"
)


class LineageLostError(CorruptLogError):
    """The leader epochs below the first local segment are in the remote tier only.

    `local_epochs` are those of the local batches, which lie in [`local_start`, `local_end`).
    """

    def __init__(
        self,
        message: str,
        path: Path,
        local_start: Offset,
        local_end: Offset,
        local_epochs: tuple[EpochEntry, ...],
    ) -> None:
        super().__init__(message, "the remote tier has to be reachable")
        self.path = path
        self.local_start = local_start
        self.local_end = local_end
        self.local_epochs = local_epochs


@dataclass(frozen=True, slots=True)
class OfflineLog:
    place: PartitionDirectory
    reason: CorruptDataError

    @property
    def topic_partition(self) -> TopicPartition:
        return self.place.topic_partition

    @property
    def log_dir(self) -> LogDir:
        return self.place.log_dir

    @property
    def directory(self) -> Path:
        return self.place.path

    def report(self) -> None:
        """Log one line with the partition, the damaged file, the fault, and what to do."""
        if isinstance(self.reason, LineageLostError):
            logger.warning(
                "partition is offline until its epochs are restored from the remote tier"
                " partition=%s: %s",
                self.topic_partition,
                self.reason,
            )
            return
        hint = self.reason.hint if isinstance(self.reason, CorruptLogError) else RESTORE_HINT
        if self.topic_partition.topic in REMOTE_LOG_METADATA_TOPICS:
            hint = _METADATA_HINT
        logger.error(
            "partition is offline partition=%s dir=%s: %s hint='%s'",
            self.topic_partition,
            self.directory,
            self.reason,
            hint,
        )


def partitions_of(offline: Iterable[OfflineLog], log_dir: LogDir) -> tuple[TopicPartition, ...]:
    """The offline partitions with files in `log_dir`."""
    return tuple(log.topic_partition for log in offline if log.log_dir is log_dir)
