"""Appends to and replays `__cluster_metadata-0` for the embedded controller."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from isotherm.broker.metadata.cluster_metadata_topic import BATCH_SIZE_MAX, METADATA_TOPIC_PARTITION
from isotherm.broker.metadata.metadata_records import (
    AccessControlEntryRecord,
    BrokerRegistrationChangeRecord,
    ClientQuotaRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveAccessControlEntryRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UnregisterBrokerRecord,
    UserScramCredentialRecord,
    decode_record,
)
from isotherm.clock import Clock
from isotherm.errors import CorruptMetadataError
from isotherm.log.log_read import FetchIsolation
from isotherm.log.partition_log import PartitionLog
from isotherm.protocol.framed_messages import encode_framed
from isotherm.record.batch import (
    BatchHeader,
    NewRecord,
    build_batch,
    iterate_batches,
    read_records,
    verify_batch_crc,
)
from isotherm.record.validation import AppendOrigin
from isotherm.types import Offset

_READ_SIZE = BATCH_SIZE_MAX
_WRITTEN = (
    AccessControlEntryRecord,
    BrokerRegistrationChangeRecord,
    ClientQuotaRecord,
    ConfigRecord,
    FeatureLevelRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveAccessControlEntryRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    TopicRecord,
    UnregisterBrokerRecord,
    UserScramCredentialRecord,
)


class MetadataLog:
    """The controller is the only writer. Each start of it has its own leader epoch of the log."""

    def __init__(self, log: PartitionLog, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        latest = log.leader_epochs.latest
        self._epoch = 1 if latest is None else latest.epoch + 1

    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def end_offset(self) -> Offset:
        return self._log.log_end_offset

    def append(self, records: Sequence[MetadataRecord]) -> Offset:
        """Append one batch and make it durable; returns the log end offset after it.

        Raises RecordTooLargeError, without an append, or LogDirFailedError.
        """
        now_ms = self._clock.now_ms()
        batch = build_batch([NewRecord(now_ms, None, encode_framed(r)) for r in records])
        self._log.append_as_leader(
            batch, self._epoch, now_ms=now_ms, origin=AppendOrigin.COORDINATOR
        )
        # There is no other replica, so a record is committed once it is on disk, and not before.
        self._log.flush()
        self._log.update_high_watermark(self._log.log_end_offset)
        return self._log.log_end_offset

    def replay(self) -> Iterator[MetadataRecord]:
        """Every record, in order. Raises CorruptMetadataError or CorruptRecordError with the
        offset.

        A record of a kind that the embedded controller never writes is an error, since it would
        have no effect.
        """
        offset = self._log.log_start_offset
        while offset < self._log.log_end_offset:
            read = self._log.read(
                offset, _READ_SIZE, isolation=FetchIsolation.LOG_END, min_one_message=True
            )
            start_offset = offset
            for position, header in iterate_batches(read.records):
                verify_batch_crc(read.records, position, header)
                if not header.is_control:
                    yield from _decoded(read.records, position, header)
                offset = header.next_offset
            # Another read would find no batch either. Nothing compacts this log, so records have
            # been lost.
            if offset == start_offset:
                raise CorruptMetadataError(
                    f"the metadata log lacks records partition={METADATA_TOPIC_PARTITION}"
                    f" offset={offset} log_end_offset={self._log.log_end_offset}"
                )
        # Every record that a start finds counts as committed: there is no leader to ask.
        self._log.update_high_watermark(offset)


def _decoded(buffer: memoryview, position: int, header: BatchHeader) -> Iterator[MetadataRecord]:
    for record in read_records(buffer, position, header):
        try:
            yield _decode_own(record.value or b"")
        except CorruptMetadataError as error:
            raise CorruptMetadataError(
                f"a record of the metadata log cannot be read"
                f" partition={METADATA_TOPIC_PARTITION} offset={record.offset}"
            ) from error


def _decode_own(value: bytes | memoryview) -> MetadataRecord:
    record = decode_record(value)
    if type(record) not in _WRITTEN:
        raise CorruptMetadataError(
            f"only the controllers of a quorum write such a record record={type(record).__name__}"
        )
    return record
