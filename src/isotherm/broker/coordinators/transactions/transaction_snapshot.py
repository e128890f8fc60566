"""Conversion between a transactional id's metadata and its record. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from isotherm.broker.coordinators.transactions.transaction_records import (
    AnyTransactionLogValue,
    PartitionsSchema,
    TransactionLogValue,
)
from isotherm.broker.coordinators.transactions.transaction_state import (
    TRANSACTION_V0,
    TransactionMetadata,
    TransactionState,
)
from isotherm.errors import CorruptMetadataError
from isotherm.types import NO_PRODUCER_ID, TopicPartition


def transaction_value(metadata: TransactionMetadata) -> TransactionLogValue:
    """The record's value. As in Kafka, EMPTY has null for its partitions."""
    partitions: tuple[PartitionsSchema, ...] | None = None
    if metadata.state is not TransactionState.EMPTY:
        partitions = tuple(
            PartitionsSchema(topic=topic, partition_ids=tuple(ids))
            for topic, ids in partitions_by_topic(metadata.partitions).items()
        )
    return TransactionLogValue(
        producer_id=metadata.producer_id,
        previous_producer_id=metadata.previous_producer_id,
        next_producer_id=metadata.next_producer_id,
        producer_epoch=metadata.producer_epoch,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_status=metadata.state,
        transaction_partitions=partitions,
        transaction_last_update_timestamp_ms=metadata.last_update_ms,
        transaction_start_timestamp_ms=metadata.start_ms,
        client_transaction_version=metadata.client_transaction_version,
    )


def partitions_by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    """The partitions by topic, sorted so that equal states have equal bytes."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)
    return by_topic


def transaction_of_value(
    transactional_id: str, value: AnyTransactionLogValue
) -> TransactionMetadata:
    """The metadata in a record. Raises CorruptMetadataError for a state that is never stored."""
    try:
        state = TransactionState(value.transaction_status)
    except ValueError as error:
        raise CorruptMetadataError(
            f"unknown state of a transaction transactional_id={transactional_id}"
            f" status={value.transaction_status}"
        ) from error
    return TransactionMetadata(
        transactional_id=transactional_id,
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        timeout_ms=value.transaction_timeout_ms,
        state=state,
        partitions=frozenset(
            TopicPartition(transaction_partition.topic, partition)
            for transaction_partition in value.transaction_partitions or ()
            for partition in transaction_partition.partition_ids
        ),
        start_ms=value.transaction_start_timestamp_ms,
        last_update_ms=value.transaction_last_update_timestamp_ms,
        previous_producer_id=getattr(value, "previous_producer_id", NO_PRODUCER_ID),
        next_producer_id=getattr(value, "next_producer_id", NO_PRODUCER_ID),
        client_transaction_version=getattr(value, "client_transaction_version", TRANSACTION_V0),
    )
