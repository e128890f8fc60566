"""The leader epochs of a log whose checkpoint is lost or damaged.

Every batch carries its epoch, so the local segments tell theirs. What lies in the remote tier alone
has epochs that no local batch tells. A leader that did not know them would have the tier's segments
deleted as those of another log: such a partition is offline until the tier has told them.
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
    """`epochs` are those of the checkpoint, or none where it cannot tell them."""

    def __init__(self, fs: FileSystem, directory: Path) -> None:
        self._path = directory / LEADER_EPOCH_CHECKPOINT_NAME
        self._fault: str | None = None
        try:
            self.epochs = LeaderEpochCache(fs, self._path)
        except CorruptCheckpointError as error:
            self.epochs = LeaderEpochCache(fs, self._path, discard=True)
            self._fault = str(error)
        else:
            if not self.epochs.entries:
                self._fault = "it is missing or empty"

    def note(self, header: BatchHeader) -> None:
        """A batch of the log, in order: its epoch begins with it where that is a new one."""
        latest = self.epochs.latest
        known = -1 if latest is None else latest.epoch
        if header.partition_leader_epoch > known:
            self.epochs.assign(header.partition_leader_epoch, header.base_offset)

    def read(self, flushed: Sequence[LogSegment]) -> None:
        """What the first segments tell; those after them are recovered, batch for batch.

        A log that was never flushed has no checkpoint either: nothing is lost then.
        """
        if self._fault is None or not any(segment.size_in_bytes for segment in flushed):
            return
        for segment in flushed:
            for _, header in segment.read_headers(segment.base_offset):
                self.note(header)
        logger.warning(
            "leader epochs are lost and made again from the log's batches file=%s reason='%s'"
            " epochs=%d",
            self._path,
            self._fault,
            len(self.epochs.entries),
        )

    def check_known_from(self, log_start_offset: Offset | None, local_start: Offset) -> None:
        """LineageLostError when the epochs are lost between the start of the log, which is None
        where that is lost too, and that of its local segments."""
        is_local = local_start == 0 or (
            log_start_offset is not None and local_start <= log_start_offset
        )
        if self._fault is not None and not is_local:
            raise LineageLostError(
                f"leader epochs are lost below the first local segment file={self._path}"
                f" local_start_offset={local_start} reason='{self._fault}'",
                self._path,
                local_start,
                self.epochs.entries,
            )
