"""Lets a log delete a local segment only while the remote tier holds its records.

The counterpart of `RemoteTierAccess.delete_segment`: both check and decide under the write lock of
the partition's metadata. So a local segment is deleted only if, at that moment, finished remote
segments hold its records in the epochs of this log's lineage. The deletion of such a remote segment
can begin only afterwards, and then it does not rely on the local copy.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from isotherm.errors import IsothermError
from isotherm.log.partition_log import PartitionLog
from isotherm.remote.history.lineage import epoch_spans, first_recorded_offset
from isotherm.remote.tasks.tier import RemoteTierAccess
from isotherm.segment.leader_epochs import epoch_end_offset, epoch_for_offset
from isotherm.types import Offset, TopicIdPartition

_logger = logging.getLogger(__name__)


class RemoteCopiesOfLog:
    """See `isotherm.log.retention.RemoteCopies`."""

    def __init__(
        self, log: PartitionLog, partition: TopicIdPartition, tier: RemoteTierAccess
    ) -> None:
        self._log = log
        self._partition = partition
        self._tier = tier

    @contextmanager
    def held(self, start_offset: Offset, end_offset: Offset) -> Iterator[Offset]:
        with ExitStack() as block:
            try:
                # Held until the caller has deleted: otherwise the deletion of a remote copy could
                # begin between the look-up and the local deletion.
                block.enter_context(self._tier.exclusive.exclusively(self._partition))
                held = self._held_to(start_offset, end_offset)
            except IsothermError as error:
                _logger.info(
                    "local segments are kept: the remote tier cannot confirm its copies"
                    " partition=%s: %s",
                    self._partition,
                    error,
                )
                held = start_offset
            yield held

    def _held_to(self, start_offset: Offset, end_offset: Offset) -> Offset:
        """Compare epoch by epoch: records of the same epoch and offset are the same in both tiers.
        Readers rely on the same rule."""
        lineage = self._log.leader_epochs.entries
        log_start_offset = self._log.log_start_offset
        first_offset, offset = first_recorded_offset(lineage, log_start_offset), start_offset
        # Not where the log start alone is above: a crash may bring back the one before.
        if first_offset > log_start_offset:
            offset = min(max(start_offset, first_offset), end_offset)
        while offset < end_offset and (entry := epoch_for_offset(lineage, offset)) is not None:
            segment = self._tier.metadata.remote_log_segment_metadata(
                self._partition, entry.epoch, offset
            )
            if segment is None:
                break
            # The look-up found the segment in this epoch, so it has a span of it.
            spans = {span.epoch: span for span in epoch_spans(segment)}
            offset = min(
                spans[entry.epoch].end_offset_inclusive + 1,
                epoch_end_offset(lineage, entry.epoch, self._log.log_end_offset),
            )
        return offset
