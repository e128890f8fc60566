"""Writes end-transaction markers to the partitions of this broker.

A marker is a control batch. In `__consumer_offsets` it also commits or drops pending offsets.
Source: Kafka KafkaApis.handleWriteTxnMarkersRequest, ProducerAppendInfo.
"""

from __future__ import annotations

import asyncio

from isotherm.broker.coordinators.groups.group_coordinator import GroupCoordinator
from isotherm.broker.coordinators.groups.offsets_topic import OFFSETS_TOPIC
from isotherm.broker.coordinators.transactions.transaction_endings import (
    SETTLED,
    EndMarker,
    MarkerOutcome,
    MarkerResult,
)
from isotherm.broker.coordinators.transactions.transaction_state import EPOCH_MAX, TRANSACTION_V2
from isotherm.broker.coordinators.transactions.verifications import Verifications
from isotherm.broker.metadata.cluster_metadata import ClusterMetadata
from isotherm.broker.partitions.partition import ACKS_ALL, Partition
from isotherm.broker.partitions.replica_manager import ReplicaManager
from isotherm.broker.shared_futures import shared_result
from isotherm.clock import Clock
from isotherm.errors import (
    CoordinatorLoadInProgressError,
    InvalidProducerEpochError,
    IsothermError,
    NotCoordinatorError,
    NotLeaderOrFollowerError,
    TransactionCoordinatorFencedError,
    UnsupportedForMessageFormatError,
)
from isotherm.record.control import ControlRecordType, build_end_transaction_marker
from isotherm.record.validation import AppendOrigin
from isotherm.types import TopicPartition


class TransactionMarkers:
    """Writes markers as the leader of their partitions. Event loop thread only."""

    def __init__(
        self, replica_manager: ReplicaManager, clock: Clock, offsets: GroupCoordinator
    ) -> None:
        self.verifications = Verifications()
        self._replica_manager = replica_manager
        self._clock = clock
        self._offsets = offsets

    def append(
        self, marker: EndMarker, topic_partition: TopicPartition
    ) -> asyncio.Future[None] | None:
        """Append a marker. The future is done when the marker is committed; None if it already is.

        A second append is harmless. Raises InvalidProducerEpochError or
        TransactionCoordinatorFencedError if the partition has records of a newer producer or
        coordinator, NotLeaderOrFollowerError also while a partition of `__consumer_offsets` is
        being loaded, and what `Partition.append` raises.
        """
        topic, index = topic_partition
        partition = self._replica_manager.find_partition(topic, None, index)
        if topic == OFFSETS_TOPIC:
            self._check_active(index)
        # Read before the append: if the leadership ends in between, the wait for the commit fails.
        term = partition.term
        _check_raised_epoch(partition, marker)
        now_ms = self._clock.now_ms()
        batch = build_end_transaction_marker(
            ControlRecordType.COMMIT if marker.commit else ControlRecordType.ABORT,
            producer_id=marker.producer.producer_id,
            producer_epoch=marker.producer.epoch,
            coordinator_epoch=marker.coordinator_epoch,
            timestamp_ms=now_ms,
        )
        info = partition.append(
            batch, required_acks=ACKS_ALL, now_ms=now_ms, origin=AppendOrigin.COORDINATOR
        )
        # After the append: a marker that is refused ends no transaction.
        self.verifications.note_marker(topic_partition, marker.producer.producer_id)
        committed = partition.when_committed(info.last_offset + 1, term)
        # Applied at the append, not at the commit: the shard is the fold of
        # its log up to the log end.
        if topic == OFFSETS_TOPIC:
            self._offsets.complete_transaction(
                index, marker.producer.producer_id, committed=marker.commit, appended=committed
            )
        return committed

    def _check_active(self, offsets_partition: int) -> None:
        # A load in progress may have read past the place of this marker. The sender handles only
        # error codes of a leader, so the coordinator's errors are translated.
        try:
            self._offsets.check_active(offsets_partition)
        except (CoordinatorLoadInProgressError, NotCoordinatorError) as error:
            raise NotLeaderOrFollowerError(str(error)) from error


def _check_raised_epoch(partition: Partition, marker: EndMarker) -> None:
    """Refuse a late marker of an earlier transaction (KIP-890).

    From version 2 on each end raises the epoch. So a marker with the epoch of an open transaction
    belongs to the transaction before it. The maximum epoch is exempt, since it cannot be raised.
    """
    producer_id, epoch = marker.producer
    if marker.transaction_version < TRANSACTION_V2 or epoch == EPOCH_MAX:
        return
    producer = partition.log.producers.producer(producer_id)
    if (
        producer is not None
        and producer.epoch == epoch
        and producer.transaction_first_offset is not None
    ):
        raise InvalidProducerEpochError(
            f"the marker's epoch is not above the open transaction's"
            f" partition={partition.topic_partition} producer_id={producer_id} epoch={epoch}"
        )


class LocalMarkers:
    """The `MarkerWriter` for this broker's own partitions."""

    def __init__(self, metadata: ClusterMetadata, markers: TransactionMarkers) -> None:
        self._metadata = metadata
        self._markers = markers

    def write(
        self, marker: EndMarker, topic_partition: TopicPartition
    ) -> MarkerOutcome | asyncio.Future[MarkerOutcome]:
        topic = self._metadata.image.topics_by_name.get(topic_partition.topic)
        if topic is None or topic_partition.partition >= len(topic.partitions):
            # The records of a deleted topic are gone, so there is nothing to mark.
            return SETTLED
        try:
            committed = self._markers.append(marker, topic_partition)
        except IsothermError as error:
            return outcome_of(error)
        if committed is None:
            return SETTLED
        return asyncio.ensure_future(_outcome_once_committed(committed))


async def _outcome_once_committed(committed: asyncio.Future[None]) -> MarkerOutcome:
    try:
        await shared_result(committed)
    except IsothermError as error:
        return outcome_of(error)
    return SETTLED


def outcome_of(error: IsothermError) -> MarkerOutcome:
    if isinstance(error, TransactionCoordinatorFencedError):
        return MarkerOutcome(MarkerResult.FENCED, str(error))
    if isinstance(error, (InvalidProducerEpochError, UnsupportedForMessageFormatError)):
        # A newer producer has ended the transaction there, or the partition cannot have one.
        return MarkerOutcome(MarkerResult.SETTLED, str(error))
    return MarkerOutcome(MarkerResult.RETRY, str(error))
