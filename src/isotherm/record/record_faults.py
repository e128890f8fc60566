"""Finds the invalid records of a produced batch, to report them to the producer (KIP-467).

Reads a batch that the validation has refused. Kafka: LogValidator.validateRecord.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from isotherm.errors import (
    InvalidRecordError,
    InvalidTimestampError,
    RecordFault,
    RefusedRecordsError,
)
from isotherm.record.batch_header import TimestampType
from isotherm.record.batch_table import byte_array
from isotherm.types import NO_TIMESTAMP

if TYPE_CHECKING:
    import numpy.typing as npt

    from isotherm.record.batch import BatchHeader
    from isotherm.types import TimestampMs, TopicPartition

# Each takes about 100 bytes of a response. Records beyond the limit fail with their batch: the
# producer reports them as INVALID_DIFFERENT_RECORD.
RECORD_FAULTS_MAX = 10_000
_RECORDS_AT_ONCE = 8_192
_SHOWN_IN_MESSAGE = 3


class RecordRules(NamedTuple):
    """The rules for each record of a topic. A timestamp of -1 satisfies any bounds."""

    topic_partition: TopicPartition
    key_required: bool
    timestamp_min: TimestampMs
    timestamp_max: TimestampMs


def refused_records(
    payload: memoryview, header: BatchHeader, rules: RecordRules
) -> RefusedRecordsError:
    """The error for the producer of the batch, with the first RECORD_FAULTS_MAX invalid records.

    `payload` has the decompressed records. A damaged record gives an error without record
    numbers, as in Kafka.
    """
    faults: list[RecordFault] = []
    any_timestamp = False
    index = 0
    for places in places_of_records(payload, header):
        key_missing = (places["key_size"] < 0) & rules.key_required
        # One fault for each record, the missing key first: LogValidator.validateRecord stops there.
        ill_timed = _ill_timed(places["timestamp"], header, rules) & ~key_missing
        at_fault = np.flatnonzero(key_missing | ill_timed)[: RECORD_FAULTS_MAX - len(faults)]
        any_timestamp |= bool(ill_timed[at_fault].any())
        for at in at_fault:
            number = index + int(at)
            message = (
                _no_key(rules)
                if key_missing[at]
                else _wrong_timestamp(number, places[at], header, rules)
            )
            faults.append(RecordFault(number, message))
        if len(faults) == RECORD_FAULTS_MAX:
            break
        index += len(places)
    return _refused(faults, any_timestamp=any_timestamp)


def places_of_records(payload: memoryview, header: BatchHeader) -> Iterator[npt.NDArray[np.void]]:
    """Places of the records, some thousands at a time: a client chooses their number.

    Raises InvalidRecordError at a damaged record.
    """
    from isotherm.kernels.places import locate_records
    from isotherm.kernels.tables import BATCH, PLACE

    data = byte_array(payload)
    batch: npt.NDArray[Any] = np.zeros(1, dtype=BATCH)
    (row,) = batch
    row["base_offset"] = header.base_offset
    row["base_timestamp"] = header.base_timestamp
    row["max_timestamp"] = header.max_timestamp
    row["attributes"] = header.attributes
    row["last_offset_delta"] = header.last_offset_delta
    row["payload_end"] = len(data)
    left = header.records_count
    while left:
        count = min(left, _RECORDS_AT_ONCE)
        row["records_count"] = count
        places = np.empty(count, dtype=PLACE)
        damaged_row, damaged, _ = locate_records(data, data, batch, places)
        # A slice that ends within the batch ends in trailing bytes, which is reported like damage.
        if damaged_row >= 0 and (damaged < count or count == left):
            raise InvalidRecordError(
                f"record is damaged record_index={header.records_count - left + damaged}"
                f" records_count={header.records_count}"
            )
        yield places
        left -= count
        row["payload_start"] = places[-1]["end"]


def _ill_timed(
    timestamps: npt.NDArray[np.int64], header: BatchHeader, rules: RecordRules
) -> npt.NDArray[np.bool_]:
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        return np.ones(len(timestamps), dtype=np.bool_)
    lowest, highest = np.int64(rules.timestamp_min), np.int64(rules.timestamp_max)
    fits = (timestamps >= lowest) & (timestamps <= highest)
    ill_timed: npt.NDArray[np.bool_] = ~(fits | (timestamps == NO_TIMESTAMP))
    return ill_timed


def _no_key(rules: RecordRules) -> str:
    return (
        "Compacted topic cannot accept message without key in topic partition"
        f" {rules.topic_partition}"
    )


def _wrong_timestamp(index: int, place: Any, header: BatchHeader, rules: RecordRules) -> str:
    timestamp = int(place["timestamp"])
    if header.timestamp_type is TimestampType.LOG_APPEND_TIME:
        key_size, value_size = max(int(place["key_size"]), 0), max(int(place["value_size"]), 0)
        return (
            f"Invalid timestamp type in message DefaultRecord(offset={index},"
            f" timestamp={timestamp}, key={key_size} bytes, value={value_size} bytes)."
            " Producer should not set timestamp type to LogAppendTime."
        )
    return (
        f"Timestamp {timestamp} of message with offset {index} is out of range. The timestamp"
        f" should be within [{rules.timestamp_min}, {rules.timestamp_max}]"
    )


def _refused(faults: list[RecordFault], *, any_timestamp: bool) -> RefusedRecordsError:
    # Kafka's LogValidator.processRecordErrors: one wrong timestamp decides the error of the batch.
    if any_timestamp:
        return InvalidTimestampError(
            "One or more records have been rejected due to invalid timestamp", faults
        )
    shown = ", ".join(
        f"RecordError(batchIndex={fault.batch_index}, message='{fault.message}')"
        for fault in faults[:_SHOWN_IN_MESSAGE]
    )
    return InvalidRecordError(
        f"One or more records have been rejected due to {len(faults)} record errors in total,"
        f" and only showing the first three errors at most: [{shown}]",
        faults,
    )
