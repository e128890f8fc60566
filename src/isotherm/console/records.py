"""Searches the records of a partition for the console, one bounded step of a scan for each
request.
"""

from __future__ import annotations

import base64
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from isotherm.client.node_address import NodeAddress
from isotherm.errors import NotLeaderOrFollowerError
from isotherm.record.batch import Record
from isotherm.remote.metadata.state.segment_columns import id_texts
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata, RemoteLogSegmentState
from isotherm.spark.tables.header_names import NAME_HEADERS, last_header
from isotherm.storage_view.cluster_storage import ClusterStorage, PartitionStorage
from isotherm.storage_view.record_scan import (
    Fetched,
    FoundRecord,
    RecordFilter,
    ScanStep,
    Tier,
    scan_step,
)
from isotherm.storage_view.record_sources import RecordSource
from isotherm.storage_view.registered_values import NamedBytes, RegisteredValue, RegisteredValues
from isotherm.storage_view.rows import Row
from isotherm.types import Offset, TimestampMs

SCANS_AT_ONCE = 4
SHOWN_BYTES_MAX = 64 * 1024
"""The most bytes shown of a key, a value or a header's value. The answer says if there are more."""

SegmentLookup = Callable[[PartitionStorage, bytes], RemoteLogSegmentMetadata | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordsWanted:
    """A request. The scan starts at `offset`, else at the first record since `timestamp_ms`, else
    at the log start. With `prefers_bucket` all offsets of finished segments are read from the
    bucket."""

    offset: Offset | None
    timestamp_ms: TimestampMs | None
    found_max: int
    filter: RecordFilter
    prefers_bucket: bool


class TooManyScansError(Exception):
    """SCANS_AT_ONCE scans are in progress."""


class RecordBrowser:
    """Runs the steps of scans. Thread-safe."""

    def __init__(
        self,
        source: RecordSource,
        segment: SegmentLookup,
        registered: RegisteredValues | None = None,
    ) -> None:
        """Without `registered`, keys and values are shown only as bytes."""
        self._source = source
        self._segment = segment
        self._registered = registered
        self._room = threading.BoundedSemaphore(SCANS_AT_ONCE)

    @property
    def reads_bucket(self) -> bool:
        return self._source.reads_bucket

    def step(
        self, storage: ClusterStorage, partition: PartitionStorage, wanted: RecordsWanted
    ) -> Row:
        """Run one step. Raises TooManyScansError, CorruptDataError for damaged records, and what
        the source raises."""
        if not self._room.acquire(blocking=False):
            raise TooManyScansError
        try:
            return self._step(storage, partition, wanted)
        finally:
            self._room.release()

    def _step(
        self, storage: ClusterStorage, partition: PartitionStorage, wanted: RecordsWanted
    ) -> Row:
        local, place = partition.state.local, partition.state.partition.topic_partition
        leader = next((b for b in storage.brokers if b.broker_id == partition.state.leader), None)
        if local is None or leader is None:
            raise NotLeaderOrFollowerError(
                f"no leader answers for the partition={place} reason={partition.state.error}"
            )
        address = NodeAddress(leader.host, leader.port)
        segments = _FinishedSegments(partition)

        def fetch(offset: Offset) -> Fetched:
            tier: Tier = "remote" if offset < local.local_log_start_offset else "local"
            segment = segments.id_of(offset) if wanted.prefers_bucket else None
            remote = None if segment is None else self._segment(partition, segment)
            return self._source.fetch(address, place, offset, tier, remote)

        first = local.log_start_offset if wanted.offset is None else wanted.offset
        if wanted.offset is None and wanted.timestamp_ms is not None:
            since = self._source.offset_at(address, place, wanted.timestamp_ms)
            first = local.high_watermark if since is None else since
        first = max(first, local.log_start_offset)
        end = local.high_watermark
        step = scan_step(fetch, first, end, wanted.filter, wanted.found_max)
        return {
            "topic": place.topic,
            "partition": place.partition,
            "log_start_offset": local.log_start_offset,
            "local_log_start_offset": local.local_log_start_offset,
            "high_watermark": end,
            "first_offset": first,
            "next_offset": step.next_offset,
            "examined": step.examined,
            "is_end": step.next_offset >= end,
            "cost": _cost(step),
            "records": self._record_rows(step.found, segments),
        }

    def _record_rows(self, found: Sequence[FoundRecord], segments: _FinishedSegments) -> list[Row]:
        rows = [_record_row(each, segments) for each in found]
        if self._registered is not None:
            values = [part for each in found for part in _named_parts(each.record)]
            contents = [part for row in rows for part in (row["key"], row["value"])]
            for content, read in zip(contents, self._registered.read_all(values), strict=True):
                if read is not None:
                    content["registered"] = _registered_row(read)
        return rows


class _FinishedSegments:
    def __init__(self, partition: PartitionStorage) -> None:
        segments = partition.segments
        chosen = np.flatnonzero(segments.in_state(RemoteLogSegmentState.COPY_SEGMENT_FINISHED))
        self._start = segments.start_offset[chosen]
        self._end = segments.end_offset[chosen]
        self._ids = [segments.ids[each] for each in chosen]

    def id_of(self, offset: Offset) -> bytes | None:
        """The id of the segment that has the offset.

        If several have it, the one that begins last.
        """
        place = int(np.searchsorted(self._start, offset, side="right")) - 1
        return self._ids[place] if place >= 0 and offset <= self._end[place] else None


def _cost(step: ScanStep) -> list[Row]:
    """The reads, bytes and seconds of each tier and source."""
    by_place: dict[tuple[str, str], list[Fetched]] = defaultdict(list)
    for each in step.fetched:
        by_place[each.tier, each.source].append(each)
    return [
        {
            "tier": tier,
            "source": source,
            "reads": sum(each.reads for each in some),
            "bytes": sum(each.size_in_bytes for each in some),
            "seconds": round(sum(each.seconds for each in some), 6),
        }
        for (tier, source), some in by_place.items()
    ]


def _record_row(found: FoundRecord, segments: _FinishedSegments) -> Row:
    """The row of a record. `segment` is the remote segment that has it, even if it was read from
    the local tier."""
    record, batch = found.record, found.batch
    segment = segments.id_of(record.offset)
    return {
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": _bytes_row(record.key),
        "value": _bytes_row(record.value),
        "headers": [{"name": name, "value": _bytes_row(value)} for name, value in record.headers],
        "tier": found.tier,
        "segment": None if segment is None else id_texts([segment])[0],
        "batch": {
            "base_offset": batch.base_offset,
            "records": batch.records_count,
            "size_in_bytes": batch.size_in_bytes,
            "compression": batch.compression_type.name.lower(),
            "is_transactional": batch.is_transactional,
            "producer_id": batch.producer_id,
            "leader_epoch": batch.partition_leader_epoch,
        },
    }


def _named_parts(record: Record) -> tuple[NamedBytes, NamedBytes]:
    key, value = (last_header(record.headers, name) for name in NAME_HEADERS)
    return NamedBytes(record.key, key), NamedBytes(record.value, value)


def _registered_row(read: RegisteredValue) -> Row:
    """The row of a decoded value.

    `schema_id` is a number, or a GUID as text. `text` is JSON, cut off after SHOWN_BYTES_MAX
    characters.
    """
    text = read.text
    return {
        "schema_id": read.schema_id if isinstance(read.schema_id, int) else str(read.schema_id),
        "kind": read.kind,
        "text": None if text is None else text[:SHOWN_BYTES_MAX],
        "is_cut": text is not None and len(text) > SHOWN_BYTES_MAX,
        "error": read.error,
    }


def _bytes_row(data: bytes | None) -> Row | None:
    if data is None:
        return None
    shown = data[:SHOWN_BYTES_MAX]
    return {"size": len(data), "base64": base64.b64encode(shown).decode("ascii")}
