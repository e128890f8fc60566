"""`__remote_log_metadata` of a cluster: the MetadataTopic of a member of a KRaft quorum.

The topic is replicated like any other. Events are appended at the leader of their metadata
partition with acks=all. Records are read from this broker's replica if it has one, because that
costs no request, and else from the leader. A replica may be behind. Therefore `offsets` asks the
leader, and a reader that needs all records compares its position with that end.

Errors are those of any request to another broker. The caller repeats a call whose outcome it does
not know: an event that is appended twice leads to the same state. A conditional append is sent to
the leader as a batch that contains its condition (conditional_batch.py). Source: Kafka
TopicBasedRemoteLogMetadataManager, ProducerManager, ConsumerTask.
"""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from isotherm.broker.partitions.partition import Partition
from isotherm.broker.partitions.replica_manager import ReplicaManager
from isotherm.broker.peers.leader_requests import LeaderRequests
from isotherm.broker.tier.remote_metadata_partition_log import (
    columns_of_batches,
    metadata_batch,
    read_metadata_columns,
    read_metadata_records,
    records_of_batches,
)
from isotherm.errors import (
    ConfigError,
    IsothermError,
    LogEndMovedError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    OffsetOutOfRangeError,
    RemoteStorageNotReadyError,
    RequestTimedOutError,
    UnknownTopicOrPartitionError,
)
from isotherm.protocol.api_keys import ApiKey, request_class, response_class
from isotherm.protocol.code_names import code_name
from isotherm.protocol.entities import entity_of
from isotherm.record.conditional_batch import set_condition
from isotherm.remote.metadata.api import MetadataColumns, MetadataTopicRecord, NewMetadataRecord
from isotherm.types import REMOTE_LOG_METADATA_TOPIC, Offset, TimestampMs, TopicPartition

# Versions that use topic names rather than ids, and that brokers of Kafka 3.x and 4.x serve.
_PRODUCE = request_class(ApiKey.PRODUCE, 9)
_FETCH = request_class(ApiKey.FETCH, 12)
_LIST_OFFSETS = request_class(ApiKey.LIST_OFFSETS, 7)
_FETCH_RESPONSE = response_class(ApiKey.FETCH, 12)

_ACKS_ALL = -1
_CONSUMER = -1
_EARLIEST, _LATEST = -2, -1

_ERRORS: dict[ErrorCode, type[IsothermError]] = {
    ErrorCode.not_leader_or_follower: NotLeaderOrFollowerError,
    ErrorCode.fenced_leader_epoch: NotLeaderOrFollowerError,
    ErrorCode.leader_not_available: NotLeaderOrFollowerError,
    ErrorCode.unknown_topic_or_partition: UnknownTopicOrPartitionError,
    ErrorCode.not_enough_replicas: NotEnoughReplicasError,
    ErrorCode.not_enough_replicas_after_append: NotEnoughReplicasError,
    ErrorCode.offset_out_of_range: OffsetOutOfRangeError,
    ErrorCode.request_timed_out: RequestTimedOutError,
    ErrorCode.operation_not_attempted: LogEndMovedError,
}


