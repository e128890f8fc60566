"""`__remote_log_metadata` or its audit topic on this broker: a MetadataTopic over local partitions.

remote_tier.py creates the topics through the controller. Their partition count is fixed from then
on, because it determines the partition of a segment's events.

A record is flushed before `append` returns. Kafka relies on replicas instead. Here, a power failure
must not lose the metadata of segments whose local copies have been deleted. Source: Kafka
TopicBasedRemoteLogMetadataManager, ProducerManager, ConsumerTask.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Protocol

from isotherm.broker.partitions.partition import ACKS_LEADER, Partition
from isotherm.broker.tier.remote_metadata_partition_log import (
    metadata_batch,
    read_metadata_columns,
    read_metadata_records,
)
from isotherm.clock import Clock
from isotherm.record.validation import AppendOrigin
from isotherm.remote.metadata.api import MetadataColumns, MetadataTopicRecord, NewMetadataRecord
from isotherm.types import REMOTE_LOG_METADATA_TOPIC, Offset, TimestampMs


class PartitionHost(Protocol):
    """The part of ReplicaManager that the topic needs."""

    def find_partition(
        self, topic: str | None, topic_id: uuid.UUID | None, partition: int
    ) -> Partition: ...


class EmbeddedRemoteMetadataTopic:
    """See `isotherm.remote.metadata.api.ConditionalMetadataTopic`. Any thread may call it."""

    def __init__(
        self,
        host: PartitionHost,
        clock: Clock,
        partition_count: int,
        topic: str = REMOTE_LOG_METADATA_TOPIC,
    ) -> None:
        self._topic = topic
        self._host = host
        self._clock = clock
        self._partition_count = partition_count

    @property
    def partition_count(self) -> int:
        return self._partition_count

    def append(
        self, partition: int, key: bytes | None, value: bytes | None, timestamp_ms: TimestampMs
    ) -> Offset:
        return self.append_all(partition, [NewMetadataRecord(key, value, timestamp_ms)])

    def append_all(self, partition: int, records: Sequence[NewMetadataRecord]) -> Offset:
        return self._append(partition, records, None)

    def append_at(
        self, partition: int, end_offset: Offset, records: Sequence[NewMetadataRecord]
    ) -> None:
        self._append(partition, records, end_offset)

    def _append(
        self, partition: int, records: Sequence[NewMetadataRecord], expected_end: Offset | None
    ) -> Offset:
        hosted = self._partition(partition)
        info = hosted.append(
            metadata_batch(records),
            required_acks=ACKS_LEADER,
            now_ms=self._clock.now_ms(),
            origin=AppendOrigin.COORDINATOR,
            expected_end=expected_end,
        )
        # Without the partition's lock: other appends do not wait for the disk.
        hosted.log.flush()
        return info.first_offset

    def read(
        self, partition: int, start_offset: Offset, max_bytes: int
    ) -> list[MetadataTopicRecord]:
        log = self._partition(partition).log
        return read_metadata_records(log, partition, start_offset, max_bytes)

    def read_columns(self, partition: int, start_offset: Offset, max_bytes: int) -> MetadataColumns:
        return read_metadata_columns(self._partition(partition).log, start_offset, max_bytes)

    def roll(self, partition: int) -> None:
        """Close the active segment, because the cleaner processes only closed segments."""
        self._partition(partition).log.roll()

    def offsets(self, partition: int) -> tuple[Offset, Offset]:
        log = self._partition(partition).log
        return log.log_start_offset, log.high_watermark

    def is_current(self, partition: int) -> bool:
        return True

    def has_all_below(self, partition: int, end_offset: Offset) -> bool:
        return True

    def close(self) -> None:
        """No effect: the broker owns the partitions."""

    def _partition(self, partition: int) -> Partition:
        return self._host.find_partition(self._topic, None, partition)
