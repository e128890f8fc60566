"""Reads what became of a share group's records from `__share_group_state`: no API of clients tells.

The topic has the states of share partitions as snapshots and updates. It is read backwards, in
spans that grow, until each share partition of the group has its last snapshot: that of one with
many writes is near the end, that of a quiet one at the log start at the latest. A client needs
READ on the topic. Source: KIP-932.
"""

from __future__ import annotations

import datetime
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from isotherm.broker.coordinators.shares.share_state import ShareState, replayed
from isotherm.broker.coordinators.shares.share_state_records import (
    NO_TOPIC_ID,
    SHARE_STATE_TOPIC,
    TYPE_SIZE,
    EncodedRecord,
    SharePartitionKey,
    ShareSnapshot,
    decode_record,
    is_of_snapshot,
    key_suffix,
    state_partition,
)
from isotherm.broker.share_partitions.in_flight import RecordState
from isotherm.client.cluster_client import ClusterClient
from isotherm.client.node_address import NodeAddress
from isotherm.clock import Clock
from isotherm.errors import IsothermError, RejectedError, RequestTimedOutError
from isotherm.protocol.api_keys import ApiKey
from isotherm.protocol.code_names import code_name
from isotherm.record.batch_header import iterate_batches, verify_batch_crc
from isotherm.record.keyed_records import KeyedRecord, read_keyed_records
from isotherm.storage_view.cluster_reader import EARLIEST, LATEST, list_offsets
from isotherm.types import Offset, TopicPartition

READ_S = 5.0
"""The longest time that the states of a group are read."""
KEPT_BYTES_MAX = 64 * 1024 * 1024
"""The most bytes of undecoded records of one partition of the topic that are kept."""
_FIRST_SPAN = 2_000
_SPAN_GROWTH = 4
_FETCH_BYTES = 4 * 1024 * 1024
_FETCH_WAIT = datetime.timedelta(milliseconds=500)
_FETCH_VERSION = 12  # names topics; every broker with share groups serves it
_METADATA_VERSION = 12
_CONSUMER = -1


class ShareDeliveries(NamedTuple):
    """What a share partition's state has of the records from its start offset on.

    `acknowledged` records were accepted, `archived` ones rejected or delivered too often. Those
    that are `released` are to be delivered again, or a member has them again; the highest delivery
    count of them is `delivery_count_max`, 0 without any. The state does not have what was delivered
    for the first time, and records below the start offset are forgotten.
    """

    acknowledged: int = 0
    archived: int = 0
    released: int = 0
    delivery_count_max: int = 0

    @classmethod
    def of(cls, snapshot: ShareSnapshot) -> ShareDeliveries:
        counts = dict.fromkeys(RecordState, 0)
        delivery_count_max = 0
        for batch in snapshot.batches:
            first_offset = max(batch.first_offset, snapshot.start_offset)
            count = max(0, batch.last_offset_inclusive - first_offset + 1)
            counts[RecordState(batch.delivery_state)] += count
            if count and batch.delivery_state == RecordState.AVAILABLE:
                delivery_count_max = max(delivery_count_max, batch.delivery_count)
        return cls(
            counts[RecordState.ACKNOWLEDGED],
            counts[RecordState.ARCHIVED],
            counts[RecordState.AVAILABLE],
            delivery_count_max,
        )


@dataclass(frozen=True, slots=True)
class GroupDeliveries:
    """By partition what is known, or the reason why nothing is. A partition without a state is in
    neither."""

    by_partition: dict[TopicPartition, ShareDeliveries] = field(default_factory=dict)
    errors: dict[TopicPartition, str] = field(default_factory=dict)


def read_share_deliveries(
    client: ClusterClient,
    clock: Clock,
    group_id: str,
    places: Collection[TopicPartition],
    read_s: float = READ_S,
) -> GroupDeliveries:
    """What became of a share group's records in these partitions, within about `read_s`.

    Raises BrokerUnreachableError and UnsupportedVersionError. Other errors, of brokers that refuse,
    do not answer or take too long, are those of the partitions that they concern.
    """
    deliveries = GroupDeliveries()
    if not places:
        return deliveries
    end_s = clock.monotonic_s() + read_s
    topics = sorted({place.topic for place in places})
    metadata = _metadata(client, [*topics, SHARE_STATE_TOPIC])
    named = {topic.name: topic for topic in metadata.topics}
    states = named[SHARE_STATE_TOPIC]
    if states.error_code is not ErrorCode.none:
        reason = f"{SHARE_STATE_TOPIC}: {code_name(states.error_code)}"
        deliveries.errors.update(dict.fromkeys(places, reason))
        return deliveries
    keys: dict[int, dict[SharePartitionKey, TopicPartition]] = defaultdict(dict)
    for place in places:
        topic = named[place.topic]
        if topic.error_code is not ErrorCode.none:
            deliveries.errors[place] = f"{place.topic}: {code_name(topic.error_code)}"
            continue
        key = SharePartitionKey(group_id, topic.topic_id or NO_TOPIC_ID, place.partition)
        keys[state_partition(key, len(states.partitions))][key] = place
    brokers = {broker.node_id: NodeAddress(broker.host, broker.port) for broker in metadata.brokers}
    leaders = {partition.partition_index: partition.leader_id for partition in states.partitions}
    for index, of_partition in sorted(keys.items()):
        log = _StateLog(client, clock, index, brokers.get(leaders[index]), end_s)
        try:
            snapshots = log.snapshots(of_partition)
        except IsothermError as error:
            deliveries.errors.update(dict.fromkeys(of_partition.values(), str(error)))
            continue
        for key, snapshot in snapshots.items():
            deliveries.by_partition[of_partition[key]] = ShareDeliveries.of(snapshot)
    return deliveries


