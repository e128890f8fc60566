"""Reads the tail of a partition, the records that are only on the brokers, as the bucket is read.

Its batches are fetched as bytes and decoded by the decoder of segments, so a record gives the same
row from both tiers. Connections that only librdkafka can make (GSSAPI) have its consumer instead.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from typing import Any

import pyarrow as pa

from isotherm.client.node_security import NodeSecurity, own_security
from isotherm.client.partition_fetch import FetchedBatches, FetchSettings, PartitionFetch
from isotherm.clock import Clock
from isotherm.config.client_security import librdkafka_properties
from isotherm.errors import CorruptDataError, CorruptObjectError, OffsetOutOfRangeError
from isotherm.record.batch import read_batch_header
from isotherm.record.batch_header import CONTROL_FLAG
from isotherm.record.columns import decode_columns
from isotherm.record.control import ControlRecordType, read_control_record
from isotherm.spark.arrow_rows import decoded_columns, record_batch
from isotherm.spark.plan.planning import BrokerRead
from isotherm.types import Offset, ProducerId

_logger = logging.getLogger(__name__)

_ISOLATION_LEVELS = {"read_uncommitted": 0, "read_committed": 1}
_OFFSET_MAX = 2**63 - 1


def consumer_properties(
    kafka_properties: Mapping[str, str], group_id: str, isolation: str
) -> dict[str, Any]:
    """Client properties of the tail's consumers. `isolation` is Kafka's isolation.level.

    Call it on the machine where the consumer runs, because key and trust stores are read from its
    files. librdkafka's defaults differ from the Kafka source's: it would hide records of open
    transactions, and silently skip offsets that no longer exist.
    """
    return (
        {"group.id": group_id}
        | dict(librdkafka_properties(kafka_properties))
        | {
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": isolation,
        }
    )


def read_tail(
    read: BrokerRead,
    properties: Mapping[str, Any],
    schema: pa.Schema,
    *,
    clock: Clock,
    batch_bytes: int,
    poll_timeout_ms: int,
    fail_on_data_loss: bool,
) -> Iterator[pa.RecordBatch]:
    """Records of `read` in batches of about `batch_bytes` of keys and values. `properties` are
    those of `consumer_properties`.

    Raises OffsetOutOfRangeError if the brokers no longer have the offsets, CorruptObjectError if
    their records are damaged, and RequestTimedOutError if nothing arrives for `poll_timeout_ms`.
    Without `fail_on_data_loss` the first two are warnings, and end the rows.
    """
    security = own_security(properties)
    if security is None:
        from isotherm.spark.reading.consumed_tail import consume_tail

        rows = consume_tail(
            read,
            properties,
            schema,
            clock=clock,
            batch_bytes=batch_bytes,
            poll_timeout_ms=poll_timeout_ms,
        )
    else:
        rows = _fetch_tail(read, properties, security, schema, clock, batch_bytes, poll_timeout_ms)
    with closing(rows):
        try:
            yield from rows
        except (OffsetOutOfRangeError, CorruptDataError) as error:
            if fail_on_data_loss:
                raise
            _logger.warning("records are left out, failOnDataLoss=false: %s", error)


def _fetch_tail(
    read: BrokerRead,
    properties: Mapping[str, Any],
    security: NodeSecurity,
    schema: pa.Schema,
    clock: Clock,
    batch_bytes: int,
    poll_timeout_ms: int,
) -> Generator[pa.RecordBatch, None, None]:
    settings = FetchSettings(
        isolation_level=_ISOLATION_LEVELS[properties["isolation.level"]],
        timeout_ms=poll_timeout_ms,
    )
    fetch = PartitionFetch(read.topic_partition, properties, security, clock, settings)
    columns = decoded_columns(schema)
    with closing(fetch.batches(read.start_offset, read.end_offset)) as answers:
        try:
            for answer in answers:
                rest, ended = answer.data, ended_transactions(answer)
                while rest:
                    decoded = decode_columns(
                        rest,
                        offset_range=(read.start_offset, read.end_offset),
                        columns=columns,
                        aborted=ended,
                        decoded_size_max=batch_bytes,
                    )
                    rest = rest[decoded.position_end :]
                    if decoded.count:
                        yield record_batch(decoded, read.topic_partition, schema)
        except CorruptDataError as error:
            raise CorruptObjectError(
                f"records of the brokers are damaged topic={read.topic_partition.topic}"
                f" partition={read.topic_partition.partition} start_offset={read.start_offset}"
                f" end_offset={read.end_offset} reason='{error}'"
            ) from error


def ended_transactions(answer: FetchedBatches) -> list[tuple[ProducerId, Offset, Offset]]:
    """The aborted transactions of an answer, each with the offset of its marker. An answer is
    decoded in pieces, and a transaction that has ended in one must not go on in the next.

    A transaction without a marker here goes on beyond the answer, whose own answer names it again.
    """
    if not answer.aborted:
        return []
    is_marker = answer.table["attributes"] & CONTROL_FLAG != 0
    aborts: dict[ProducerId, list[Offset]] = {}
    for position in answer.table["position"][is_marker].tolist():
        header = read_batch_header(answer.data, position)
        marker = read_control_record(answer.data, position, header)
        if marker is not None and marker.type is ControlRecordType.ABORT:
            aborts.setdefault(header.producer_id, []).append(header.base_offset)
    return [
        (
            producer_id,
            first,
            next((at for at in aborts.get(producer_id, ()) if at >= first), _OFFSET_MAX),
        )
        for producer_id, first in answer.aborted
    ]
