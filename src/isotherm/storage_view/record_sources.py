"""Reads records of a partition for people to look at, from its leader or from the bucket itself."""

from __future__ import annotations

import datetime
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from kio.schema.errors import ErrorCode

from isotherm.client.cluster_client import ClusterClient
from isotherm.client.node_address import NodeAddress
from isotherm.clock import Clock
from isotherm.errors import CorruptObjectError, NotLeaderOrFollowerError
from isotherm.protocol.api_keys import ApiKey
from isotherm.protocol.code_names import code_name
from isotherm.record.batch_header import iterate_batches, read_batch_header
from isotherm.remote.segment_metadata import IndexType, RemoteLogSegmentMetadata
from isotherm.remote.storage.api import RemoteStorageManager
from isotherm.segment.offset_index import lookup_offset
from isotherm.storage_view.cluster_reader import LATEST, list_offsets
from isotherm.storage_view.record_scan import Fetched, Tier
from isotherm.types import Offset, Position, TimestampMs, TopicPartition

FETCH_BYTES = 1024 * 1024
BATCH_BYTES_MAX = 128 * 1024 * 1024
FETCH_WAIT = datetime.timedelta(seconds=5)
INDEXES_MAX = 64
_FETCH_VERSION = 12  # the last that names topics by their names


class RecordSource(Protocol):
    """A source of batches. Thread-safe. If `remote` is the segment of the offset, the batches may
    come from the bucket, otherwise from the leader."""

    def fetch(
        self,
        leader: NodeAddress,
        place: TopicPartition,
        offset: Offset,
        tier: Tier,
        remote: RemoteLogSegmentMetadata | None,
    ) -> Fetched: ...

    def offset_at(
        self, leader: NodeAddress, place: TopicPartition, timestamp_ms: TimestampMs
    ) -> Offset | None:
        """The offset of the first record that is not older than `timestamp_ms`.

        None if there is none.
        """

    def ends(
        self, leader: NodeAddress, places: Sequence[TopicPartition]
    ) -> dict[TopicPartition, Offset]:
        """The high watermarks of partitions, by one request. Those that the leader refuses are left
        out."""
        ...

    @property
    def reads_bucket(self) -> bool: ...

    def close(self) -> None: ...


class ClusterRecords:
    """`RecordSource` over a cluster, and over the bucket if `storage` is given. It has its own
    connections, so that a long read does not delay the views of the cluster."""

    def __init__(
        self,
        properties: Mapping[str, Any],
        clock: Clock,
        storage: RemoteStorageManager | None = None,
    ) -> None:
        """Open no connection yet."""
        self._properties = properties
        self._clock = clock
        self._bucket = None if storage is None else BucketRecords(storage, clock)
        self._client: ClusterClient | None = None
        self._opening = threading.Lock()

    @property
    def reads_bucket(self) -> bool:
        return self._bucket is not None

    def fetch(
        self,
        leader: NodeAddress,
        place: TopicPartition,
        offset: Offset,
        tier: Tier,
        remote: RemoteLogSegmentMetadata | None,
    ) -> Fetched:
        """Fetch batches from `offset` on. Raises as `ClusterClient.ask` and the bucket's storage
        manager do, and NotLeaderOrFollowerError with the leader's reason if it refuses."""
        if remote is not None and self._bucket is not None:
            return self._bucket.fetch(remote, offset)
        began_s = self._clock.monotonic_s()
        partition = {
            "partition": place.partition,
            "fetch_offset": offset,
            "partition_max_bytes": FETCH_BYTES,
        }
        answer = self._opened().ask(
            leader,
            ApiKey.FETCH,
            {
                "replica_id": -1,  # a consumer
                "max_wait": FETCH_WAIT,
                "min_bytes": 1,
                "max_bytes": FETCH_BYTES,
                # read_uncommitted: records of open and aborted transactions are shown too.
                "isolation_level": 0,
                "topics": [{"topic": place.topic, "partitions": [partition]}],
                "forgotten_topics_data": (),
            },
            newest=_FETCH_VERSION,
            oldest=4,
        )
        ((response,),) = (topic.partitions for topic in answer.responses)
        if response.error_code is not ErrorCode.none:
            raise NotLeaderOrFollowerError(
                f"the leader does not give records partition={place} offset={offset} peer={leader}"
                f" reason={code_name(response.error_code)}"
            )
        data = memoryview(response.records or b"")
        seconds = self._clock.monotonic_s() - began_s
        return Fetched(data, tier, f"broker {leader}", 1, len(data), seconds)

    def offset_at(
        self, leader: NodeAddress, place: TopicPartition, timestamp_ms: TimestampMs
    ) -> Offset | None:
        offsets = list_offsets(self._opened(), leader, [place], timestamp_ms)
        offset = offsets.get(place, -1)
        return None if offset < 0 else offset

    def ends(
        self, leader: NodeAddress, places: Sequence[TopicPartition]
    ) -> dict[TopicPartition, Offset]:
        return list_offsets(self._opened(), leader, places, LATEST)

    def close(self) -> None:
        with self._opening:
            if self._client is not None:
                self._client.close()

    def _opened(self) -> ClusterClient:
        with self._opening:
            if self._client is None:
                self._client = ClusterClient(self._properties, client_id="isotherm-storage-view")
            return self._client


