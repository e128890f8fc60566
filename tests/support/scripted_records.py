"""Generates the records that the console reads, at any offset of any partition."""

from __future__ import annotations

from collections.abc import Sequence

from isotherm.client.node_address import NodeAddress
from isotherm.record.batch import NewRecord, build_batch
from isotherm.record.compression import CompressionType
from isotherm.remote.segment_metadata import RemoteLogSegmentMetadata
from isotherm.storage_view.record_scan import Fetched, Tier
from isotherm.types import Offset, TimestampMs, TopicPartition

FIRST_MS = 1_767_000_000_000
BATCH_RECORDS = 100
BATCHES = 10  # of one fetch


class ScriptedRecords:
    """A `RecordSource`: a record each millisecond, in batches of 100, ten in each fetch. The key of
    offset 7 is `key-7`; every 500th value is not UTF-8; every 50th record has a header."""

    def __init__(self, *, reads_bucket: bool = False, frame: bytes = b"") -> None:
        """`frame` precedes each value. `live_ends` are the ends of logs for a live tail."""
        self._reads_bucket = reads_bucket
        self._frame = frame
        self.live_ends: dict[TopicPartition, Offset] = {}

    @property
    def reads_bucket(self) -> bool:
        return self._reads_bucket

    def fetch(
        self,
        leader: NodeAddress,
        place: TopicPartition,
        offset: Offset,
        tier: Tier,
        remote: RemoteLogSegmentMetadata | None,
    ) -> Fetched:
        base = offset - offset % BATCH_RECORDS
        data = b"".join(_batch(base + n * BATCH_RECORDS, self._frame) for n in range(BATCHES))
        if remote is not None:
            return Fetched(memoryview(data), "remote", "bucket", 2, len(data), 0.02)
        return Fetched(memoryview(data), tier, f"broker {leader}", 1, len(data), 0.01)

    def offset_at(
        self, leader: NodeAddress, place: TopicPartition, timestamp_ms: TimestampMs
    ) -> Offset | None:
        return max(0, timestamp_ms - FIRST_MS)

    def ends(
        self, leader: NodeAddress, places: Sequence[TopicPartition]
    ) -> dict[TopicPartition, Offset]:
        return {place: self.live_ends[place] for place in places if place in self.live_ends}

    def close(self) -> None:
        """Nothing is held open."""


def _batch(base: Offset, frame: bytes) -> bytes:
    records = [_record(offset, frame) for offset in range(base, base + BATCH_RECORDS)]
    return bytes(build_batch(records, base_offset=base, compression=CompressionType.LZ4))


def _record(offset: Offset, frame: bytes) -> NewRecord:
    value = b'{"flight": %d, "carrier": "UA", "delay": 1.10}' % offset
    if offset % 500 == 0:
        value = bytes([0xFF, 0, offset % 256])
    headers = [("trace", b"t-%d" % offset)] if offset % 50 == 0 else []
    return NewRecord(FIRST_MS + offset, b"key-%d" % offset, frame + value, headers)
