"""The `__consumer_offsets` topic of this broker: creates it, appends to it, reads it back.
It is compacted, and not compressed by the broker (isotherm.broker.coordinator_topic).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from isotherm.broker.controller.controller import Controller
from isotherm.broker.coordinator_topic import CoordinatorTopic
from isotherm.broker.groups.group_records import (
    GroupRecord,
    decode_record,
    encode_key,
    encode_value,
)
from isotherm.broker.partitions.replica_manager import ReplicaManager
from isotherm.clock import Clock
from isotherm.config.groups import GroupConfig
from isotherm.errors import (
    CorruptMetadataError,
)
from isotherm.record.batch import BatchHeader, Record, build_batch, read_records
from isotherm.record.control import ControlRecordType, read_control_record
from isotherm.types import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, Offset, ProducerEpoch, ProducerId

OFFSETS_TOPIC = "__consumer_offsets"
# Kafka: offsets.load.buffer.size.
LOAD_BUFFER_SIZE = 5 * 1024 * 1024


class Producer(NamedTuple):
    """The transactional producer of a record."""

    producer_id: ProducerId = NO_PRODUCER_ID
    epoch: ProducerEpoch = NO_PRODUCER_EPOCH


NO_PRODUCER = Producer()


class LoadedRecord(NamedTuple):
    record: GroupRecord
    offset: Offset
    producer_id: ProducerId  # -1 unless it is part of a transaction


class LoadedMarker(NamedTuple):
    producer_id: ProducerId
    committed: bool


class _TransactionalBatch(NamedTuple):
    producer_id: ProducerId
    records: list[Record]


class OffsetsTopic:
    def __init__(
        self,
        config: GroupConfig,
        controller: Controller,
        replica_manager: ReplicaManager,
        clock: Clock,
    ) -> None:
        self._config = config
        self._topic = CoordinatorTopic(OFFSETS_TOPIC, controller, replica_manager)
        self._clock = clock

    @property
    def partition_count(self) -> int | None:
        """None while there is no such topic."""
        return self._topic.partition_count

    def create(self) -> None:
        """Create the topic unless it exists. Control thread only."""
        self._topic.create(
            self._config.offsets_topic_num_partitions,
            compression_type="producer",
            segment_bytes=self._config.offsets_topic_segment_bytes,
        )

    def append(
        self, index: int, records: Sequence[GroupRecord], producer: Producer = NO_PRODUCER
    ) -> Offset:
        """Append `records` as one batch, and return the offset of the first. Raises what
        `CoordinatorTopic.append` does."""
        now_ms = self._clock.now_ms()
        batch = build_batch(
            [(now_ms, encode_key(key), encode_value(value), ()) for key, value in records],
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            is_transactional=producer is not NO_PRODUCER,
        )
        return self._topic.append(index, batch, now_ms)

    def read(self, index: int) -> Iterator[LoadedRecord | LoadedMarker]:
        """The partition's records, without those that a later record of their key replaces.

        In the order of the log. The records between transactional ones are compacted in memory:
        most records of a long log have been replaced, and need not be decoded. Records of
        transactions are all kept, since a marker may still commit or abort them.
        Raises CorruptMetadataError with the offset of the bad record.
        """
        latest: dict[bytes, Record] = {}
        for item in self._read_log(index):
            if isinstance(item, Record):
                # Removed first, so that the key moves to the end: the order is that of the log.
                latest.pop(item.key or b"", None)
                latest[item.key or b""] = item
                continue
            yield from _decoded_all(latest, index)
            latest.clear()
            if isinstance(item, LoadedMarker):
                yield item
                continue
            for record in item.records:
                yield from _decoded(record, index, item.producer_id)
        yield from _decoded_all(latest, index)

    def _read_log(self, index: int) -> Iterator[Record | _TransactionalBatch | LoadedMarker]:
        for read, position, header, start_offset in self._topic.read_batches(
            index, LOAD_BUFFER_SIZE
        ):
            if header.is_control:
                yield from _marker(read, position, header)
                continue
            records = [
                record
                for record in read_records(read, position, header)
                if record.offset >= start_offset
            ]
            if header.is_transactional:
                yield _TransactionalBatch(header.producer_id, records)
            else:
                yield from records


def _marker(records: memoryview, position: int, header: BatchHeader) -> Iterator[LoadedMarker]:
    marker = read_control_record(records, position, header)
    if marker is not None and marker.type in (ControlRecordType.COMMIT, ControlRecordType.ABORT):
        yield LoadedMarker(header.producer_id, marker.type is ControlRecordType.COMMIT)


def _decoded_all(records: Mapping[bytes, Record], index: int) -> Iterator[LoadedRecord]:
    for record in records.values():
        yield from _decoded(record, index, NO_PRODUCER_ID)


def _decoded(record: Record, index: int, producer_id: ProducerId) -> Iterator[LoadedRecord]:
    """Yields nothing for a record of an unknown type."""
    try:
        decoded = decode_record(record.key or b"", record.value)
    except CorruptMetadataError as error:
        raise CorruptMetadataError(
            f"a group record cannot be read partition={OFFSETS_TOPIC}-{index}"
            f" offset={record.offset}"
        ) from error
    if decoded is not None:
        yield LoadedRecord(decoded, record.offset, producer_id)