class ReplicatedRemoteMetadataTopic:
    """See `isotherm.remote.metadata.api.ConditionalMetadataTopic`. Any thread may call it."""

    def __init__(
        self,
        host: ReplicaManager,
        leaders: LeaderRequests,
        partition_count: int,
        count_now: Callable[[], int | None],
        *,
        request_timeout_ms: int,
        topic: str = REMOTE_LOG_METADATA_TOPIC,
    ) -> None:
        """`partition_count` is from this broker's configuration. `count_now` returns the topic's
        count in the cluster, None while the topic does not exist. If they differ, every call raises
        ConfigError: other brokers would not find this broker's events."""
        self._host = host
        self._leaders = leaders
        self._partition_count = partition_count
        self._count_now = count_now
        self._request_timeout_ms = request_timeout_ms
        self._topic = topic
        # By partition without a local replica: the highest high watermark that its leader has
        # reported.
        self._read_floors: dict[int, Offset] = {}
        self._read_floors_lock = threading.Lock()

    @property
    def partition_count(self) -> int:
        return self._partition_count

    def append(
        self, partition: int, key: bytes | None, value: bytes | None, timestamp_ms: TimestampMs
    ) -> Offset:
        return self.append_all(partition, [NewMetadataRecord(key, value, timestamp_ms)])

    def append_all(self, partition: int, records: Sequence[NewMetadataRecord]) -> Offset:
        return self._produce(partition, metadata_batch(records))

    def append_at(
        self, partition: int, end_offset: Offset, records: Sequence[NewMetadataRecord]
    ) -> None:
        batch = metadata_batch(records)
        set_condition(batch, end_offset)
        self._produce(partition, batch)

    def _produce(self, partition: int, batch: bytearray) -> Offset:
        fields = {"index": partition, "records": bytes(batch)}
        answer = self._ask(
            _PRODUCE,
            partition,
            {
                "acks": _ACKS_ALL,
                "timeout": datetime.timedelta(milliseconds=self._request_timeout_ms),
                "topic_data": [{"name": self._topic, "partition_data": [fields]}],
            },
        )
        return int(answer.base_offset)

    def read(
        self, partition: int, start_offset: Offset, max_bytes: int
    ) -> list[MetadataTopicRecord]:
        replica = self._replica(partition)
        if replica is not None:
            # The replica is behind: it is new or was truncated.
            if start_offset > replica.log.high_watermark:
                return []
            return read_metadata_records(replica.log, partition, start_offset, max_bytes)
        position = start_offset
        while True:
            batches = self._fetch(partition, position, max_bytes)
            records, next_offset = records_of_batches(batches, partition, start_offset)
            # As in `read_metadata_records`: batches that the cleaner has emptied are not the end.
            if records or next_offset <= position:
                return records
            position = next_offset

    def read_columns(self, partition: int, start_offset: Offset, max_bytes: int) -> MetadataColumns:
        replica = self._replica(partition)
        if replica is not None and start_offset <= replica.log.high_watermark:
            return read_metadata_columns(replica.log, start_offset, max_bytes)
        return columns_of_batches(self._fetch(partition, start_offset, max_bytes), start_offset)

    def offsets(self, partition: int) -> tuple[Offset, Offset]:
        """The leader's present offsets."""
        return self._offset(partition, _EARLIEST), self._offset(partition, _LATEST)

    def is_current(self, partition: int) -> bool:
        replica = self._replica(partition)
        return replica is None or replica.log.high_watermark >= self._offset(partition, _LATEST)

    def has_all_below(self, partition: int, end_offset: Offset) -> bool:
        replica = self._replica(partition)
        if replica is None:
            # From now on `_fetch` refuses an answer of any leader that has less.
            with self._read_floors_lock:
                self._read_floors[partition] = max(self._read_floors.get(partition, 0), end_offset)
            return True
        return replica.log.high_watermark >= end_offset

    def close(self) -> None:
        """End waiting requests. The broker owns the replicas."""
        self._leaders.close()

    def _replica(self, partition: int) -> Partition | None:
        self._check_count()
        return self._host.local_replica(TopicPartition(self._topic, partition))

    def _check_count(self) -> None:
        count = self._count_now()
        if count not in (None, self._partition_count):
            raise ConfigError(
                "the metadata topic has another number of partitions"
                " key=rlmm.config.remote.log.metadata.topic.num.partitions"
                f" value={self._partition_count} topic={self._topic} partitions={count}"
            )

    def _offset(self, partition: int, timestamp: int) -> Offset:
        fields = {"partition_index": partition, "current_leader_epoch": -1, "timestamp": timestamp}
        answer = self._ask(
            _LIST_OFFSETS,
            partition,
            {
                "replica_id": _CONSUMER,
                "isolation_level": 0,
                "topics": [{"name": self._topic, "partitions": [fields]}],
            },
        )
        return int(answer.offset)

    def _fetch(self, partition: int, start_offset: Offset, max_bytes: int) -> memoryview:
        fields = {
            "partition": partition,
            "fetch_offset": start_offset,
            "partition_max_bytes": max_bytes,
        }
        answer = self._ask(
            _FETCH,
            partition,
            {
                "max_wait": datetime.timedelta(),
                "min_bytes": 0,
                "max_bytes": max_bytes,
                "topics": [{"topic": self._topic, "partitions": [fields]}],
                "forgotten_topics_data": (),
            },
        )
        # KIP-207 guards ListOffsets, not Fetch: a new leader's high watermark may be below what
        # the leader before it committed. Its answer would look like the end of the events.
        floor = self._read_floors.get(partition, 0)
        if answer.high_watermark < floor:
            raise RemoteStorageNotReadyError(
                "a new leader of a metadata partition does not know yet what is committed"
                f" topic={self._topic} partition={partition}"
                f" high_watermark={answer.high_watermark} known={floor}"
            )
        return memoryview(answer.records or b"")

    def _ask(self, request_type: type[Any], partition: int, fields: dict[str, Any]) -> Any:
        """The answer for the one partition. Raises the error in it."""
        self._check_count()
        topic_partition = TopicPartition(self._topic, partition)
        response = self._leaders.send(topic_partition, entity_of(request_type, fields))
        for answer in _partitions_of(response):
            if answer.error_code is not ErrorCode.none:
                kind = _ERRORS.get(answer.error_code, RemoteStorageNotReadyError)
                raise kind(
                    f"the leader of a metadata partition refuses a request"
                    f" partition={topic_partition} error={code_name(answer.error_code)}"
                )
            return answer
        raise RemoteStorageNotReadyError(
            f"the leader's response lacks the metadata partition partition={topic_partition}"
        )


def _partitions_of(response: Any) -> list[Any]:
    """The partition entries in a response to any of the three requests."""
    if hasattr(response, "topics"):
        return [partition for topic in response.topics for partition in topic.partitions]
    name = "partitions" if type(response) is _FETCH_RESPONSE else "partition_responses"
    return [partition for topic in response.responses for partition in getattr(topic, name)]
