"""`__transaction_state` in this broker: making it, writing records to it, reading them back.

Made through the controller when first needed, as Kafka makes it: compacted, not compressed. Its
partition count is fixed from then on: it decides where a transactional id's record is. A record is
as durable as any other; what a crash of the machine may take, a crash of the process does not.
Source: Kafka TransactionStateManager, TransactionLog.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from isotherm.broker.controller.controller import Controller
from isotherm.broker.controller.topic_rules import NewTopic
from isotherm.broker.partition import Partition
from isotherm.broker.replica_manager import ReplicaManager
from isotherm.broker.transactions.records import (
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
    CoordinatorNotAvailableError,
    CorruptMetadataError,
    LogDirFailedError,
    NotLeaderOrFollowerError,
    UnknownTopicOrPartitionError,
)
from isotherm.log.log_read import FetchIsolation
from isotherm.record.batch import build_batch, iterate_batches, read_records, verify_batch_crc
from isotherm.record.validation import AppendOrigin
from isotherm.types import LeaderEpoch

TRANSACTION_STATE_TOPIC = "__transaction_state"
# One replica has it: the answer is given when the record is in the log.
ACKS_LEADER = 1


class TransactionLog:
    def __init__(
        self,
        config: TransactionConfig,
        controller: Controller,
        replica_manager: ReplicaManager,
        clock: Clock,
    ) -> None:
        self._config = config
        self._controller = controller
        self._replica_manager = replica_manager
        self._clock = clock

    @property
    def partition_count(self) -> int | None:
        """None while there is no such topic."""
        topic = self._controller.image.topics_by_name.get(TRANSACTION_STATE_TOPIC)
        return None if topic is None else len(topic.partitions)

    def create(self) -> bool:
        """On the control thread; whether it was not there before."""
        if self.partition_count is not None:
            return False
        (created,) = self._controller.create_topics(
            [
                NewTopic(
                    name=TRANSACTION_STATE_TOPIC,
                    num_partitions=self._config.transaction_state_log_num_partitions,
                    configs={
                        "cleanup.policy": "compact",
                        "compression.type": "uncompressed",
                        "segment.bytes": str(self._config.transaction_state_log_segment_bytes),
                    },
                )
            ]
        )
        if created.error is not None:
            raise created.error
        return True

    def coordinator_epoch(self, index: int) -> LeaderEpoch:
        """The epoch under which a partition's transactions are coordinated: it rises with every
        start of the broker."""
        return self._partition(index).leader_epoch

    def append(self, index: int, metadata: TransactionMetadata) -> None:
        """CoordinatorNotAvailableError when the partition cannot be written."""
        record = (encode_key(metadata.transactional_id), encode_value(transaction_value(metadata)))
        self._append(index, [record])

    def forget(self, index: int, transactional_ids: Iterable[str]) -> None:
        """Append tombstones; at least one id. Raises what `append` does."""
        self._append(index, [(encode_key(each), None) for each in transactional_ids])

    def _append(self, index: int, records: list[tuple[bytes, bytes | None]]) -> None:
        now_ms = self._clock.now_ms()
        batch = build_batch([(now_ms, key, value, ()) for key, value in records])
        try:
            self._partition(index).append(
                batch, required_acks=ACKS_LEADER, now_ms=now_ms, origin=AppendOrigin.COORDINATOR
            )
        except (
            LogDirFailedError,
            NotLeaderOrFollowerError,
            UnknownTopicOrPartitionError,
        ) as error:
            raise CoordinatorNotAvailableError(
                f"transaction state cannot be written partition={TRANSACTION_STATE_TOPIC}-{index}"
            ) from error

    def read(self, index: int) -> Mapping[str, TransactionMetadata]:
        """The newest metadata of every transactional id of a partition. Any thread.

        CorruptMetadataError or CorruptRecordError names where it went wrong.
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
        log = self._partition(index).log
        offset, end_offset = log.log_start_offset, log.high_watermark
        while offset < end_offset:
            read = log.read(
                offset,
                self._config.transaction_state_log_load_buffer_size,
                isolation=FetchIsolation.HIGH_WATERMARK,
                min_one_message=True,
            )
            next_offset = offset
            for position, header in iterate_batches(read.records):
                verify_batch_crc(read.records, position, header)
                next_offset = header.next_offset
                if header.is_control:
                    continue
                for record in read_records(read.records, position, header):
                    decoded = _decoded(record.key, record.value, index, record.offset)
                    if decoded is not None:
                        yield decoded
            if next_offset == offset:
                return
            offset = next_offset

    def _partition(self, index: int) -> Partition:
        return self._replica_manager.find_partition(TRANSACTION_STATE_TOPIC, None, index)


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
