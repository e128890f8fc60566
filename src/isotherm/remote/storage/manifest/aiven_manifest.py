"""The `.rsm-manifest` object of the Aiven layout, version 1: one JSON object in UTF-8.

    version                   "1", the first member
    chunkIndex                type "fixed" or "variable": see chunk_index
    segmentIndexes            offset, timestamp, producerSnapshot, leaderEpoch, transaction, each
                              {position, size} of the stored bytes in the `.indexes` object;
                              transaction may be null
    compression               whether chunks are zstd frames
    encryption                absent, or {dataKey "<key id>:<base64>", aad "<base64>"}
    remoteLogSegmentMetadata  the segment as it was when its copy started

The writer gives the bytes Jackson would give: this order of members, no spaces. The reader takes
members in any order and ignores those it does not know; every number must fit its Java type.
Source: the Aiven plugin's classes SegmentManifestV1 and KafkaTypeSerdeModule.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from isotherm.errors import CorruptMetadataError, UnknownObjectVersionError
from isotherm.remote.segment_metadata import (
    IndexType,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from isotherm.remote.storage.manifest.chunk_index import (
    ChunkIndex,
    FixedChunkIndex,
    VariableChunkIndex,
    decode_chunk_sizes,
    encode_chunk_sizes,
)
from isotherm.types import NO_TIMESTAMP, Position, TopicIdPartition, uuid_from_text, uuid_to_text

MANIFEST_VERSION = "1"
MANIFEST_SIZE_MAX = 16 * 1024 * 1024
"""Size limit of a manifest: 10 MiB of chunk sizes in base64, and some. A larger one is not read."""
INDEX_SIZE_MAX = 256 * 1024 * 1024
"""Size limit of an index: none of a segment below 2 GiB is larger. A larger one is not read."""
KEY_TEXT_SIZE_MAX = 16 * 1024
"""Size limit of the texts of a segment's key: readers keep them. An RSA key of 16,384 bits wraps a
data key into 2,732 characters."""

INDEX_MEMBERS = {
    IndexType.OFFSET: "offset",
    IndexType.TIMESTAMP: "timestamp",
    IndexType.PRODUCER_SNAPSHOT: "producerSnapshot",
    IndexType.LEADER_EPOCH: "leaderEpoch",
    IndexType.TRANSACTION: "transaction",
}
"""Index types in the order in which the `.indexes` object holds them."""

_TEXT_SHOWN_MAX = 80
_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1


class StoredIndex(NamedTuple):
    """The place of an index in the `.indexes` object."""

    position: Position
    size: int


@dataclass(frozen=True, slots=True)
class SegmentEncryption:
    """The encryption of a segment. Both fields are the manifest's texts; the key is wrapped."""

    data_key: str
    aad: str


