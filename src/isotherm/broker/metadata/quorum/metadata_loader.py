"""Folds the committed records of the quorum's metadata into images.

Records between BeginTransaction and EndTransaction take effect together. Until the end the image is
that of the beginning; AbortTransaction drops the records. A transaction may span batches and
fetches, but no snapshot ends inside one. Source: KIP-868; Kafka MetadataBatchLoader,
MetadataLoader.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from isotherm.broker.metadata.cluster_metadata_topic import METADATA_TOPIC_PARTITION
from isotherm.broker.metadata.delta import MetadataDelta
from isotherm.broker.metadata.image import MetadataImage
from isotherm.broker.metadata.metadata_records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    MetadataRecord,
    decode_record,
)
from isotherm.broker.metadata.quorum.metadata_fetch import SnapshotId
from isotherm.broker.metadata.quorum.snapshots import SnapshotBatch
from isotherm.errors import CorruptMetadataError
from isotherm.record.batch import BatchHeader, iterate_batches, read_records, verify_batch_crc
from isotherm.record.control import ControlRecordType, read_control_records
from isotherm.types import Offset, Position, TimestampMs

_KRAFT_VERSION = struct.Struct(">hh")  # version of the record, level


class MetadataLoader:
    """For one thread. Errors are CorruptMetadataError or CorruptRecordError, and permanent."""

    def __init__(self) -> None:
        self._image = MetadataImage()
        self._delta: MetadataDelta | None = None
        self._is_in_transaction = False
        self.end_offset: Offset = 0
        """The offset after the last record that was replayed."""
        self.last_epoch = 0
        self.last_timestamp_ms: TimestampMs = 0
        self.kraft_version = 0
        self.has_records = False
        """Whether any record other than a control record was replayed."""

    def image(self) -> MetadataImage:
        """The image of all replayed records, without those of an open transaction."""
        if self._is_in_transaction:
            return self._image
        if self._image.end_offset != self.end_offset:
            self._image = self._open_delta().apply(self.end_offset)
            self._delta = None
        return self._image

    def load_snapshot(self, snapshot_id: SnapshotId, batches: Iterable[SnapshotBatch]) -> None:
        """Replace all state by a snapshot. Objects that it does not mention do not exist."""
        self._image = MetadataImage()
        self._delta = None
        self._is_in_transaction = False
        for records, header in batches:
            self._replay_batch(records, 0, header)
        self.end_offset, self.last_epoch = snapshot_id

    def replay(self, records: memoryview) -> None:
        """Replay whole batches, the first of which begins at `end_offset`."""
        for position, header in iterate_batches(records):
            if header.base_offset != self.end_offset:
                raise CorruptMetadataError(
                    f"the metadata log has a gap partition={METADATA_TOPIC_PARTITION}"
                    f" expected={self.end_offset} found={header.base_offset}"
                )
            verify_batch_crc(records, position, header)
            self._replay_batch(records, position, header)
            self.end_offset = header.next_offset
            self.last_epoch = header.partition_leader_epoch

    def _replay_batch(self, records: memoryview, position: Position, header: BatchHeader) -> None:
        self.last_timestamp_ms = header.max_timestamp
        if header.is_control:
            self._replay_control(records, position, header)
            return
        self.has_records = True
        for record in read_records(records, position, header):
            try:
                self._replay_record(decode_record(record.value or b""), record.offset)
            except CorruptMetadataError as error:
                raise CorruptMetadataError(
                    f"a record of the metadata log cannot be replayed reason='{error}'"
                    f" partition={METADATA_TOPIC_PARTITION} offset={record.offset}"
                ) from error

    def _replay_control(self, records: memoryview, position: Position, header: BatchHeader) -> None:
        for record in read_control_records(records, position, header):
            if record.type is ControlRecordType.KRAFT_VERSION:
                if record.value is None or len(record.value) < _KRAFT_VERSION.size:
                    raise CorruptMetadataError(
                        f"a kraft.version record is damaged offset={record.offset}"
                    )
                _, self.kraft_version = _KRAFT_VERSION.unpack_from(record.value)
                self._open_delta().set_kraft_version(self.kraft_version)

    def _replay_record(self, record: MetadataRecord, offset: Offset) -> None:
        if isinstance(record, BeginTransactionRecord):
            self._check_transaction(is_expected=False)
            self._image = self._open_delta().apply(offset)
            self._delta = None
            self._is_in_transaction = True
        elif isinstance(record, EndTransactionRecord):
            self._check_transaction(is_expected=True)
            self._is_in_transaction = False
        elif isinstance(record, AbortTransactionRecord):
            self._check_transaction(is_expected=True)
            self._is_in_transaction = False
            self._delta = None
        else:
            self._open_delta().replay(record)

    def _check_transaction(self, *, is_expected: bool) -> None:
        if self._is_in_transaction != is_expected:
            raise CorruptMetadataError(
                "a metadata transaction ends that did not begin"
                if is_expected
                else "a metadata transaction begins within another"
            )

    def _open_delta(self) -> MetadataDelta:
        if self._delta is None:
            self._delta = MetadataDelta(self._image)
        return self._delta
