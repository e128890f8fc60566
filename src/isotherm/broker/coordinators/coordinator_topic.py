"""The topic that stores a coordinator's state: creation on demand, appends, and reads from the log
start.

It is compacted, as in Kafka. Its partition count never changes once it exists, because it
determines the partition of each key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import NamedTuple

from isotherm.broker.coordinators.coordinator_shards import CoordinatorShard, Election
from isotherm.broker.metadata.cluster_metadata import ClusterMetadata
from isotherm.broker.metadata.internal_topics import InternalTopic, TopicCreator
from isotherm.broker.partitions.partition import ACKS_ALL, Partition
from isotherm.broker.partitions.replica_manager import ReplicaManager
from isotherm.errors import (
    CoordinatorNotAvailableError,
    LogDirFailedError,
    NotCoordinatorError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)
from isotherm.log.log_read import FetchIsolation
from isotherm.record.batch import BatchHeader, iterate_batches, verify_batch_crc
from isotherm.record.keyed_records import KeyedRecord, read_keyed_records
from isotherm.record.validation import AppendOrigin
from isotherm.types import Offset, Position, TimestampMs


class PlacedBatch(NamedTuple):
    """A batch, its position in the read bytes, and the offset at which the read started."""

    records: memoryview
    position: Position
    header: BatchHeader
    start_offset: Offset


class CoordinatorTopic:
    """A coordinator's topic. Any thread may call the methods, except `ensure` and `append`."""

    def __init__(
        self,
        metadata: ClusterMetadata,
        replica_manager: ReplicaManager,
        create: TopicCreator,
        topic: InternalTopic,
    ) -> None:
        """`topic` is created on demand, by `ensure`."""
        self.name = topic.name
        self._topic = topic
        self._metadata = metadata
        self._replica_manager = replica_manager
        self._create = create
        self._creating = asyncio.Lock()

    @property
    def partition_count(self) -> int | None:
        """The partition count. None while the topic does not exist."""
        topic = self._metadata.image.topics_by_name.get(self.name)
        return None if topic is None else len(topic.partitions)

    async def ensure(self) -> None:
        """Create the topic unless it exists; see `TopicCreator`."""
        # The lock makes concurrent requests wait for one creation, and for the election after it:
        # the metadata has the topic a little before its shards are elected.
        if self.partition_count is None or self._creating.locked():
            async with self._creating:
                if self.partition_count is None:
                    await self._create(self._topic)

    def append(self, shard: CoordinatorShard, batch: bytearray, now_ms: TimestampMs) -> Offset:
        """Append a batch of the shard's records, and return the offset of its first record.

        The shard notes when the batch is committed. Raises NotCoordinatorError if another broker
        leads the partition, or if this one leads it under an epoch that the shard does not have
        yet. Raises CoordinatorNotAvailableError if the partition cannot be written now. The client
        retries after both.
        Raises RecordTooLargeError and others like any append.
        """
        try:
            partition = self.partition(shard.index)
            term = partition.term
            if shard.is_closed or partition.leader_epoch != shard.epoch:
                raise NotCoordinatorError(
                    f"the coordinator has moved partition={self.name}-{shard.index}"
                    f" epoch={shard.epoch} leader_epoch={partition.leader_epoch}"
                )
            info = partition.append(
                batch, required_acks=ACKS_ALL, now_ms=now_ms, origin=AppendOrigin.COORDINATOR
            )
        except (LogDirFailedError, NotLeaderOrFollowerError) as error:
            raise NotCoordinatorError(
                f"the coordinator has moved partition={self.name}-{shard.index}"
            ) from error
        except (
            NotEnoughReplicasError,
            RequestTimedOutError,
            UnknownTopicOrPartitionError,
        ) as error:
            raise CoordinatorNotAvailableError(
                f"the coordinator's state cannot be written partition={self.name}-{shard.index}"
            ) from error
        shard.note_append(partition.when_committed(info.last_offset + 1, term))
        return info.first_offset

    def is_empty(self, index: int) -> bool:
        """Whether the log has no record. Raises the errors of `partition`."""
        log = self.partition(index).log
        return log.log_end_offset == log.log_start_offset

    def note_loaded(self, shard: CoordinatorShard) -> None:
        """Make a shard that was folded to its log's end wait until all of that is committed.

        Raises NotLeaderOrFollowerError if the partition has another leader epoch by now: folded
        records may have been truncated, and the shard will be notified of the new epoch soon.
        """
        partition = self.partition(shard.index)
        term = partition.term
        if partition.leader_epoch != shard.epoch:
            raise NotLeaderOrFollowerError(
                f"the coordinator has moved during its load partition={self.name}-{shard.index}"
                f" epoch={shard.epoch} leader_epoch={partition.leader_epoch}"
            )
        shard.note_append(partition.when_committed(partition.log.log_end_offset, term))

    def read_batches(
        self, index: int, buffer_size: int, election: Election | None = None
    ) -> Iterator[PlacedBatch]:
        """Every batch from the log start to the log end, in reads of `buffer_size` bytes.

        The first batch may start below the log start offset. Raises LoadAbandonedError before a
        read if `election` is over, and CorruptRecordError for a batch whose CRC is wrong: damaged
        records may still be readable.
        """
        log = self.partition(index).log
        offset, end_offset = log.log_start_offset, log.log_end_offset
        while offset < end_offset:
            if election is not None:
                election.check_current()
            read = log.read(
                offset, buffer_size, isolation=FetchIsolation.LOG_END, min_one_message=True
            )
            next_offset = offset
            for position, header in iterate_batches(read.records):
                next_offset = header.next_offset
                verify_batch_crc(read.records, position, header)
                yield PlacedBatch(read.records, position, header, offset)
            # There is no complete batch, so another read would not advance either.
            if next_offset == offset:
                return
            offset = next_offset

    def read_records(
        self, index: int, buffer_size: int, election: Election | None = None
    ) -> Iterator[KeyedRecord]:
        """The records from the log start to the log end, without those of control batches. Raises
        as `read_batches`."""
        for read, position, header, start_offset in self.read_batches(index, buffer_size, election):
            if header.is_control:
                continue
            for record in read_keyed_records(read, position, header):
                if record[0] >= start_offset:
                    yield record

    def partition(self, index: int) -> Partition:
        """The local partition.

        Raises UnknownTopicOrPartitionError or NotLeaderOrFollowerError if there is none.
        """
        return self._replica_manager.find_partition(self.name, None, index)
