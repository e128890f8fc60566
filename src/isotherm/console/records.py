"""Searches the records of topics for the console, one bounded step of a scan for each request."""

from __future__ import annotations

import base64
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from isotherm.client.node_address import NodeAddress
from isotherm.errors import IsothermError, NotLeaderOrFollowerError
from isotherm.record.batch import Record
from isotherm.remote.metadata.state.segment_columns import id_texts
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata, RemoteLogSegmentState
from isotherm.spark.tables.header_names import NAME_HEADERS, last_header
from isotherm.storage_view.cluster_storage import (
    ClusterStorage,
    PartitionStorage,
    TopicStorage,
)
from isotherm.storage_view.partition_storage import LocalTier
from isotherm.storage_view.record_scan import (
    Fetched,
    FoundRecord,
    RecordFilter,
    ScanStep,
    StepLimits,
    Tier,
    newest_step,
    scan_step,
)
from isotherm.storage_view.record_sources import RecordSource
from isotherm.storage_view.registered_values import NamedBytes, RegisteredValue, RegisteredValues
from isotherm.storage_view.rows import Row
from isotherm.types import Offset, TimestampMs

SCANS_AT_ONCE = 4
FOUND_AT_ONCE_MAX = 500
"""The most records of a step over several partitions."""
SHOWN_BYTES_MAX = 64 * 1024
"""The most bytes shown of a key, a value or a header's value. The answer says if there are more."""

SegmentLookup = Callable[[PartitionStorage, bytes], RemoteLogSegmentMetadata | None]


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """A part of a partition that is left to search. Without `first` and `end` it is resolved from
    the search's bounds and the log."""

    partition: int
    first: Offset | None = None
    end: Offset | None = None

    def __str__(self) -> str:
        """As requests have it."""
        if self.first is None or self.end is None:
            return str(self.partition)
        return f"{self.partition}:{self.first}:{self.end}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSearch:
    """A search of several partitions. `first` and `end` are offsets of each partition, `since_ms`
    and `until_ms_inclusive` times; None is no bound. `found_max` is of each partition."""

    ranges: Sequence[OffsetRange]
    is_newest_first: bool
    filter: RecordFilter
    found_max: int
    prefers_bucket: bool = False
    first: Offset | None = None
    end: Offset | None = None
    since_ms: TimestampMs | None = None
    until_ms_inclusive: TimestampMs | None = None


