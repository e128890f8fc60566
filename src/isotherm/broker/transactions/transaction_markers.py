"""End-transaction markers in the partitions that a transaction has written to.

On a single broker every partition is local, so a marker is an append (Kafka sends WriteTxnMarkers
to the leaders). A marker in `__consumer_offsets` also commits or drops the pending offsets.
Source: Kafka TransactionMarkerChannelManager, KafkaApis.handleWriteTxnMarkersRequest.
"""

from __future__ import annotations

from typing import Protocol

from isotherm.broker.partitions.partition import ACKS_LEADER
from isotherm.broker.partitions.replica_manager import ReplicaManager
from isotherm.broker.transactions.transaction_state import ProducerIdAndEpoch
from isotherm.clock import Clock
from isotherm.record.control import ControlRecordType, build_end_transaction_marker
from isotherm.record.validation import AppendOrigin
from isotherm.types import ProducerId, TopicPartition

OFFSETS_TOPIC = "__consumer_offsets"


class TransactionalOffsets(Protocol):
    """What a marker needs of the group coordinator."""

    def complete_transaction(
        self, offsets_partition: int, producer_id: ProducerId, *, committed: bool
    ) -> None: ...


class TransactionMarkers:
    """Event loop thread only."""

    def __init__(
        self, replica_manager: ReplicaManager, clock: Clock, offsets: TransactionalOffsets
    ) -> None:
        self._replica_manager = replica_manager
        self._clock = clock
        self._offsets = offsets

    def write(
        self,
        topic_partition: TopicPartition,
        producer: ProducerIdAndEpoch,
        *,
        commit: bool,
        coordinator_epoch: int,
    ) -> None:
        """Write the marker of the producer's transaction to one partition.

        Writing it twice is harmless. Raises UnknownTopicOrPartitionError, LogDirFailedError, and
        InvalidProducerEpochError or TransactionCoordinatorFencedError when the partition has seen a
        newer producer or coordinator.
        """
        topic, index = topic_partition
        now_ms = self._clock.now_ms()
        marker = build_end_transaction_marker(
            ControlRecordType.COMMIT if commit else ControlRecordType.ABORT,
            producer_id=producer.producer_id,
            producer_epoch=producer.epoch,
            coordinator_epoch=coordinator_epoch,
            timestamp_ms=now_ms,
        )
        self._replica_manager.find_partition(topic, None, index).append(
            marker, required_acks=ACKS_LEADER, now_ms=now_ms, origin=AppendOrigin.COORDINATOR
        )
        if topic == OFFSETS_TOPIC:
            self._offsets.complete_transaction(index, producer.producer_id, committed=commit)