class BucketRecords:
    """Reads ranges of remote segments, which it finds by their offset indexes. It keeps the last
    INDEXES_MAX indexes. Thread-safe."""

    def __init__(self, storage: RemoteStorageManager, clock: Clock) -> None:
        self._storage = storage
        self._clock = clock
        self._indexes: OrderedDict[object, bytes] = OrderedDict()
        self._guard = threading.Lock()

    def fetch(self, metadata: RemoteLogSegmentMetadata, offset: Offset) -> Fetched:
        """Whole batches, one of which ends at or after `offset`. Raises as the storage manager
        does, and CorruptObjectError if the segment has no such batch."""
        began_s = self._clock.monotonic_s()
        index, reads = self._index(metadata)
        size = len(index) if reads else 0
        position = lookup_offset(index, metadata.start_offset, offset).position
        length = FETCH_BYTES
        while position < metadata.segment_size_in_bytes:
            data = self._storage.fetch_log_segment(metadata, position, position + length - 1)
            reads += 1
            size += len(data)
            end, next_offset = _whole_batches(data)
            if next_offset > offset:
                seconds = self._clock.monotonic_s() - began_s
                return Fetched(data[:end], "remote", "bucket", reads, size, seconds)
            position += end
            length = FETCH_BYTES
            if not end:
                # The batch is larger than the range. Fetch it whole, if its size is plausible.
                length = read_batch_header(data).size_in_bytes
                if not len(data) < length <= BATCH_BYTES_MAX:
                    break
        raise CorruptObjectError(
            "a remote segment does not have an offset that its metadata name"
            f" segment={metadata.segment_id} offset={offset} position={position}"
        )

    def _index(self, metadata: RemoteLogSegmentMetadata) -> tuple[bytes, int]:
        """The offset index of a segment, and the number of reads that it took: 0 or 1."""
        segment_id = metadata.segment_id.id
        with self._guard:
            if segment_id in self._indexes:
                self._indexes.move_to_end(segment_id)
                return self._indexes[segment_id], 0
        index = self._storage.fetch_index(metadata, IndexType.OFFSET)
        with self._guard:
            self._indexes[segment_id] = index
            if len(self._indexes) > INDEXES_MAX:
                self._indexes.popitem(last=False)
        return index, 1


def _whole_batches(data: memoryview) -> tuple[Position, Offset]:
    """The position where the last whole batch ends, and the offset after it.

    Both are 0 without a batch.
    """
    end, next_offset = 0, 0
    for position, header in iterate_batches(data):
        end, next_offset = position + header.size_in_bytes, header.next_offset
    return end, next_offset
