"""The records of `__transaction_state`: Apache Kafka's own schemas, declared in kio's style.

    key    version i16 (0) | transactional id, never flexible
    value  version i16     | fields; a null value is a tombstone

Values are written in version 1, as by Kafka since transaction.version 1. Version 0 of older brokers
is also read.

Source: Kafka transaction-coordinator/src/main/resources/common/message/*.json, TransactionLog.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeAlias

from isotherm.broker.coordinators.record_form import decoded, encoded, version_of
from isotherm.errors import CorruptMetadataError
from isotherm.protocol.primitives import Buffer

_INT8 = {"kafka_type": "int8"}
_INT16 = {"kafka_type": "int16"}
_INT32 = {"kafka_type": "int32"}
_INT64 = {"kafka_type": "int64"}
_STRING = {"kafka_type": "string"}

_RECORD = "a transaction record"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionLogKey:
    __version__: ClassVar[int] = 0
    __flexible__: ClassVar[bool] = False
    transactional_id: str = field(metadata=_STRING)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsSchema:
    __flexible__: ClassVar[bool] = True
    topic: str = field(metadata=_STRING)
    partition_ids: tuple[int, ...] = field(metadata=_INT32, default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionLogValue:
    __version__: ClassVar[int] = 1
    __flexible__: ClassVar[bool] = True
    producer_id: int = field(metadata=_INT64)
    previous_producer_id: int = field(metadata=_INT64 | {"tag": 0}, default=-1)
    next_producer_id: int = field(metadata=_INT64 | {"tag": 1}, default=-1)
    producer_epoch: int = field(metadata=_INT16)
    next_producer_epoch: int = field(metadata=_INT16 | {"tag": 3}, default=-1)
    transaction_timeout_ms: int = field(metadata=_INT32)
    transaction_status: int = field(metadata=_INT8)
    transaction_partitions: tuple[PartitionsSchema, ...] | None = None
    transaction_last_update_timestamp_ms: int = field(metadata=_INT64)
    transaction_start_timestamp_ms: int = field(metadata=_INT64, default=-1)
    client_transaction_version: int = field(metadata=_INT16 | {"tag": 2}, default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsSchemaV0:
    __flexible__: ClassVar[bool] = False
    topic: str = field(metadata=_STRING)
    partition_ids: tuple[int, ...] = field(metadata=_INT32, default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionLogValueV0:
    """Version 1 without the tagged fields (KIP-890)."""

    __version__: ClassVar[int] = 0
    __flexible__: ClassVar[bool] = False
    producer_id: int = field(metadata=_INT64)
    producer_epoch: int = field(metadata=_INT16)
    transaction_timeout_ms: int = field(metadata=_INT32)
    transaction_status: int = field(metadata=_INT8)
    transaction_partitions: tuple[PartitionsSchemaV0, ...] | None = None
    transaction_last_update_timestamp_ms: int = field(metadata=_INT64)
    transaction_start_timestamp_ms: int = field(metadata=_INT64, default=-1)


AnyTransactionLogValue: TypeAlias = TransactionLogValue | TransactionLogValueV0

_VALUE_CLASSES: dict[int, type[Any]] = {0: TransactionLogValueV0, 1: TransactionLogValue}


class TransactionRecord(NamedTuple):
    """A record. A value of None is a tombstone."""

    key: TransactionLogKey
    value: AnyTransactionLogValue | None


def encode_key(transactional_id: str) -> bytes:
    key = TransactionLogKey(transactional_id=transactional_id)
    return encoded(key.__version__, key)


def encode_value(value: AnyTransactionLogValue) -> bytes:
    return encoded(value.__version__, value)


def decode_record(key: Buffer | None, value: Buffer | None) -> TransactionRecord | None:
    """The record; None for a key of an unknown version, which Kafka skips too.

    Raises CorruptMetadataError for a missing key, an unknown value version, or malformed bytes.
    """
    if key is None:
        raise CorruptMetadataError("a transaction record has no key")
    if version_of(key, _RECORD) != TransactionLogKey.__version__:
        return None
    decoded_key: TransactionLogKey = decoded(TransactionLogKey, key, _RECORD)
    if value is None:
        return TransactionRecord(decoded_key, None)
    version = version_of(value, _RECORD)
    value_class = _VALUE_CLASSES.get(version)
    if value_class is None:
        raise CorruptMetadataError(
            f"unknown version of a transaction record version={version}"
            f" transactional_id={decoded_key.transactional_id}"
        )
    return TransactionRecord(decoded_key, decoded(value_class, value, _RECORD))
