"""The topic that stores a coordinator's state: created on demand, appended to, read from the start.

It is created through the controller and compacted, as in Kafka. Its partition count is fixed from
then on, because it determines the partition of each key.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from isotherm.broker.controller.controller import Controller
from isotherm.broker.controller.topic_rules import NewTopic
from isotherm.broker.partitions.partition import ACKS_LEADER, Partition
from isotherm.broker.partitions.replica_manager import ReplicaManager
from isotherm.errors import (
    CoordinatorNotAvailableError,
    LogDirFailedError,
    NotLeaderOrFollowerError,
    UnknownTopicOrPartitionError,
)
from isotherm.log.log_read import FetchIsolation
from isotherm.record.batch import BatchHeader, iterate_batches
from isotherm.record.validation import AppendOrigin
from isotherm.types import Offset, Position, TimestampMs


class PlacedBatch(NamedTuple):
    """A batch, its position in what was read, and the offset at which the read started."""

    records: memoryview
    position: Position
    header: BatchHeader
    start_offset: Offset


class CoordinatorTopic:
    """All methods except `create` may be called from any thread."""

    def __init__(self, name: str, controller: Controller, replica_manager: ReplicaManager) -> None:
        self._name = name
        self._controller = controller
        self._replica_manager = replica_manager

    @property
    def partition_count(self) -> int | None:
        """None while there is no such topic."""
        topic = self._controller.image.topics_by_name.get(self._name)
        return None if topic is None else len(topic.partitions)

    def create(self, partitions: int, *, compression_type: str, segment_bytes: int) -> bool:
        """Create the topic; False if it exists. Control thread only."""
        if self.partition_count is not None:
            return False
        configs = {
            "cleanup.policy": "compact",
            "compression.type": compression_type,
            "segment.bytes": str(segment_bytes),
        }
        new = NewTopic(name=self._name, num_partitions=partitions, configs=configs)
        (created,) = self._controller.create_topics([new])
        if created.error is not None:
            raise created.error
        return True

    def append(self, index: int, batch: bytearray, now_ms: TimestampMs) -> Offset:
        """Append a batch; returns the offset of its first record.

        Raises CoordinatorNotAvailableError if the partition cannot be written: the client looks for
        its coordinator again. Raises RecordTooLargeError and others like any append.
        """
        try:
            info = self.partition(index).append(
                batch, required_acks=ACKS_LEADER, now_ms=now_ms, origin=AppendOrigin.COORDINATOR
            )
        except (
            LogDirFailedError,
            NotLeaderOrFollowerError,
            UnknownTopicOrPartitionError,
        ) as error:
            raise CoordinatorNotAvailableError(
                f"the coordinator's state cannot be written partition={self._name}-{index}"
            ) from error
        return info.first_offset

    def read_batches(self, index: int, buffer_size: int) -> Iterator[PlacedBatch]:
        """Every batch from the log start to the high watermark, in reads of `buffer_size` bytes.

        The first batch may start below the log start.
        """
        log = self.partition(index).log
        offset, end_offset = log.log_start_offset, log.high_watermark
        while offset < end_offset:
            read = log.read(
                offset, buffer_size, isolation=FetchIsolation.HIGH_WATERMARK, min_one_message=True
            )
            next_offset = offset
            for position, header in iterate_batches(read.records):
                next_offset = header.next_offset
                yield PlacedBatch(read.records, position, header, offset)
            # No complete batch: another read would not advance either.
            if next_offset == offset:
                return
            offset = next_offset

    def partition(self, index: int) -> Partition:
        """Raises UnknownTopicOrPartitionError or NotLeaderOrFollowerError if it is not here."""
        return self._replica_manager.find_partition(self._name, None, index)
