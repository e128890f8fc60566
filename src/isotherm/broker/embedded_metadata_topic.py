"""`__remote_log_metadata`, or its audit topic, in this broker: MetadataTopic over its own partitions.

The topics are made through the controller when they are not there (remote_tier.py). Once made, their
partition count is fixed: it decides which partition holds a segment's events.

A record is on disk before `append` returns. Kafka leaves that to its replicas; here it is what
keeps a power cut from forgetting segments whose local copies have been deleted.
Source: Kafka TopicBasedRemoteLogMetadataManager, ProducerManager, ConsumerTask.
"""

from __future__ import annotations

from isotherm.broker.partition import Partition
from isotherm.broker.replica_manager import ReplicaManager
from isotherm.clock import Clock
from isotherm.log.log_read import FetchIsolation
from isotherm.record.batch import build_batch, iterate_batches, read_records
from isotherm.record.validation import AppendOrigin
from isotherm.remote.metadata.api import MetadataTopicRecord
from isotherm.types import REMOTE_LOG_METADATA_TOPIC, Offset, TimestampMs

# One replica has it: the record is on disk, see above.
ACKS_LEADER = 1


class EmbeddedMetadataTopic:
    """See `isotherm.remote.metadata.api.MetadataTopic`. Any thread."""

    def __init__(
        self,
        replica_manager: ReplicaManager,
        clock: Clock,
        partition_count: int,
        topic: str = REMOTE_LOG_METADATA_TOPIC,
    ) -> None:
        self._topic = topic
        self._replica_manager = replica_manager
        self._clock = clock
        self._partition_count = partition_count

    @property
    def partition_count(self) -> int:
        return self._partition_count

    def append(
        self, partition: int, key: bytes | None, value: bytes | None, timestamp_ms: TimestampMs
    ) -> Offset:
        batch = build_batch([(timestamp_ms, key, value, ())])
        hosted = self._partition(partition)
        info = hosted.append(
            batch,
            required_acks=ACKS_LEADER,
            now_ms=self._clock.now_ms(),
            origin=AppendOrigin.COORDINATOR,
        )
        hosted.log.flush()
        return info.first_offset

    def read(
        self, partition: int, start_offset: Offset, max_bytes: int
    ) -> list[MetadataTopicRecord]:
        log = self._partition(partition).log
        position = start_offset
        while True:
            read = log.read(
                position, max_bytes, isolation=FetchIsolation.HIGH_WATERMARK, min_one_message=True
            )
            records = _records(partition, read.records, start_offset)
            position = _end_offset(read.records, position)
            # The cleaner leaves batches without records, and these are not the end.
            if records or not read.records:
                return records

    def offsets(self, partition: int) -> tuple[Offset, Offset]:
        log = self._partition(partition).log
        return log.log_start_offset, log.high_watermark

    def close(self) -> None:
        """The partitions belong to the broker."""

    def _partition(self, partition: int) -> Partition:
        return self._replica_manager.find_partition(self._topic, None, partition)


def _records(
    partition: int, batches: memoryview, start_offset: Offset
) -> list[MetadataTopicRecord]:
    return [
        MetadataTopicRecord(partition, record.offset, record.timestamp_ms, record.key, record.value)
        for position, header in iterate_batches(batches)
        if not header.is_control
        for record in read_records(batches, position, header)
        if record.offset >= start_offset
    ]


def _end_offset(batches: memoryview, start_offset: Offset) -> Offset:
    return max((header.next_offset for _, header in iterate_batches(batches)), default=start_offset)
