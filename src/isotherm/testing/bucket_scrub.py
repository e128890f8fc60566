"""Whether a bucket and the metadata of the remote tier agree, found out independently.

Nothing here goes through the storage manager, its layout or the metadata cache: object names are taken apart by the pattern of the Aiven layout, events are folded by a rule of its
own, batches are walked by their length fields and their CRCs computed. Segments are expected as
they are on disk, neither compressed nor encrypted.

Findings, one line each:
  leaked    an object of a segment that no live metadata names
  missing   an object of a finished segment that is not there
  damaged   a finished segment's `.log` is not what the metadata says
"""

from __future__ import annotations

import re
import struct
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import google_crc32c

from isotherm.record.batch import iterate_batches, read_records
from isotherm.remote.metadata.wire.serde import decode_event
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from isotherm.types import NO_LEADER_EPOCH, REMOTE_LOG_METADATA_TOPIC, uuid_from_text

_NAME = re.compile(r"(?:.*/)?(\d{20})-([A-Za-z0-9_-]{22})\.(log|indexes|rsm-manifest)")
_BATCH = struct.Struct(">qiibI")  # base offset, length, leader epoch, magic, crc
_CRC_FROM = 21


def scrub(objects: Mapping[str, bytes], values: Iterable[bytes | None]) -> list[str]:
    """`values` are those of the metadata topic's records, in the order of each partition."""
    live = live_segments(values)
    held: dict[uuid.UUID, dict[str, bytes]] = {}
    findings = []
    for name, content in objects.items():
        match = _NAME.fullmatch(name)
        segment_uuid = uuid_from_text(match[2]) if match else None
        if match is None or segment_uuid not in live:
            findings.append(f"leaked object={name}")
        else:
            held.setdefault(live[segment_uuid].segment_id.id, {})[match[3]] = content
    for segment in live.values():
        if segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
            findings += _check(segment, held.get(segment.segment_id.id, {}))
    return sorted(findings)


def live_segments(values: Iterable[bytes | None]) -> dict[uuid.UUID, RemoteLogSegmentMetadata]:
    """Segments by id; a state is never followed by an earlier one. A record with a leader epoch has
    a key, and takes the place of another segment's under it."""
    segments: dict[uuid.UUID, RemoteLogSegmentMetadata] = {}
    keyed: dict[tuple[object, ...], uuid.UUID] = {}
    for value in values:
        event: Any = decode_event(value) if value is not None else None
        if isinstance(event, RemoteLogSegmentMetadata):
            known = segments.get(event.segment_id.id)
            if known is None or event.state >= known.state:
                segments[event.segment_id.id] = event
            if event.broker_leader_epoch != NO_LEADER_EPOCH:
                partition, end = event.topic_id_partition, event.end_offset_inclusive
                key = (partition, end, event.broker_leader_epoch)
                before = keyed.setdefault(key, event.segment_id.id)
                keyed[key] = event.segment_id.id
                if before != event.segment_id.id:
                    segments.pop(before, None)
        elif isinstance(event, RemoteLogSegmentMetadataUpdate):
            known = segments.get(event.segment_id.id)
            if known is not None and event.state >= known.state:
                segments[event.segment_id.id] = known.updated(event)
    gone = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED
    return {key: each for key, each in segments.items() if each.state is not gone}


def _check(segment: RemoteLogSegmentMetadata, objects: Mapping[str, bytes]) -> Iterator[str]:
    for suffix in ("log", "indexes", "rsm-manifest"):
        if suffix not in objects:
            yield f"missing object=.{suffix} segment={segment.segment_id}"
    content = objects.get("log")
    if content is None:
        return
    if len(content) != segment.segment_size_in_bytes:
        yield (
            f"damaged segment={segment.segment_id} size={len(content)}"
            f" expected={segment.segment_size_in_bytes}"
        )
        return
    position, next_offset = 0, segment.start_offset
    while position < len(content):
        if position + _BATCH.size > len(content):
            yield f"damaged segment={segment.segment_id} position={position} batch=cut"
            return
        base_offset, length, _, magic, crc = _BATCH.unpack_from(content, position)
        batch = content[position : position + 12 + length]
        is_sound = (
            magic == 2
            and length >= 49
            and len(batch) == 12 + length
            and google_crc32c.value(batch[_CRC_FROM:]) == crc
            and next_offset <= base_offset <= segment.end_offset_inclusive
        )
        if not is_sound:
            yield f"damaged segment={segment.segment_id} position={position} batch=unsound"
            return
        next_offset = base_offset + 1
        position += len(batch)


def objects_below(folder: Path) -> dict[str, bytes]:
    """Every object of a bucket that keeps each as a file."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def metadata_values_below(
    log_directory: Path, topic: str = REMOTE_LOG_METADATA_TOPIC
) -> list[bytes | None]:
    """Values of a stopped broker's metadata topic, or its audit topic, from its segment files."""
    values: list[bytes | None] = []
    for partition in sorted(log_directory.glob(f"{topic}-[0-9]*")):
        for path in sorted(partition.glob("*.log")):
            content = path.read_bytes()
            for position, header in iterate_batches(content):
                if not header.is_control:
                    values += [each.value for each in read_records(content, position, header)]
    return values
