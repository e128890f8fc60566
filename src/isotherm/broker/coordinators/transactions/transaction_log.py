"""Appends and reads the records of `__transaction_state`
(isotherm.broker.coordinators.coordinator_topic).

A record is as durable as any other record. With one replica it survives a crash of the process, but
a crash of the machine may lose it.
Source: Kafka TransactionStateManager, TransactionLog.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from isotherm.broker.coordinators.coordinator_shards import CoordinatorShard, Election
from isotherm.broker.coordinators.coordinator_topic import CoordinatorTopic
from isotherm.broker.coordinators.transactions.transaction_records import (
    TransactionRecord,
    decode_record,
    encode_key,
    encode_value,
)
from isotherm.broker.coordinators.transactions.transaction_snapshot import (
    transaction_of_value,
    transaction_value,
)
from isotherm.broker.coordinators.transactions.transaction_state import (
    TransactionMetadata,
)
from isotherm.clock import Clock
from isotherm.config.transactions import TransactionConfig
from isotherm.errors import (
    CorruptMetadataError,
)
from isotherm.record.batch import build_batch

TRANSACTION_STATE_TOPIC = "__transaction_state"


class TransactionLog:
    def __init__(
        self, config: TransactionConfig, partitions: CoordinatorTopic, clock: Clock
    ) -> None:
        self.partitions = partitions
        self._config = config
        self._clock = clock

    def append(self, shard: CoordinatorShard, metadata: TransactionMetadata) -> None:
        """Append the metadata of a transactional id.

        Raises what `CoordinatorTopic.append` raises.
        """
        record = (encode_key(metadata.transactional_id), encode_value(transaction_value(metadata)))
        self._append(shard, [record])

    def forget(self, shard: CoordinatorShard, transactional_ids: Iterable[str]) -> None:
        """Append tombstones for at least one id. Raises what `append` raises."""
        self._append(
            shard, [(encode_key(transactional_id), None) for transactional_id in transactional_ids]
        )

    def _append(self, shard: CoordinatorShard, records: list[tuple[bytes, bytes | None]]) -> None:
        now_ms = self._clock.now_ms()
        batch = build_batch([(now_ms, key, value, ()) for key, value in records])
        self.partitions.append(shard, batch, now_ms)

    def read(
        self, index: int, election: Election | None = None
    ) -> Mapping[str, TransactionMetadata]:
        """The newest metadata of each transactional id of a partition. Any thread.

        Raises CorruptMetadataError or CorruptRecordError with the offset of the bad record. See
        `CoordinatorTopic.read_batches` for `election`.
        """
        transactions: dict[str, TransactionMetadata] = {}
        for record in self._records(index, election):
            transactional_id = record.key.transactional_id
            if record.value is None:
                transactions.pop(transactional_id, None)
            else:
                transactions[transactional_id] = transaction_of_value(
                    transactional_id, record.value
                )
        return transactions

    def _records(self, index: int, election: Election | None) -> Iterator[TransactionRecord]:
        buffer_size = self._config.transaction_state_log_load_buffer_size
        for offset, key, value in self.partitions.read_records(index, buffer_size, election):
            decoded = _decoded(key, value, index, offset)
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
