"""The batches that a leader sent to a follower, checked and ready to be appended. Pure.

Batches stay bytes: offsets, epochs and CRCs are the leader's, so that the follower's log equals the
leader's byte for byte. Python works per run of batches, and per batch only where the state of a
producer needs it. Source: Kafka UnifiedLog.analyzeAndValidateRecords with AppendOrigin.REPLICATION.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from isotherm.errors import OffsetsOutOfOrderError
from isotherm.log.producer_state import BATCHES_KEPT_MAX
from isotherm.record.batch import BatchHeader, read_batch_header
from isotherm.record.batch_header import CONTROL_FLAG, TRANSACTIONAL_FLAG
from isotherm.record.batch_table import leader_epochs, read_batch_table, verify_crcs
from isotherm.record.control import read_control_record
from isotherm.segment.offset_index import RELATIVE_OFFSET_MAX
from isotherm.types import (
    NO_PRODUCER_ID,
    LeaderEpoch,
    Offset,
    Position,
    TimestampMs,
    TopicPartition,
)

if TYPE_CHECKING:
    from isotherm.record.batch_table import BatchTable, BoolArray, Int64Array
    from isotherm.record.filter import WrittenTable

logger = logging.getLogger(__name__)


class FollowerAppendInfo(NamedTuple):
    """The result of an append by a follower. Without a batch, `size` is 0 and the others are -1.

    If `needs_flush` is set, flush.messages requires a flush, which the caller does.
    """

    first_offset: Offset
    last_offset: Offset
    last_leader_epoch: LeaderEpoch
    size: int
    needs_flush: bool = False


NOTHING_APPENDED = FollowerAppendInfo(-1, -1, -1, 0)


class FollowerRecords(NamedTuple):
    """The batches to append: at least one unless the answer had none. `epochs` has the leader
    epoch of each batch."""

    records: memoryview
    batches: BatchTable
    epochs: Int64Array

    @property
    def first_offset(self) -> Offset:
        return int(self.batches["base_offset"][0])

    @property
    def last_offset(self) -> Offset:
        return int(self.batches["base_offset"][-1] + self.batches["last_offset_delta"][-1])

    @property
    def max_timestamp(self) -> TimestampMs:
        return int(self.batches["max_timestamp"].max())

    def starts_of_epochs(self) -> Iterator[tuple[LeaderEpoch, Offset]]:
        """Each epoch of the batches, with its first offset in them."""
        starts = np.flatnonzero(np.diff(self.epochs, prepend=-1))
        for row in starts.tolist():
            yield int(self.epochs[row]), int(self.batches["base_offset"][row])

    def pieces(self, size_max: int) -> Iterator[FollowerRecords]:
        """The batches in runs that a segment can hold: of `size_max` bytes, or one batch, and of
        offsets that fit the indexes of one segment."""
        ends = self.batches["position"] + self.batches["size"]
        last_offsets = self.batches["base_offset"] + self.batches["last_offset_delta"]
        start = 0
        while start < len(ends):
            position = int(self.batches["position"][start])
            # Positions and offsets rise (`check_follower_records`), so a binary search finds each
            # end.
            fitting = int(ends.searchsorted(position + size_max, side="right"))
            base_offset = int(self.batches["base_offset"][start])
            near = int(last_offsets.searchsorted(base_offset + RELATIVE_OFFSET_MAX, side="right"))
            end = max(start + 1, min(fitting, near))
            yield self._slice(start, end)
            start = end

    def _slice(self, start: int, end: int) -> FollowerRecords:
        if start == 0 and end == len(self.batches):
            return self
        # A copy: the positions become relative to the piece, and other pieces use the table still.
        batches = self.batches[start:end].copy()
        position = int(batches["position"][0])
        size = int(batches["size"].sum())
        batches["position"] -= position
        return FollowerRecords(
            self.records[position : position + size], batches, self.epochs[start:end]
        )

    def written(self) -> WrittenTable:
        """The batches as the indexes of a segment need them."""
        from isotherm.kernels.filter import WRITTEN

        table = np.zeros(len(self.batches), dtype=WRITTEN)
        for name in ("position", "size", "base_offset", "max_timestamp"):
            table[name] = self.batches[name]
        table["last_offset"] = self.batches["base_offset"] + self.batches["last_offset_delta"]
        return table

    def producer_batches(self) -> list[tuple[Position, BatchHeader]]:
        """The batches that change the state of producers, in order.

        Of a producer's plain batches the last ones are enough: its state keeps no others. Raises
        CorruptRecordError for a control batch that cannot be read, before anything is written.
        """
        rows = np.flatnonzero(_changes_producers(self.batches))
        headers = []
        for position in self.batches["position"][rows].tolist():
            header = read_batch_header(self.records, position)
            if header.is_control:
                read_control_record(self.records, position, header)
            headers.append((position, header))
        return headers


def check_follower_records(
    records: memoryview, leader_epoch: LeaderEpoch, topic_partition: TopicPartition
) -> FollowerRecords:
    """The complete batches that a follower may append; a last one that is cut off is left out.

    `leader_epoch` is the epoch of the fetch request. A batch of a later epoch ends the records: the
    answer may have been sent after the sender lost its leadership (KAFKA-18723). Raises
    CorruptRecordError for a wrong header or CRC (the caller fetches again), and
    OffsetsOutOfOrderError if offsets do not rise.
    """
    batches, _ = read_batch_table(records)
    epochs = leader_epochs(records, batches)
    later = np.flatnonzero(epochs > leader_epoch)
    if len(later):
        row = int(later[0])
        logger.info(
            "batches of a later leader epoch are not appended partition=%s base_offset=%d"
            " epoch=%d leader_epoch_of_request=%d",
            topic_partition,
            batches["base_offset"][row],
            epochs[row],
            leader_epoch,
        )
        # All later batches go too: the log must have no gap.
        batches, epochs = batches[:row], epochs[:row]
    last_offsets = batches["base_offset"] + batches["last_offset_delta"]
    wrong = np.flatnonzero(batches["base_offset"][1:] <= last_offsets[:-1])
    if len(wrong):
        row = int(wrong[0]) + 1
        raise OffsetsOutOfOrderError(
            f"offsets of fetched batches do not rise partition={topic_partition}"
            f" base_offset={batches['base_offset'][row]} after={last_offsets[row - 1]}"
        )
    # Last: it costs the most, for each byte, and batches that are left out need none.
    verify_crcs(records, batches)
    size = int(batches["position"][-1] + batches["size"][-1]) if len(batches) else 0
    return FollowerRecords(records[:size], batches, epochs)


def _changes_producers(batches: BatchTable) -> BoolArray:
    producer_ids = batches["producer_id"]
    changes: BoolArray = producer_ids > NO_PRODUCER_ID
    is_plain = changes & (batches["attributes"] & (TRANSACTIONAL_FLAG | CONTROL_FLAG) == 0)
    plain = np.flatnonzero(is_plain)
    if len(plain) <= BATCHES_KEPT_MAX:
        return changes
    # Sorted by producer, then in log order. A row is left out if the row BATCHES_KEPT_MAX after it
    # is of the same producer.
    ordered = plain[np.argsort(producer_ids[plain], kind="stable")]
    ids = producer_ids[ordered]
    changes[ordered[:-BATCHES_KEPT_MAX][ids[:-BATCHES_KEPT_MAX] == ids[BATCHES_KEPT_MAX:]]] = False
    return changes