@dataclass(frozen=True, slots=True)
class RangeStep:
    """What a step did in one partition. `left` is where the next step goes on, None at the end.
    `error` is the reason if the partition cannot be read; `left` then is as before."""

    partition: PartitionStorage
    whole: OffsetRange
    left: OffsetRange | None
    step: ScanStep
    error: str | None = None


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

    def topic_step(
        self,
        storage: ClusterStorage,
        topic: TopicStorage,
        search: TopicSearch,
        *,
        is_live: bool = False,
    ) -> list[RangeStep]:
        """Run one step over the search's ranges, within the limits of a step for all of them
        together. A partition that cannot be read does not stop the others. The ends of ranges that
        are `is_live` are newer than `storage`. Raises TooManyScansError."""
        if not self._room.acquire(blocking=False):
            raise TooManyScansError
        try:
            return self._topic_step(storage, topic, search, is_live=is_live)
        finally:
            self._room.release()

    def _topic_step(
        self, storage: ClusterStorage, topic: TopicStorage, search: TopicSearch, *, is_live: bool
    ) -> list[RangeStep]:
        limits, steps, found_count = StepLimits(), [], 0
        partitions = {
            partition.state.partition.partition: partition for partition in topic.partitions
        }
        for offset_range in search.ranges:
            partition = partitions.get(offset_range.partition)
            if partition is None:
                continue
            room = min(search.found_max, FOUND_AT_ONCE_MAX - found_count)
            if limits.is_used_up or room <= 0:
                steps.append(
                    RangeStep(partition, offset_range, offset_range, ScanStep((), 0, 0, ()))
                )
                continue
            try:
                whole = offset_range
                if not is_live:
                    whole = self._resolved(storage, partition, offset_range, search, limits)
                step = self._range_step(storage, partition, whole, search, room, limits)
            except IsothermError as error:
                step = RangeStep(
                    partition, offset_range, offset_range, ScanStep((), 0, 0, ()), str(error)
                )
            found_count += len(step.step.matches)
            steps.append(step)
        return steps

    def _range_step(
        self,
        storage: ClusterStorage,
        partition: PartitionStorage,
        whole: OffsetRange,
        search: TopicSearch,
        found_max: int,
        limits: StepLimits,
    ) -> RangeStep:
        first, end = whole.first, whole.end
        assert first is not None
        assert end is not None
        fetch = self._fetch(storage, partition, prefers_bucket=search.prefers_bucket)
        scan = newest_step if search.is_newest_first else scan_step
        step = scan(fetch, first, end, search.filter, found_max, limits)
        if search.is_newest_first:
            end = step.next_offset
        else:
            first = step.next_offset
        left = OffsetRange(whole.partition, first, end) if first < end else None
        return RangeStep(partition, whole, left, step)

    def _resolved(
        self,
        storage: ClusterStorage,
        partition: PartitionStorage,
        offsets: OffsetRange,
        search: TopicSearch,
        limits: StepLimits,
    ) -> OffsetRange:
        local, address = _leader(storage, partition)
        if offsets.first is not None and offsets.end is not None:
            first, end = offsets.first, offsets.end
        else:
            place = partition.state.partition.topic_partition
            first = next(
                offset
                for offset in (offsets.first, search.first, local.log_start_offset)
                if offset is not None
            )
            end = local.high_watermark if search.end is None else search.end
            if search.since_ms is not None:
                limits.fetches -= 1
                since = self._source.offset_at(address, place, search.since_ms)
                first = max(first, local.high_watermark if since is None else since)
            if search.until_ms_inclusive is not None:
                limits.fetches -= 1
                after = self._source.offset_at(address, place, search.until_ms_inclusive + 1)
                end = end if after is None else min(end, after)
        # The log may have moved since the page was told its offsets.
        first = max(first, local.log_start_offset)
        return OffsetRange(offsets.partition, first, max(first, min(end, local.high_watermark)))

    def _fetch(
        self, storage: ClusterStorage, partition: PartitionStorage, *, prefers_bucket: bool
    ) -> Callable[[Offset], Fetched]:
        local, address = _leader(storage, partition)
        place = partition.state.partition.topic_partition
        segments = _FinishedSegments(partition)

        def fetch(offset: Offset) -> Fetched:
            tier: Tier = "remote" if offset < local.local_log_start_offset else "local"
            segment = segments.id_of(offset) if prefers_bucket else None
            remote = None if segment is None else self._segment(partition, segment)
            return self._source.fetch(address, place, offset, tier, remote)

        return fetch

    def topic_rows(self, topic: str, steps: Sequence[RangeStep]) -> Row:
        """The answer of a step."""
        return {
            "topic": topic,
            "partitions": [
                {
                    "partition": step.whole.partition,
                    "first_offset": step.whole.first,
                    "end_offset": step.whole.end,
                    "left": None if step.left is None else str(step.left),
                    "examined": step.step.examined,
                    "error": step.error,
                    "records": self._record_rows(step.partition, step.step.matches),
                }
                for step in steps
            ],
            "cost": _cost([fetched for step in steps for fetched in step.step.fetched]),
        }

    def _record_rows(
        self, partition: PartitionStorage, records: Sequence[FoundRecord]
    ) -> list[Row]:
        segments = _FinishedSegments(partition)
        rows = [_record_row(record, segments) for record in records]
        if self._registered is not None:
            values = [part for record in records for part in _named_parts(record.record)]
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
        self._ids = [segments.ids[place] for place in chosen]

    def id_of(self, offset: Offset) -> bytes | None:
        """The id of the segment that has the offset.

        If several have it, the one that begins last.
        """
        place = int(np.searchsorted(self._start, offset, side="right")) - 1
        return self._ids[place] if place >= 0 and offset <= self._end[place] else None


def _leader(storage: ClusterStorage, partition: PartitionStorage) -> tuple[LocalTier, NodeAddress]:
    """Raises NotLeaderOrFollowerError if the last look has none that answers."""
    local = partition.state.local
    leader = next((b for b in storage.brokers if b.broker_id == partition.state.leader), None)
    if local is None or leader is None:
        place = partition.state.partition.topic_partition
        raise NotLeaderOrFollowerError(
            f"no leader answers for the partition={place} reason={partition.state.error}"
        )
    return local, NodeAddress(leader.host, leader.port)


def _cost(fetched: Sequence[Fetched]) -> list[Row]:
    """The reads, bytes and seconds of each tier and source."""
    by_place: dict[tuple[str, str], list[Fetched]] = defaultdict(list)
    for read in fetched:
        by_place[read.tier, read.source].append(read)
    return [
        {
            "tier": tier,
            "source": source,
            "reads": sum(read.reads for read in some),
            "bytes": sum(read.size_in_bytes for read in some),
            "seconds": round(sum(read.seconds for read in some), 6),
        }
        for (tier, source), some in by_place.items()
    ]


def _record_row(match: FoundRecord, segments: _FinishedSegments) -> Row:
    """The row of a record. `segment` is the remote segment that has it, even if it was read from
    the local tier."""
    record, batch = match.record, match.batch
    segment = segments.id_of(record.offset)
    return {
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": _bytes_row(record.key),
        "value": _bytes_row(record.value),
        "headers": [{"name": name, "value": _bytes_row(value)} for name, value in record.headers],
        "tier": match.tier,
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
