"""Decodes the values of internal topics for `dump-log` and `remote events`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

from isotherm.record.batch import Record
from isotherm.remote.metadata.wire.serde import RemoteLogMetadataEvent, decode_event
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemotePartitionDeleteMetadata,
)
from isotherm.types import (
    CLUSTER_METADATA_TOPIC,
    NO_LEADER_EPOCH,
    REMOTE_LOG_METADATA_TOPICS,
    UNKNOWN_OFFSET,
    LeaderEpoch,
    Offset,
    TopicIdPartition,
    uuid_to_text,
)

# A value: its bytes, or named fields.
Decoded: TypeAlias = bytes | dict[str, Any] | None
ValueDecoder: TypeAlias = Callable[[Record], Decoded]


def text_of(value: bytes | None) -> str | None:
    return None if value is None else value.decode("utf-8", errors="backslashreplace")


def _bytes(record: Record) -> Decoded:
    return record.value


def _remote_log_metadata(record: Record) -> Decoded:
    if record.value is None:
        return None
    return describe_event(decode_event(record.value))


def _cluster_metadata(record: Record) -> Decoded:
    from isotherm.broker.metadata.metadata_records import decode_record

    if record.value is None:
        return None
    entity: Any = decode_record(record.value)
    fields = {f.name: getattr(entity, f.name) for f in dataclasses.fields(entity)}
    return {"type": type(entity).__name__, **fields}


VALUE_DECODERS: dict[str, ValueDecoder] = {
    "text": _bytes,
    "remote-log-metadata": _remote_log_metadata,
    "cluster-metadata": _cluster_metadata,
}
_DECODER_OF_TOPIC = {
    **dict.fromkeys(REMOTE_LOG_METADATA_TOPICS, "remote-log-metadata"),
    CLUSTER_METADATA_TOPIC: "cluster-metadata",
}


def decoder_for(decoder: str | None, directory_name: str) -> ValueDecoder:
    """The requested decoder, or the one for the topic in the name of the partition's folder."""
    topic = directory_name.rpartition("-")[0]
    return VALUE_DECODERS[decoder or _DECODER_OF_TOPIC.get(topic, "text")]


def describe_event(event: RemoteLogMetadataEvent) -> dict[str, Any]:
    """A metadata event as named fields, in the order of its record."""
    match event:
        case RemoteLogSegmentMetadata():
            return {
                "type": "segment",
                **_partition_fields(event.topic_id_partition),
                "segment_id": uuid_to_text(event.segment_id.id),
                "state": event.state.name,
                "start_offset": event.start_offset,
                "end_offset": event.end_offset_inclusive,
                "size": event.segment_size_in_bytes,
                "max_timestamp": event.max_timestamp_ms,
                "leader_epochs": {str(e): o for e, o in event.segment_leader_epochs.items()},
                "broker_id": event.broker_id,
                "event_timestamp": event.event_timestamp_ms,
                "custom_metadata": _hex(event.custom_metadata),
                "txn_index_empty": event.txn_index_empty,
                **_keyed_fields(event.broker_leader_epoch),
            }
        case RemoteLogSegmentMetadataUpdate():
            return {
                "type": "segment-update",
                **_partition_fields(event.segment_id.topic_id_partition),
                "segment_id": uuid_to_text(event.segment_id.id),
                "state": event.state.name,
                "broker_id": event.broker_id,
                "event_timestamp": event.event_timestamp_ms,
                "custom_metadata": _hex(event.custom_metadata),
                **_keyed_fields(event.broker_leader_epoch, event.end_offset_inclusive),
            }
        case RemotePartitionDeleteMetadata():
            return {
                "type": "partition-delete",
                **_partition_fields(event.topic_id_partition),
                "state": event.state.name,
                "broker_id": event.broker_id,
                "event_timestamp": event.event_timestamp_ms,
                **_keyed_fields(event.broker_leader_epoch, event.end_offset_inclusive),
            }
    return {
        "type": "segment-snapshot",
        "segment_id": uuid_to_text(event.id),
        "state": event.state.name,
        "start_offset": event.start_offset,
        "end_offset": event.end_offset_inclusive,
        "size": event.segment_size_in_bytes,
        "broker_id": event.broker_id,
        "event_timestamp": event.event_timestamp_ms,
    }


def _keyed_fields(
    broker_leader_epoch: LeaderEpoch, end_offset: Offset = UNKNOWN_OFFSET
) -> dict[str, Any]:
    """The additional fields of records at level 1."""
    fields = {"end_offset": end_offset, "broker_leader_epoch": broker_leader_epoch}
    unknown = {"end_offset": UNKNOWN_OFFSET, "broker_leader_epoch": NO_LEADER_EPOCH}
    return {name: value for name, value in fields.items() if value != unknown[name]}


def _partition_fields(partition: TopicIdPartition) -> dict[str, Any]:
    return {
        "topic": partition.topic,
        "topic_id": uuid_to_text(partition.topic_id),
        "partition": partition.partition,
    }


def _hex(value: bytes | None) -> str | None:
    return None if value is None else value.hex()
