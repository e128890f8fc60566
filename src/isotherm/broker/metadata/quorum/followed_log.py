"""An observer's copy of `__cluster_metadata-0`: the leader's batches as bytes, and snapshots.

Appends are not flushed, because records that a crash loses are fetched again. After a restart no
record of the log counts as committed before a leader has sent its high watermark.
Source: Kafka KafkaRaftLog. Reasons: docs/decisions/0098.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

from isotherm.broker.metadata.cluster_metadata_topic import BATCH_SIZE_MAX
from isotherm.broker.metadata.quorum.metadata_fetch import LogPosition, SnapshotId
from isotherm.broker.metadata.quorum.snapshots import PartialSnapshot, SnapshotFiles
from isotherm.errors import CorruptMetadataError
from isotherm.log.log_read import FetchIsolation
from isotherm.log.partition_log import PartitionLog
from isotherm.types import LeaderEpoch, Offset

logger = logging.getLogger(__name__)


class FollowedLog:
    """For one thread. Raises LogDirFailedError if the disk fails."""

    def __init__(self, log: PartitionLog, snapshots: SnapshotFiles) -> None:
        """Open the log with its latest snapshot.

        The log restarts at the snapshot's end if they leave a gap.
        """
        self._log = log
        self.snapshots = snapshots
        with log.log_dir.errors_fail_it("list the snapshots of the cluster's metadata"):
            self.snapshot = snapshots.latest()
            snapshots.clean_up(self.snapshot)
        start = self.snapshot.end_offset if self.snapshot is not None else 0
        # A crash between a fetched snapshot and the restart of the log (`go_on_after`) leaves
        # a log that ends before it.
        if not log.log_start_offset <= start <= log.log_end_offset:
            if log.log_start_offset > start:
                logger.warning(
                    "metadata log is fetched anew: no snapshot has its beginning log_start=%d"
                    " snapshot=%d",
                    log.log_start_offset,
                    start,
                )
            self._begin_at(start)
        self._known_high_watermark = False
        self.bytes_since_snapshot = log.size_in_bytes
        """The bytes of batches after the latest snapshot.

        Approximate: after a start it is the log's size.
        """

    @property
    def position(self) -> LogPosition:
        latest = self._log.leader_epochs.latest
        snapshot_epoch = self.snapshot.epoch if self.snapshot is not None else 0
        is_empty = self._log.log_end_offset == self._log.log_start_offset
        epoch = snapshot_epoch if latest is None or is_empty else latest.epoch
        return LogPosition(
            self._log.log_end_offset,
            epoch,
            self._log.high_watermark if self._known_high_watermark else -1,
        )

    @property
    def high_watermark(self) -> Offset:
        return self._log.high_watermark

    def append(self, records: memoryview, epoch: LeaderEpoch, high_watermark: Offset) -> None:
        """Append batches of the leader of `epoch`.

        `high_watermark` is the leader's; -1 if it is unknown.
        """
        if records:
            self._log.append_as_follower(records, epoch)
            self.bytes_since_snapshot += len(records)
        if high_watermark >= 0:
            # The leader's may lie beyond the records that were fetched.
            committed = min(high_watermark, self._log.log_end_offset)
            if committed > self._log.high_watermark:
                self._log.update_high_watermark(committed)
            self._known_high_watermark = True

    def truncate(self, epoch: LeaderEpoch, end_offset: Offset) -> None:
        """Drop the records that the leader lacks. In the leader's log `epoch` ends at `end_offset`.

        Raises CorruptMetadataError if committed records would be dropped.
        """
        own = self._log.leader_epochs.end_offset_for(epoch, self._log.log_end_offset)
        own_end = self._log.log_end_offset if own.end_offset < 0 else own.end_offset
        # `epoch` may end earlier in this log than in the leader's.
        target = min(own_end, end_offset)
        committed = self._log.high_watermark if self._known_high_watermark else 0
        if self.snapshot is not None:
            committed = max(committed, self.snapshot.end_offset)
        if target < committed:
            raise CorruptMetadataError(
                "the quorum's log lacks metadata that was committed: it has lost records, or is"
                f" another one leader_end_offset={end_offset} epoch={epoch} committed={committed}"
            )
        logger.info("metadata log is truncated offset=%d epoch=%d", target, epoch)
        self._log.truncate_to(target)

    @contextlib.contextmanager
    def partial_snapshot(self, snapshot_id: SnapshotId) -> Iterator[PartialSnapshot]:
        """A new snapshot. It is discarded unless `finish` is called within the context."""
        with self._log.log_dir.errors_fail_it("write a snapshot of the cluster's metadata"):
            partial = self.snapshots.begin(snapshot_id)
            try:
                yield partial
            finally:
                partial.discard()

    def go_on_after(self, snapshot_id: SnapshotId) -> None:
        """Restart the log at the end of a snapshot that was fetched from the leader."""
        self._begin_at(snapshot_id.end_offset)
        self._keep_only(snapshot_id)

    def begin_after_own(self, snapshot_id: SnapshotId) -> None:
        """Move the log start to the end of a snapshot that this node wrote: older batches may be
        deleted.
        """
        # Retention deletes closed segments only, so the active one is rolled first.
        self._log.roll()
        self._log.maybe_increment_log_start_offset(snapshot_id.end_offset)
        self._keep_only(snapshot_id)

    def _keep_only(self, snapshot_id: SnapshotId) -> None:
        self.snapshot = snapshot_id
        self.bytes_since_snapshot = 0
        with self._log.log_dir.errors_fail_it("remove older snapshots"):
            self.snapshots.clean_up(snapshot_id)

    def committed(self, offset: Offset) -> memoryview:
        """Committed batches from `offset` on, up to about 8 MiB; empty if there are none."""
        read = self._log.read(
            offset,
            BATCH_SIZE_MAX,
            isolation=FetchIsolation.HIGH_WATERMARK,
            min_one_message=True,
        )
        return read.records

    def _begin_at(self, offset: Offset) -> None:
        self._log.truncate_fully_and_start_at(offset)
        self._known_high_watermark = False
