"""Checks independently that a bucket and the metadata of the remote tier agree.

To be independent, this module uses neither the storage manager, nor its layout, nor the metadata
cache. It parses object names with its own patterns, folds events with its own rule, finds batches
by their length fields and computes their CRCs. Segments must be neither compressed nor encrypted.

Findings, one line each:
  leaked    an object of a segment that no live metadata names
  missing   an object of a finished segment that does not exist
  damaged   a finished segment's `.log` does not match the metadata
"""

from __future__ import annotations

import re
import struct
import uuid
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import google_crc32c

from isotherm.record.batch import iterate_batches, read_records
from isotherm.remote.metadata.wire.serde import decode_event
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from isotherm.testing.bucket_files import files_below
from isotherm.types import NO_LEADER_EPOCH, REMOTE_LOG_METADATA_TOPIC, uuid_from_text


class Layout(NamedTuple):
    """The names of objects. The groups of `name` are the segment's id and the suffix. `required`
    has the suffixes that every finished segment has."""

    name: re.Pattern[str]
    required: tuple[str, ...]


AIVEN = Layout(
    re.compile(r"(?:.*/)?\d{20}-([A-Za-z0-9_-]{22})\.(log|indexes|rsm-manifest)"),
    ("log", "indexes", "rsm-manifest"),
)
LOCAL_TIERED_STORAGE = Layout(
    re.compile(
        r"(?:.*/)?\d{20}-([A-Za-z0-9_-]{22})"
        r"\.(log|index|timeindex|txnindex|leader_epoch_checkpoint|snapshot)"
    ),
    ("log", "index", "timeindex", "leader_epoch_checkpoint", "snapshot"),
)

_BATCH = struct.Struct(">qiibI")  # base offset, length, leader epoch, magic, crc
_CRC_FROM = 21


def scrub(
    objects: Mapping[str, bytes], values: Iterable[bytes | None], layout: Layout = AIVEN
) -> list[str]:
    """The findings, one line each. `values` are those of the metadata topic's records, in offset
    order for each partition."""
    live = live_segments(values)
    held: dict[uuid.UUID, dict[str, bytes]] = {}
    findings = []
    for name, content in objects.items():
        match = layout.name.fullmatch(name)
        segment_uuid = uuid_from_text(match[1]) if match else None
        if match is None or segment_uuid not in live:
            findings.append(f"leaked object={name}")
        else:
            held.setdefault(live[segment_uuid].segment_id.id, {})[match[2]] = content
    for segment in live.values():
        if segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED:
            findings += _check(segment, held.get(segment.segment_id.id, {}), layout.required)
    return sorted(findings)


def live_segments(values: Iterable[bytes | None]) -> dict[uuid.UUID, RemoteLogSegmentMetadata]:
    """The live segments by id. A segment never returns to an earlier state. A record with a leader
    epoch is keyed, and replaces an earlier segment with its key."""
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


def _check(
    segment: RemoteLogSegmentMetadata, objects: Mapping[str, bytes], required: Iterable[str]
) -> Iterator[str]:
    for suffix in required:
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
    """All objects of a bucket in a folder, by key."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files_below(folder)}


def metadata_values_below(
    log_directory: Path, topic: str = REMOTE_LOG_METADATA_TOPIC
) -> list[bytes | None]:
    """The values of a stopped broker's metadata topic, or of its audit topic, from its segment
    files.
    """
    values: list[bytes | None] = []
    for partition in sorted(log_directory.glob(f"{topic}-[0-9]*")):
        for path in sorted(partition.glob("*.log")):
            content = path.read_bytes()
            for position, header in iterate_batches(content):
                if not header.is_control:
                    values += [record.value for record in read_records(content, position, header)]
    return values
