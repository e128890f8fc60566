"""The `__remote_log_metadata` of the cluster in front of which a read replica stands.

A replica reads all of it at each start. Batches are fetched as bytes from their leaders, and many
records become columns without an object for each (docs/decisions/0289).
"""

from __future__ import annotations

import datetime
import logging
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NoReturn

from kio.schema.errors import ErrorCode

from isotherm.broker.cluster.upstream import EARLIEST, LATEST
from isotherm.client.cluster_client import ClusterClient
from isotherm.client.node_address import NodeAddress
from isotherm.errors import (
    CorruptRecordError,
    PeerDisconnectedError,
    PeerTimeoutError,
    PolicyViolationError,
    RemoteStorageError,
    RetriableError,
    UnknownTopicOrPartitionError,
)
from isotherm.protocol.api_keys import ApiKey
from isotherm.record.batch import read_records, verify_batch_crc
from isotherm.record.batch_header import iterate_batches
from isotherm.remote.metadata.api import MetadataColumns, MetadataTopicRecord, NewMetadataRecord
from isotherm.remote.metadata.wire.events import columns_of
from isotherm.types import REMOTE_LOG_METADATA_TOPIC, Offset, TimestampMs

_logger = logging.getLogger(__name__)

FETCH_BYTES_MAX = 16 * 1024 * 1024
"""The most that an answer has, unless its first batch is larger."""

_CONSUMER = -1
_NO_SESSION = -1
_METADATA_VERSION = 12
_LIST_OFFSETS_VERSION = 7
# Later versions have ids in place of names.
_FETCH_VERSION, _FIRST_FETCH_VERSION = 12, 4
_TIMEOUT = datetime.timedelta(seconds=30)
_AT_ONCE = datetime.timedelta(0)
_COLUMNS = frozenset({"key", "value"})


