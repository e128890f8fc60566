"""Alterations of single batches of a model history, under correct CRCs: each field of the header of
each kind of batch, and the records of markers."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

from isotherm.record.batch import BatchHeader, NewRecord, build_batch, iterate_batches
from isotherm.record.batch_header import (
    CODEC_MASK,
    CONTROL_FLAG,
    DELETE_HORIZON_FLAG,
    HEADER_SIZE,
    TIMESTAMP_TYPE_FLAG,
    TRANSACTIONAL_FLAG,
    encode_batch,
)
from isotherm.record.control import ControlRecordType, read_control_record
from tests.support.damaged_history import LOG, Changes, rewritten
from tests.support.model_history import ModelHistory

DATA = ("plain", "idempotent", "committed", "aborted")
MARKERS = ("COMMIT", "ABORT")
KINDS = (*DATA, *MARKERS)
_UNUSED_FLAG = 0x80

Alteration = Callable[[BatchHeader, bytes], bytes]
"""The new bytes of a batch."""


class Altered(NamedTuple):
    """An alteration of one batch, named by the numbers of its segment and batch."""

    segment: int
    batch: int
    changes: Changes


def altered(history: ModelHistory, kind: str, name: str) -> Iterator[Altered]:
    """Each alteration, applied to every batch of the kind that it changes."""
    for number, segment in enumerate(history.segments):
        log = history.objects(segment)[LOG].read_bytes()
        for at, (position, header) in enumerate(iterate_batches(log)):
            batch = log[position : position + header.size_in_bytes]
            if kind_of(header, batch, history) != kind:
                continue
            instead = ALTERATIONS[name](header, batch)
            if instead == batch:
                continue

            def rewrite(
                batches: list[bytes], at: int = at, instead: bytes = instead
            ) -> list[bytes]:
                return [*batches[:at], instead, *batches[at + 1 :]]

            yield Altered(number, at, rewritten(history, number, rewrite))


def kind_of(header: BatchHeader, batch: bytes, history: ModelHistory) -> str:
    if header.is_control:
        marker = read_control_record(batch, 0, header)
        assert marker is not None
        return marker.type.name
    if header.is_transactional:
        return "aborted" if header.base_offset in history.aborted else "committed"
    return "idempotent" if header.producer_id >= 0 else "plain"


def _header(**changes: Callable[[BatchHeader], int]) -> Alteration:
    def alter(header: BatchHeader, batch: bytes) -> bytes:
        fields = {name: change(header) for name, change in changes.items()}
        return bytes(encode_batch(header._replace(**fields), batch[HEADER_SIZE:]))

    return alter


def _moved(field: str, by: int) -> Alteration:
    return _header(**{field: lambda header: getattr(header, field) + by})


def _flag(flag: int) -> Alteration:
    return _header(attributes=lambda header: header.attributes ^ flag)


def _next_codec(header: BatchHeader) -> int:
    return header.attributes & ~CODEC_MASK | (header.attributes + 1) % 5 & CODEC_MASK


def _without_flag(header: BatchHeader) -> int:
    return header.attributes & ~TRANSACTIONAL_FLAG


def _marker(key: Callable[[ControlRecordType], bytes]) -> Alteration:
    """Replace a marker's control record by another of the same size and time; leave data batches
    alone.
    """

    def alter(header: BatchHeader, batch: bytes) -> bytes:
        if not header.is_control:
            return batch
        marker = read_control_record(batch, 0, header)
        assert marker is not None
        value = struct.pack(">hi", 0, marker.coordinator_epoch or 0)
        content = build_batch([NewRecord(marker.timestamp_ms, key(marker.type), value)])
        return bytes(encode_batch(header, content[HEADER_SIZE:]))

    return alter


NO_PRODUCER = dict.fromkeys(("producer_id", "producer_epoch", "base_sequence"), lambda _: -1)

ALTERATIONS: dict[str, Alteration] = {
    "another-codec": _header(attributes=_next_codec),
    "timestamp-type": _flag(TIMESTAMP_TYPE_FLAG),
    "transactional-bit": _flag(TRANSACTIONAL_FLAG),
    "control-bit": _flag(CONTROL_FLAG),
    "transactional-and-control-bit": _flag(TRANSACTIONAL_FLAG | CONTROL_FLAG),
    "delete-horizon-bit": _flag(DELETE_HORIZON_FLAG),
    "unused-bit": _flag(_UNUSED_FLAG),
    "base-offset-higher": _moved("base_offset", 1),
    "base-offset-lower": _moved("base_offset", -1),
    "leader-epoch-higher": _moved("partition_leader_epoch", 1),
    "leader-epoch-lower": _moved("partition_leader_epoch", -1),
    "last-offset-delta-higher": _moved("last_offset_delta", 1),
    "last-offset-delta-lower": _moved("last_offset_delta", -1),
    "count-higher": _moved("records_count", 1),
    "count-lower": _moved("records_count", -1),
    "base-time-higher": _moved("base_timestamp", 1),
    "base-time-lower": _moved("base_timestamp", -1),
    "largest-time-higher": _moved("max_timestamp", 1),
    "largest-time-lower": _moved("max_timestamp", -1),
    "both-times": _header(
        base_timestamp=lambda header: header.base_timestamp - 1000,
        max_timestamp=lambda header: header.max_timestamp - 1000,
    ),
    "producer-lost": _header(producer_id=lambda _: -1),
    "producer-epoch-and-sequence-lost": _header(**NO_PRODUCER),
    "producer-and-transaction-lost": _header(**NO_PRODUCER, attributes=_without_flag),
    "unknown-producer": _moved("producer_id", 1000),
    "producer-of-another-transaction": _header(
        producer_id=lambda header: 11 + (header.producer_id - 10) % 3
    ),
    "producer-epoch-higher": _moved("producer_epoch", 1),
    "producer-epoch-lower": _moved("producer_epoch", -1),
    "sequence-higher": _moved("base_sequence", 1),
    "sequence-lower": _moved("base_sequence", -1),
    "outcome-turned": _marker(lambda kind: struct.pack(">hh", 0, 1 - kind)),
    "marker-of-an-unknown-type": _marker(lambda _: struct.pack(">hh", 0, 99)),
    "marker-of-raft": _marker(lambda _: struct.pack(">hh", 0, ControlRecordType.LEADER_CHANGE)),
    "marker-without-a-type": _marker(lambda _: b"data"[:3]),
}
