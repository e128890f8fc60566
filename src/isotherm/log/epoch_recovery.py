"""Recovers the leader epochs of a log whose checkpoint is lost or damaged.

Every batch has its leader epoch, so the local batches give the epochs of the local log. The epochs
of offsets that are in the remote tier only cannot be found locally. A leader without them would
delete the remote segments as those of another lineage. Such a partition stays offline until they
are restored from the remote tier.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from isotherm.errors import CorruptCheckpointError
from isotherm.log.fs import FileSystem
from isotherm.log.leader_epoch_cache import LeaderEpochCache
from isotherm.log.log_segment import LogSegment
from isotherm.log.offline_logs import LineageLostError
from isotherm.record.batch import BatchHeader
from isotherm.segment.file_names import LEADER_EPOCH_CHECKPOINT_NAME
from isotherm.types import Offset

logger = logging.getLogger(__name__)


class EpochRecovery:
    """`epochs` are those of the checkpoint, or empty if it is lost."""

    def __init__(self, fs: FileSystem, directory: Path) -> None:
        self._path = directory / LEADER_EPOCH_CHECKPOINT_NAME
        self._fault: str | None = None
        try:
            self.epochs = LeaderEpochCache(fs, self._path)
        except CorruptCheckpointError as error:
            self.epochs = LeaderEpochCache(fs, self._path, discard=True)
            self._fault = str(error)
        else:
            # Kafka creates the file empty, so an empty file does not prove that nothing was lost.
            if not self.epochs.entries:
                self._fault = "it is missing or empty"

    def note(self, header: BatchHeader) -> None:
        """Apply a batch, in the order of the log. A higher epoch starts at this batch."""
        latest = self.epochs.latest
        latest_epoch = -1 if latest is None else latest.epoch
        if header.partition_leader_epoch > latest_epoch:
            self.epochs.assign(header.partition_leader_epoch, header.base_offset)

    def read(self, flushed: Sequence[LogSegment]) -> None:
        """Read the epochs of the first segments. The later ones are recovered batch by batch.

        A log that was never flushed has no checkpoint, and lost nothing.
        """
        if self._fault is None or not any(segment.size_in_bytes for segment in flushed):
            return
        for segment in flushed:
            # Without CRCs: flushed batches are not recovered, and their readers check them.
            for sound in segment.scan_sound(verify_crc=False):
                for header in sound.epoch_starts():
                    self.note(header)
        logger.warning(
            "leader epochs are lost and made again from the log's sound file=%s reason='%s'"
            " epochs=%d",
            self._path,
            self._fault,
            len(self.epochs.entries),
        )

    def check_known_from(
        self, log_start_offset: Offset | None, local_start: Offset, local_end: Offset
    ) -> None:
        """Raise LineageLostError if epochs below the first local segment are lost.

        `log_start_offset` is None if it is lost as well.
        """
        is_local = local_start == 0 or (
            log_start_offset is not None and local_start <= log_start_offset
        )
        if self._fault is not None and not is_local:
            raise LineageLostError(
                f"leader epochs are lost below the first local segment file={self._path}"
                f" local_start_offset={local_start} reason='{self._fault}'",
                self._path,
                local_start,
                local_end,
                self.epochs.entries,
            )