class UpstreamMetadataTopic:
    """A ConditionalMetadataTopic and EndOffsetsTopic that refuses writes. Thread-safe.

    Besides what each method names, reads raise RemoteStorageError for an answer that is an error:
    `is_refusal` if the replica lacks the right to read. Leaders are looked up again after an error.
    """

    def __init__(self, properties: Mapping[str, Any]) -> None:
        """`properties` are a client's of the cluster. Raises as ClusterClient."""
        self._client = ClusterClient(properties, client_id="isotherm-replica-metadata")
        self._lock = threading.Lock()
        self._leaders: Mapping[int, NodeAddress] = {}
        self._partition_count: int | None = None

    @property
    def partition_count(self) -> int:
        """The cluster's answer, cached. Raises UnknownTopicOrPartitionError if there is no such
        topic."""
        if self._partition_count is None:
            self._look_up()
        assert self._partition_count is not None, "the look-up has set it"
        return self._partition_count

    def offsets(self, partition: int) -> tuple[Offset, Offset]:
        return self._offset(partition, EARLIEST), self._offset(partition, LATEST)

    def read(
        self, partition: int, start_offset: Offset, max_bytes: int
    ) -> list[MetadataTopicRecord]:
        """See `MetadataTopic.read`. Raises CorruptRecordError for a damaged batch."""
        position = start_offset
        while data := self._fetch(partition, position, max_bytes):
            records, next_offset = _records(data, partition, start_offset)
            if records or next_offset <= position:
                return records
            # Markers of transactions, or nothing that compaction has left.
            position = next_offset
        return []

    def read_columns(self, partition: int, start_offset: Offset, max_bytes: int) -> MetadataColumns:
        """See `MetadataTopic.read_columns`. Raises CorruptRecordError for a damaged batch."""
        data = self._fetch(partition, start_offset, max_bytes)
        if not data:
            return columns_of([], start_offset)
        # Here and not above: a replica of a small tier starts without the kernels.
        from isotherm.record.columns import decode_columns

        decoded = decode_columns(data, offset_range=(start_offset, 2**63 - 1), columns=_COLUMNS)
        if not decoded.position_end:
            raise CorruptRecordError(
                "a response has no complete batch"
                f" topic={REMOTE_LOG_METADATA_TOPIC} partition={partition} offset={start_offset}"
            )
        assert decoded.key is not None
        assert decoded.value is not None
        return MetadataColumns(decoded.offset, decoded.key, decoded.value, decoded.next_offset)

    def is_current(self, partition: int) -> bool:
        return True

    def has_all_below(self, partition: int, end_offset: Offset) -> bool:
        return True

    def append(
        self, partition: int, key: bytes | None, value: bytes | None, timestamp_ms: TimestampMs
    ) -> NoReturn:
        _refuse()

    def append_all(self, partition: int, records: Sequence[NewMetadataRecord]) -> NoReturn:
        _refuse()

    def append_at(
        self, partition: int, end_offset: Offset, records: Sequence[NewMetadataRecord]
    ) -> NoReturn:
        _refuse()

    def close(self) -> None:
        """End the requests that wait."""
        self._client.close()

    def end_offsets(self, partitions: Collection[int]) -> dict[int, Offset]:
        """See `EndOffsetsTopic.end_offsets`. One request to each leader."""
        if not self._leaders:
            self._look_up()
        leaders = self._leaders
        of_leader: dict[NodeAddress, list[int]] = {}
        for partition in partitions:
            if partition in leaders:
                of_leader.setdefault(leaders[partition], []).append(partition)
        ends: dict[int, Offset] = {}
        for led in of_leader.values():
            try:
                listed = self._listed_offsets(led, LATEST)
            except RetriableError as error:
                _logger.debug("a leader does not tell the ends of partitions: %s", error)
                continue
            ends |= {
                int(item.partition_index): int(item.offset)
                for item in listed
                if item.error_code is ErrorCode.none
            }
        return ends

    def _offset(self, partition: int, timestamp: int) -> Offset:
        (listed,) = self._listed_offsets([partition], timestamp)
        self._check(listed.error_code, partition)
        return int(listed.offset)

    def _listed_offsets(self, partitions: Sequence[int], timestamp: int) -> Sequence[Any]:
        """The response's items for partitions of one leader."""
        answer = self._ask(
            partitions[0],
            ApiKey.LIST_OFFSETS,
            {
                "replica_id": _CONSUMER,
                "isolation_level": 0,
                "topics": [
                    {
                        "name": REMOTE_LOG_METADATA_TOPIC,
                        "partitions": [
                            {"partition_index": number, "timestamp": timestamp}
                            for number in partitions
                        ],
                    }
                ],
                "timeout": _TIMEOUT,
            },
            newest=_LIST_OFFSETS_VERSION,
            oldest=1,
        )
        (topic,) = answer.topics
        return list(topic.partitions)

    def _fetch(self, partition: int, offset: Offset, max_bytes: int) -> memoryview | None:
        """Whole batches, of which the first one may begin below `offset`; the last one may be cut
        off. None at the end."""
        max_bytes = min(max_bytes, FETCH_BYTES_MAX)
        fetched = {
            "partition": partition,
            "fetch_offset": offset,
            "partition_max_bytes": max_bytes,
        }
        answer = self._ask(
            partition,
            ApiKey.FETCH,
            {
                "replica_id": _CONSUMER,
                "max_wait": _AT_ONCE,
                "min_bytes": 0,
                "max_bytes": max_bytes,
                "isolation_level": 0,
                "session_epoch": _NO_SESSION,
                "topics": [{"topic": REMOTE_LOG_METADATA_TOPIC, "partitions": [fetched]}],
                "forgotten_topics_data": (),
                "rack_id": "",
            },
            newest=_FETCH_VERSION,
            oldest=_FIRST_FETCH_VERSION,
        )
        ((fetched,),) = (topic.partitions for topic in answer.responses)
        self._check(fetched.error_code, partition)
        return memoryview(fetched.records) if fetched.records else None

    def _ask(
        self, partition: int, key: ApiKey, fields: Mapping[str, Any], *, newest: int, oldest: int
    ) -> Any:
        if partition not in self._leaders:
            self._look_up()
        leader = self._leaders.get(partition)
        if leader is None:
            raise _unread("the partition has no leader", partition)
        try:
            return self._client.ask(leader, key, fields, newest=newest, oldest=oldest)
        except (PeerDisconnectedError, PeerTimeoutError):
            self._leaders = {}
            raise

    def _check(self, code: ErrorCode, partition: int) -> None:
        if code is ErrorCode.none:
            return
        self._leaders = {}
        error = _unread(code.name.upper(), partition)
        error.is_refusal = code is ErrorCode.topic_authorization_failed
        raise error

    def _look_up(self) -> None:
        with self._lock:
            answer = self._client.ask_any(
                ApiKey.METADATA,
                {
                    "topics": [{"topic_id": None, "name": REMOTE_LOG_METADATA_TOPIC}],
                    "allow_auto_topic_creation": False,
                    "include_topic_authorized_operations": False,
                },
                newest=_METADATA_VERSION,
                oldest=4,
            )
            (topic,) = answer.topics
            if topic.error_code is ErrorCode.unknown_topic_or_partition:
                raise UnknownTopicOrPartitionError(
                    f"the cluster has no such metadata topic topic={REMOTE_LOG_METADATA_TOPIC}"
                )
            self._check(topic.error_code, -1)
            nodes = {
                int(broker.node_id): NodeAddress(broker.host, int(broker.port))
                for broker in answer.brokers
            }
            self._leaders = {
                int(partition.partition_index): nodes[int(partition.leader_id)]
                for partition in topic.partitions
                if int(partition.leader_id) in nodes
            }
            self._partition_count = len(topic.partitions)


def _records(
    data: memoryview, partition: int, start_offset: Offset
) -> tuple[list[MetadataTopicRecord], Offset]:
    """The records from `start_offset` on of the complete batches, and the offset after them."""
    records: list[MetadataTopicRecord] = []
    next_offset = start_offset
    for position, header in iterate_batches(data):
        verify_batch_crc(data, position, header)
        next_offset = header.next_offset
        if not header.is_control:
            records += (
                MetadataTopicRecord(
                    partition=partition,
                    offset=record.offset,
                    timestamp_ms=record.timestamp_ms,
                    key=record.key,
                    value=record.value,
                )
                for record in read_records(data, position, header)
                if record.offset >= start_offset
            )
    return records, next_offset


def _unread(reason: str, partition: int) -> RemoteStorageError:
    return RemoteStorageError(
        "the cluster's metadata topic cannot be read"
        f" topic={REMOTE_LOG_METADATA_TOPIC} partition={partition} reason='{reason}'"
    )


def _refuse() -> NoReturn:
    raise PolicyViolationError("a read replica does not write to the metadata topic")