def _metadata(client: ClusterClient, topics: Collection[str]) -> Any:
    fields = {
        "topics": [{"topic_id": None, "name": name} for name in topics],
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
    }
    return client.ask_any(
        ApiKey.METADATA, fields, newest=_METADATA_VERSION, oldest=_METADATA_VERSION
    )


class _Records:
    """The encoded records of one share partition from the last snapshot or tombstone on, if
    `is_whole`; otherwise those that have been read, the end of them."""

    __slots__ = ("encoded", "is_whole")

    def __init__(self) -> None:
        self.encoded: list[EncodedRecord] = []
        self.is_whole = False

    @property
    def size_in_bytes(self) -> int:
        return sum(len(key) + len(value or b"") for key, value in self.encoded)

    def snapshot(self) -> ShareSnapshot | None:
        """The state that they make; None without one. Raises CorruptMetadataError."""
        state: ShareState | None = None
        for key, value in self.encoded:
            record = decode_record(key, value)
            if record is not None:
                value_read = record.value
                state = None if value_read is None else replayed(state, value_read, 0)
        return None if state is None else state.snapshot


class _StateLog:
    """A partition of `__share_group_state`. Every method raises as `ClusterClient.ask`,
    RejectedError, RequestTimedOutError after `end_s`, and CorruptDataError."""

    def __init__(
        self,
        client: ClusterClient,
        clock: Clock,
        index: int,
        leader: NodeAddress | None,
        end_s: float,
    ) -> None:
        self._client = client
        self._clock = clock
        self._place = TopicPartition(SHARE_STATE_TOPIC, index)
        self._leader = leader
        self._end_s = end_s

    def snapshots(
        self, keys: Collection[SharePartitionKey]
    ) -> dict[SharePartitionKey, ShareSnapshot]:
        """The states of share partitions. One without a state is left out."""
        names = {key: key_suffix(key) for key in keys}
        read = {name: _Records() for name in names.values()}
        log_start, first = self._bounds()
        span = _FIRST_SPAN
        while first > log_start and not all(records.is_whole for records in read.values()):
            end, first = first, max(log_start, first - span)
            partial = {name for name, records in read.items() if not records.is_whole}
            for name, records in self._span(first, end, partial).items():
                read[name].encoded[:0] = records.encoded
                read[name].is_whole = records.is_whole
            kept = sum(records.size_in_bytes for records in read.values())
            if kept > KEPT_BYTES_MAX:
                raise RejectedError(
                    f"the states are too large partition={self._shown} bytes={kept}"
                    f" max={KEPT_BYTES_MAX}"
                )
            span *= _SPAN_GROWTH
        snapshots = {key: read[name].snapshot() for key, name in names.items()}
        return {key: snapshot for key, snapshot in snapshots.items() if snapshot is not None}

    def _span(self, first: Offset, end: Offset, names: Collection[bytes]) -> dict[bytes, _Records]:
        """The records of these share partitions with offsets in [first, end)."""
        read: dict[bytes, _Records] = defaultdict(_Records)
        for offset, key, value in self._records(first, end):
            if key is None or key[TYPE_SIZE:] not in names or not first <= offset < end:
                continue
            records = read[key[TYPE_SIZE:]]
            if is_of_snapshot(key):
                records.encoded.clear()
                records.is_whole = True
            records.encoded.append((key, value))
        return read

    def _records(self, first: Offset, end: Offset) -> Iterator[KeyedRecord]:
        offset = first
        while offset < end:
            if self._clock.monotonic_s() >= self._end_s:
                raise RequestTimedOutError(f"reading takes too long partition={self._shown}")
            data = self._fetched(offset)
            for position, header in iterate_batches(data):
                verify_batch_crc(data, position, header)
                offset = header.next_offset
                if not header.is_control:
                    yield from read_keyed_records(data, position, header)

    def _bounds(self) -> tuple[Offset, Offset]:
        """The log start and the end of what is committed."""
        leader = self._known_leader()
        offsets = [
            list_offsets(self._client, leader, [self._place], timestamp).get(self._place)
            for timestamp in (EARLIEST, LATEST)
        ]
        start, end = offsets
        if start is None or end is None:
            raise RejectedError(f"a broker does not tell the offsets partition={self._shown}")
        return start, end

    def _fetched(self, offset: Offset) -> Any:
        """Batches from the one with `offset` on."""
        partition = {
            "partition": self._place.partition,
            "fetch_offset": offset,
            "partition_max_bytes": _FETCH_BYTES,
        }
        answer = self._client.ask(
            self._known_leader(),
            ApiKey.FETCH,
            {
                "replica_id": _CONSUMER,
                "max_wait": _FETCH_WAIT,
                "min_bytes": 1,
                "max_bytes": _FETCH_BYTES,
                "session_epoch": -1,
                "topics": [{"topic": SHARE_STATE_TOPIC, "partitions": [partition]}],
                "forgotten_topics_data": (),
            },
            newest=_FETCH_VERSION,
            oldest=_FETCH_VERSION,
        )
        ((fetched,),) = (topic.partitions for topic in answer.responses)
        if fetched.error_code is not ErrorCode.none:
            raise RejectedError(
                f"a broker refuses the read partition={self._shown}"
                f" reason={code_name(fetched.error_code)}"
            )
        return fetched.records or b""

    def _known_leader(self) -> NodeAddress:
        if self._leader is None:
            raise RejectedError(f"the partition has no leader partition={self._shown}")
        return self._leader

    @property
    def _shown(self) -> str:
        return f"{SHARE_STATE_TOPIC}-{self._place.partition}"
