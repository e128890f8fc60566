"""`__remote_log_metadata` in this broker: MetadataTopic over its own partitions.

The topic is made through the controller when it is not there, as Kafka makes it: 50 partitions
unless configured, cleanup.policy=delete, unlimited retention, no tiering. Once made, its partition
count is fixed: it decides which partition holds a segment's events.

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

    def __init__(self, replica_manager: ReplicaManager, clock: Clock, partition_count: int) -> None:
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
        read = self._partition(partition).log.read(
            start_offset,
            max_bytes,
            isolation=FetchIsolation.HIGH_WATERMARK,
            min_one_message=True,
        )
        return [
            MetadataTopicRecord(
                partition, record.offset, record.timestamp_ms, record.key, record.value
            )
            for position, header in iterate_batches(read.records)
            if not header.is_control
            for record in read_records(read.records, position, header)
            if record.offset >= start_offset
        ]

    def offsets(self, partition: int) -> tuple[Offset, Offset]:
        log = self._partition(partition).log
        return log.log_start_offset, log.high_watermark

    def close(self) -> None:
        """The partitions belong to the broker."""

    def _partition(self, partition: int) -> Partition:
        return self._replica_manager.find_partition(REMOTE_LOG_METADATA_TOPIC, None, partition)
