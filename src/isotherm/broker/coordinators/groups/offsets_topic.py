"""Appends and reads the records of `__consumer_offsets`
(isotherm.broker.coordinators.coordinator_topic).

Streams groups are not supported, so only their ids are read. Their records stay in the log, also
through compaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from isotherm.broker.coordinators.coordinator_shards import CoordinatorShard, Election
from isotherm.broker.coordinators.coordinator_topic import CoordinatorTopic
from isotherm.broker.coordinators.groups.group_records import (
    GroupRecord,
    decode_record,
    unserved_group,
)
from isotherm.broker.coordinators.groups.offset_reader import CommittedOffset, OffsetReader
from isotherm.broker.coordinators.groups.share_group_records import decode_share_record
from isotherm.clock import Clock
from isotherm.errors import (
    CorruptMetadataError,
)
from isotherm.record.batch import BatchHeader, build_batch
from isotherm.record.control import ControlRecordType, read_control_record
from isotherm.record.keyed_records import KeyedRecord, read_keyed_records
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


class LoadedUnserved(NamedTuple):
    """A streams group that a broker of Apache Kafka created or deleted."""

    group_id: str
    exists: bool


class LoadedMarker(NamedTuple):
    producer_id: ProducerId
    committed: bool


Loaded: TypeAlias = CommittedOffset | LoadedRecord | LoadedUnserved | LoadedMarker


class _TransactionalBatch(NamedTuple):
    producer_id: ProducerId
    records: list[KeyedRecord]


class OffsetsTopic:
    def __init__(self, partitions: CoordinatorTopic, clock: Clock) -> None:
        self.partitions = partitions
        self._clock = clock

    def append(
        self,
        shard: CoordinatorShard,
        records: Sequence[tuple[bytes, bytes | None]],
        producer: Producer = NO_PRODUCER,
    ) -> Offset:
        """Append keys and values as one batch; returns the offset of the first record. Raises what
        `CoordinatorTopic.append` raises."""
        now_ms = self._clock.now_ms()
        batch = build_batch(
            [(now_ms, key, value, ()) for key, value in records],
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            is_transactional=producer is not NO_PRODUCER,
        )
        return self.partitions.append(shard, batch, now_ms)

    def read(self, index: int, election: Election | None = None) -> Iterator[Loaded]:
        """The partition's records in the order of the log, without those that a later record of the
        same key replaces.

        Records between transactional records are compacted in memory: most records of a long log
        are replaced, and need not be decoded. All records of transactions are kept, since a marker
        may still commit or abort them. Raises CorruptMetadataError or CorruptRecordError with the
        offset of the bad record or batch. See `CoordinatorTopic.read_batches` for `election`.
        """
        offsets = OffsetReader()
        latest: dict[bytes, KeyedRecord] = {}
        for item in self._read_log(index, election):
            if isinstance(item, list):
                for record in item:
                    key = record[1] or b""
                    # Removed first, so that the key moves to the end and the order stays that of
                    # the log.
                    latest.pop(key, None)
                    latest[key] = record
                continue
            # Before the transactional item: a tombstone drops the pending offsets
            # before it, and none after it.
            yield from _decoded(latest.values(), index, offsets)
            latest.clear()
            if isinstance(item, LoadedMarker):
                yield item
                continue
            yield from _decoded(item.records, index, offsets, item.producer_id)
        yield from _decoded(latest.values(), index, offsets)

    def _read_log(
        self, index: int, election: Election | None
    ) -> Iterator[list[KeyedRecord] | _TransactionalBatch | LoadedMarker]:
        for read, position, header, start_offset in self.partitions.read_batches(
            index, LOAD_BUFFER_SIZE, election
        ):
            if header.is_control:
                yield from _marker(read, position, header)
                continue
            records = read_keyed_records(read, position, header)
            if header.base_offset < start_offset:
                records = [record for record in records if record[0] >= start_offset]
            if header.is_transactional:
                yield _TransactionalBatch(header.producer_id, records)
            else:
                yield records


def _marker(records: memoryview, position: int, header: BatchHeader) -> Iterator[LoadedMarker]:
    marker = read_control_record(records, position, header)
    if marker is not None and marker.type in (ControlRecordType.COMMIT, ControlRecordType.ABORT):
        yield LoadedMarker(header.producer_id, marker.type is ControlRecordType.COMMIT)


def _decoded(
    records: Iterable[KeyedRecord],
    index: int,
    offsets: OffsetReader,
    producer_id: ProducerId = NO_PRODUCER_ID,
) -> Iterator[Loaded]:
    """Decode records. Records of unknown types are left out."""
    for record_offset, key, value in records:
        key = key or b""
        try:
            offset = offsets.read(key, value, record_offset, producer_id)
            decoded = None
            if offset is None:
                decoded = decode_record(key, value) or decode_share_record(key, value)
            unserved = None if offset or decoded else unserved_group(key)
        except CorruptMetadataError as error:
            raise CorruptMetadataError(
                f"a group record cannot be read partition={OFFSETS_TOPIC}-{index}"
                f" offset={record_offset}"
            ) from error
        if offset is not None:
            yield offset
        elif decoded is not None:
            yield LoadedRecord(decoded)
        elif unserved is not None:
            yield LoadedUnserved(unserved, value is not None)