@dataclass(frozen=True, slots=True)
class SegmentManifest:
    """`indexes` lacks TRANSACTION when the segment has no aborted transaction.

    `segment` is None in a manifest without remoteLogSegmentMetadata; else its state is
    COPY_SEGMENT_FINISHED, because the manifest is written last.
    """

    chunk_index: ChunkIndex
    indexes: Mapping[IndexType, StoredIndex]
    compression: bool = False
    encryption: SegmentEncryption | None = None
    segment: RemoteLogSegmentMetadata | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the `.log` object holds the original bytes."""
        return not self.compression and self.encryption is None


def write_manifest(manifest: SegmentManifest) -> bytes:
    members: dict[str, Any] = {
        "version": MANIFEST_VERSION,
        "chunkIndex": _chunk_index_members(manifest.chunk_index),
        "segmentIndexes": {
            name: manifest.indexes[kind]._asdict() if kind in manifest.indexes else None
            for kind, name in INDEX_MEMBERS.items()
        },
        "compression": manifest.compression,
    }
    if manifest.encryption is not None:
        members["encryption"] = {
            "dataKey": manifest.encryption.data_key,
            "aad": manifest.encryption.aad,
        }
    members["remoteLogSegmentMetadata"] = (
        None if manifest.segment is None else _segment_members(manifest.segment)
    )
    return json.dumps(members, separators=(",", ":"), ensure_ascii=False).encode()


def read_manifest(data: bytes) -> SegmentManifest:
    """Decode a manifest.

    Raises UnknownObjectVersionError for another version, and CorruptMetadataError for anything that
    is not a manifest. The caller adds the object's key to the error.
    """
    try:
        members = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CorruptMetadataError("manifest is not JSON") from error
    if not isinstance(members, dict):
        raise CorruptMetadataError("manifest is not a JSON object")
    version = _text(members, "version")
    if version != MANIFEST_VERSION:
        raise UnknownObjectVersionError(
            f"manifest version is not known version='{escaped(version)}' known={MANIFEST_VERSION}"
            " hint='a later version of this software may read it'"
        )
    chunk_index = _read_chunk_index(_object(members, "chunkIndex"))
    indexes = _read_indexes(_object(members, "segmentIndexes"))
    try:
        segment = _read_segment(members, chunk_index.original_file_size, indexes)
    except ValueError as error:
        raise CorruptMetadataError(f"manifest describes an impossible segment: {error}") from error
    return SegmentManifest(
        chunk_index, indexes, _boolean(members, "compression"), _read_encryption(members), segment
    )


def _chunk_index_members(index: ChunkIndex) -> dict[str, Any]:
    kind = "fixed" if isinstance(index, FixedChunkIndex) else "variable"
    sizes = {
        "type": kind,
        "originalChunkSize": index.original_chunk_size,
        "originalFileSize": index.original_file_size,
    }
    if isinstance(index, VariableChunkIndex):
        return sizes | {"transformedChunks": encode_chunk_sizes(index.transformed_sizes)}
    return sizes | {
        "transformedChunkSize": index.transformed_chunk_size,
        "finalTransformedChunkSize": index.final_transformed_chunk_size,
    }


def _segment_members(segment: RemoteLogSegmentMetadata) -> dict[str, Any]:
    partition = segment.topic_id_partition
    return {
        "remoteLogSegmentId": {
            "topicIdPartition": {
                "topicId": uuid_to_text(partition.topic_id),
                "topicPartition": {"topic": partition.topic, "partition": partition.partition},
            },
            "id": uuid_to_text(segment.segment_id.id),
        },
        "startOffset": segment.start_offset,
        "endOffset": segment.end_offset_inclusive,
        "maxTimestampMs": segment.max_timestamp_ms,
        "brokerId": segment.broker_id,
        "eventTimestampMs": segment.event_timestamp_ms,
        "segmentLeaderEpochs": {str(e): o for e, o in segment.segment_leader_epochs.items()},
    }


def _read_chunk_index(members: dict[str, Any]) -> ChunkIndex:
    kind = _text(members, "type")
    chunk_size, file_size = (_int(members, name) for name in _CHUNK_INDEX_SIZES)
    if kind == "fixed":
        return FixedChunkIndex(
            chunk_size,
            file_size,
            _int(members, "transformedChunkSize"),
            _int(members, "finalTransformedChunkSize"),
        )
    if kind == "variable":
        sizes = decode_chunk_sizes(_text(members, "transformedChunks"))
        return VariableChunkIndex(chunk_size, file_size, sizes)
    raise CorruptMetadataError(f"chunk index has an unknown type type='{escaped(kind)}'")


_CHUNK_INDEX_SIZES = ("originalChunkSize", "originalFileSize")


def _read_indexes(members: dict[str, Any]) -> dict[IndexType, StoredIndex]:
    indexes: dict[IndexType, StoredIndex] = {}
    for kind, name in INDEX_MEMBERS.items():
        if kind is IndexType.TRANSACTION and members.get(name) is None:
            continue
        location = _object(members, name)
        index = StoredIndex(_int(location, "position"), _int(location, "size"))
        if min(index) < 0:
            raise CorruptMetadataError(
                f"index location is negative index={name}"
                f" position={index.position} size={index.size}"
            )
        if index.size > INDEX_SIZE_MAX:
            raise CorruptMetadataError(
                f"index is larger than an index can be index={name}"
                f" size={index.size} size_max={INDEX_SIZE_MAX}"
            )
        indexes[kind] = index
    return indexes


def _read_encryption(members: dict[str, Any]) -> SegmentEncryption | None:
    if members.get("encryption") is None:
        return None
    encryption = _object(members, "encryption")
    texts = SegmentEncryption(_text(encryption, "dataKey"), _text(encryption, "aad"))
    size = max(len(texts.data_key), len(texts.aad))
    if size > KEY_TEXT_SIZE_MAX:
        raise CorruptMetadataError(
            f"key of a segment is longer than a key can be size={size} size_max={KEY_TEXT_SIZE_MAX}"
        )
    return texts


def _read_segment(
    members: dict[str, Any], segment_size: int, indexes: Mapping[IndexType, StoredIndex]
) -> RemoteLogSegmentMetadata | None:
    """The segment in the manifest. Raises ValueError if its numbers contradict each other or an id
    is not a Kafka uuid."""
    if members.get("remoteLogSegmentMetadata") is None:
        return None
    segment = _object(members, "remoteLogSegmentMetadata")
    segment_id = _object(segment, "remoteLogSegmentId")
    partition = _object(segment_id, "topicIdPartition")
    topic_partition = _object(partition, "topicPartition")
    epochs = _object(segment, "segmentLeaderEpochs")
    return _plausible(
        RemoteLogSegmentMetadata(
            segment_id=RemoteLogSegmentId(
                TopicIdPartition(
                    uuid_from_text(_text(partition, "topicId")),
                    _text(topic_partition, "topic"),
                    _int(topic_partition, "partition"),
                ),
                uuid_from_text(_text(segment_id, "id")),
            ),
            start_offset=_long(segment, "startOffset"),
            end_offset_inclusive=_long(segment, "endOffset"),
            max_timestamp_ms=_long(segment, "maxTimestampMs"),
            broker_id=_int(segment, "brokerId"),
            event_timestamp_ms=_long(segment, "eventTimestampMs"),
            segment_size_in_bytes=segment_size,
            segment_leader_epochs={_epoch(text): _long(epochs, text) for text in epochs},
            state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
            txn_index_empty=IndexType.TRANSACTION not in indexes,
        )
    )


def _plausible(segment: RemoteLogSegmentMetadata) -> RemoteLogSegmentMetadata:
    """The segment. Raises ValueError for numbers that fit their types but no segment can have."""
    # The offset after the last one is an offset too.
    if segment.end_offset_inclusive >= _LONG_MAX:
        raise ValueError(f"no log ends there end_offset={segment.end_offset_inclusive}")
    if segment.topic_id_partition.partition < 0:
        raise ValueError(f"partition is negative partition={segment.topic_id_partition.partition}")
    if segment.max_timestamp_ms < NO_TIMESTAMP or segment.event_timestamp_ms < NO_TIMESTAMP:
        raise ValueError(
            f"time is negative max_timestamp_ms={segment.max_timestamp_ms}"
            f" event_timestamp_ms={segment.event_timestamp_ms}"
        )
    starts = list(segment.segment_leader_epochs.values())
    # There is a first one: RemoteLogSegmentMetadata has refused a segment without leader epochs.
    if starts != sorted(starts) or starts[0] < 0 or starts[-1] > segment.end_offset_inclusive:
        raise ValueError(
            "leader epochs do not rise within the segment"
            f" epochs={escaped(str(dict(segment.segment_leader_epochs)))}"
            f" end_offset={segment.end_offset_inclusive}"
        )
    return segment


def escaped(text: str) -> str:
    """A text of a manifest for a message: one line, and short, whatever an object contains."""
    return ascii(text if len(text) <= _TEXT_SHOWN_MAX else f"{text[:_TEXT_SHOWN_MAX]}...")[1:-1]


def _epoch(text: str) -> int:
    # The length first: the time of int() grows with the digits, which nothing bounds.
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and int(text) <= _INT_MAX):
        raise CorruptMetadataError(f"manifest has a malformed leader epoch epoch='{escaped(text)}'")
    return int(text)


def _member(members: dict[str, Any], name: str, kind: type) -> Any:
    value = members.get(name)
    # An exact type: a JSON boolean is a Python int as well.
    if type(value) is not kind:
        raise CorruptMetadataError(
            f"manifest member is missing or malformed member={name} expected={kind.__name__}"
        )
    return value


def _object(members: dict[str, Any], name: str) -> dict[str, Any]:
    value: dict[str, Any] = _member(members, name, dict)
    return value


def _text(members: dict[str, Any], name: str) -> str:
    value: str = _member(members, name, str)
    if not value.isascii():
        raise CorruptMetadataError(
            f"manifest member is not ASCII member={name} value='{escaped(value)}'"
        )
    return value


def _boolean(members: dict[str, Any], name: str) -> bool:
    value: bool = _member(members, name, bool)
    return value


def _int(members: dict[str, Any], name: str) -> int:
    return _number(members, name, _INT_MAX)


def _long(members: dict[str, Any], name: str) -> int:
    return _number(members, name, _LONG_MAX)


def _number(members: dict[str, Any], name: str, maximum: int) -> int:
    value: int = _member(members, name, int)
    if not -maximum - 1 <= value <= maximum:
        raise CorruptMetadataError(f"manifest member is out of range member={name} value={value}")
    return value
