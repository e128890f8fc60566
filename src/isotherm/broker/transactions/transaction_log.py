"""The `__transaction_state` topic of this broker: creates it, appends to it, reads it back.

It is compacted and not compressed (isotherm.broker.coordinator_topic). A record is as durable as
any other record: it survives a crash of the process, but may be lost by a crash of the machine.
Source: Kafka TransactionStateManager, TransactionLog.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from isotherm.broker.controller.controller import Controller
from isotherm.broker.coordinator_topic import CoordinatorTopic
from isotherm.broker.partitions.replica_manager import ReplicaManager
from isotherm.broker.transactions.transaction_records import (
    TransactionRecord,
    decode_record,
    encode_key,
    encode_value,
)
from isotherm.broker.transactions.transaction_snapshot import (
    transaction_of_value,
    transaction_value,
)
from isotherm.broker.transactions.transaction_state import (
    TransactionMetadata,
)
from isotherm.clock import Clock
from isotherm.config.transactions import TransactionConfig
from isotherm.errors import (
    CorruptMetadataError,
)
from isotherm.record.batch import build_batch, read_records, verify_batch_crc
from isotherm.types import LeaderEpoch

TRANSACTION_STATE_TOPIC = "__transaction_state"


class TransactionLog:
    def __init__(
        self,
        config: TransactionConfig,
        controller: Controller,
        replica_manager: ReplicaManager,
        clock: Clock,
    ) -> None:
        self._config = config
        self._topic = CoordinatorTopic(TRANSACTION_STATE_TOPIC, controller, replica_manager)
        self._clock = clock

    @property
    def partition_count(self) -> int | None:
        """None while there is no such topic."""
        return self._topic.partition_count

    def create(self) -> bool:
        """Create the topic; False if it exists. Control thread only."""
        return self._topic.create(
            self._config.transaction_state_log_num_partitions,
            compression_type="uncompressed",
            segment_bytes=self._config.transaction_state_log_segment_bytes,
        )

    def coordinator_epoch(self, index: int) -> LeaderEpoch:
        """The coordinator epoch of a partition. It rises with every start of the broker."""
        return self._topic.partition(index).leader_epoch

    def append(self, index: int, metadata: TransactionMetadata) -> None:
        """Raises what `CoordinatorTopic.append` does."""
        record = (encode_key(metadata.transactional_id), encode_value(transaction_value(metadata)))
        self._append(index, [record])

    def forget(self, index: int, transactional_ids: Iterable[str]) -> None:
        """Append tombstones; at least one id. Raises what `append` does."""
        self._append(index, [(encode_key(each), None) for each in transactional_ids])

    def _append(self, index: int, records: list[tuple[bytes, bytes | None]]) -> None:
        now_ms = self._clock.now_ms()
        batch = build_batch([(now_ms, key, value, ()) for key, value in records])
        self._topic.append(index, batch, now_ms)

    def read(self, index: int) -> Mapping[str, TransactionMetadata]:
        """The newest metadata of each transactional id of a partition. Any thread.

        Raises CorruptMetadataError or CorruptRecordError with the offset of the bad record.
        """
        found: dict[str, TransactionMetadata] = {}
        for record in self._records(index):
            transactional_id = record.key.transactional_id
            if record.value is None:
                found.pop(transactional_id, None)
            else:
                found[transactional_id] = transaction_of_value(transactional_id, record.value)
        return found

    def _records(self, index: int) -> Iterator[TransactionRecord]:
        buffer_size = self._config.transaction_state_log_load_buffer_size
        for read, position, header, _ in self._topic.read_batches(index, buffer_size):
            verify_batch_crc(read, position, header)
            if header.is_control:
                continue
            for record in read_records(read, position, header):
                decoded = _decoded(record.key, record.value, index, record.offset)
                if decoded is not None:
                    yield decoded


def _decoded(
    key: bytes | None, value: bytes | None, index: int, offset: int
) -> TransactionRecord | None:
    try:
        return decode_record(key, value)
    except CorruptMetadataError as error:
        raise CorruptMetadataError(
            f"a transaction record cannot be read"
            f" partition={TRANSACTION_STATE_TOPIC}-{index} offset={offset}"
        ) from error
