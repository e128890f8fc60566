"""The topic that stores a coordinator's state: created on demand, appended to, read from the start.

It is compacted, as in Kafka. Its partition count is fixed once it exists, because it determines the
partition of each key.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from isotherm.broker.coordinator_shards import CoordinatorShard
from isotherm.broker.metadata.cluster_metadata import ClusterMetadata
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
from isotherm.record.batch import BatchHeader, iterate_batches
from isotherm.record.validation import AppendOrigin
from isotherm.types import Offset, Position, TimestampMs


@dataclass(frozen=True, slots=True, kw_only=True)
class InternalTopic:
    """How a coordinator's topic is created. The last two fields are for topics that are replicated."""

    name: str
    partitions: int
    configs: Mapping[str, str] = field(default_factory=dict)
    replication_factor: int = 1
    replica_configs: Mapping[str, str] = field(default_factory=dict)


class TopicCreator(Protocol):
    def __call__(self, topic: InternalTopic) -> Awaitable[None]:
        """Create the topic unless it exists. Event loop thread only.

        The embedded controller's creator returns when the topic is led here. The creator of a
        cluster member returns when it has asked the cluster's controller, which may take the topic
        into the metadata later. Raises IsothermError if it cannot be created.
        """


class PlacedBatch(NamedTuple):
    """A batch, its position in what was read, and the offset at which the read started."""

    records: memoryview
    position: Position
    header: BatchHeader
    start_offset: Offset


class CoordinatorTopic:
    """All methods except `ensure` and `append` may be called from any thread."""

    def __init__(
        self,
        metadata: ClusterMetadata,
        replica_manager: ReplicaManager,
        create: TopicCreator,
        topic: InternalTopic,
    ) -> None:
        """`topic` is created when it is first needed."""
        self.name = topic.name
        self._topic = topic
        self._metadata = metadata
        self._replica_manager = replica_manager
        self._create = create

    @property
    def partition_count(self) -> int | None:
        """None while there is no such topic."""
        topic = self._metadata.image.topics_by_name.get(self.name)
        return None if topic is None else len(topic.partitions)

    async def ensure(self) -> None:
        """Create the topic unless it exists; see `TopicCreator`."""
        if self.partition_count is None:
            await self._create(self._topic)

    def append(self, shard: CoordinatorShard, batch: bytearray, now_ms: TimestampMs) -> Offset:
        """Append a batch of the shard's records; returns the offset of its first record.

        The shard learns when it is committed. Raises NotCoordinatorError if another broker leads the
        partition, or this one under an epoch that the shard does not have yet, and
        CoordinatorNotAvailableError if it cannot be written now: the client tries again after both.
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
        """Whether the log has no record. Raises what `partition` does."""
        log = self.partition(index).log
        return log.log_end_offset == log.log_start_offset

    def note_loaded(self, shard: CoordinatorShard) -> None:
        """Tell a shard that was folded to its log's end when all of that is committed.

        NotLeaderOrFollowerError if the partition has another leader epoch by now: what was folded may
        have been truncated, and the news of it is on its way.
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
        self, index: int, buffer_size: int, check_wanted: Callable[[], None] = lambda: None
    ) -> Iterator[PlacedBatch]:
        """Every batch from the log start to the log end, in reads of `buffer_size` bytes.

        The first batch may start below the log start. `check_wanted` is called before each read.
        """
        log = self.partition(index).log
        offset, end_offset = log.log_start_offset, log.log_end_offset
        while offset < end_offset:
            check_wanted()
            read = log.read(
                offset, buffer_size, isolation=FetchIsolation.LOG_END, min_one_message=True
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
        return self._replica_manager.find_partition(self.name, None, index)
