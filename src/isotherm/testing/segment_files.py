"""Creates random segments for tests of the remote tier: files with their metadata, from one
seed.
"""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass
from pathlib import Path

from isotherm.remote.segment_metadata import (
    IndexType,
    LogSegmentData,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
)
from isotherm.types import Offset, TopicIdPartition


@dataclass(frozen=True, slots=True)
class MadeSegment:
    """A segment as the copy task passes it to a storage manager."""

    metadata: RemoteLogSegmentMetadata
    data: LogSegmentData

    def log_bytes(self) -> bytes:
        return self.data.log_path.read_bytes()

    def index_bytes(self, index_type: IndexType) -> bytes | None:
        """The content of an index. None for a transaction index that does not exist."""
        if index_type is IndexType.LEADER_EPOCH:
            return self.data.leader_epoch_checkpoint
        path = {
            IndexType.OFFSET: self.data.offset_index_path,
            IndexType.TIMESTAMP: self.data.time_index_path,
            IndexType.PRODUCER_SNAPSHOT: self.data.producer_snapshot_path,
            IndexType.TRANSACTION: self.data.transaction_index_path,
        }[index_type]
        return None if path is None else path.read_bytes()


class SegmentMaker:
    """Writes segments of random bytes into `directory`. The same seed makes the same segments.

    The bytes are not record batches, because a storage manager does not look into a segment.
    Indexes have whole, ascending entries, as far as their codecs check that.
    """

    def __init__(self, directory: Path, seed: int = 0) -> None:
        self._directory = directory
        self._rng = random.Random(seed)  # noqa: S311 - test data

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(bytes=self._rng.randbytes(16))

    def partition(self, topic: str = "flights", partition: int = 0) -> TopicIdPartition:
        return TopicIdPartition(self.uuid(), topic, partition)

    def segment(
        self,
        partition: TopicIdPartition | None = None,
        *,
        start_offset: Offset = 0,
        record_count: int = 1000,
        size: int = 20_000,
        index_entries: int = 10,
        with_transaction_index: bool = False,
        producer_snapshot: bytes = b"snapshot",
    ) -> MadeSegment:
        segment_id = RemoteLogSegmentId(partition or self.partition(), self.uuid())
        directory = self._directory / segment_id.id.hex
        directory.mkdir(parents=True)
        data = LogSegmentData(
            log_path=_write(directory / "log", self._rng.randbytes(size)),
            offset_index_path=_write(directory / "index", _offset_index(index_entries, size)),
            time_index_path=_write(directory / "timeindex", _time_index(index_entries)),
            transaction_index_path=_write(directory / "txnindex", _TRANSACTION_INDEX)
            if with_transaction_index
            else None,
            producer_snapshot_path=_write(directory / "snapshot", producer_snapshot),
            leader_epoch_checkpoint=f"0\n1\n0 {start_offset}\n".encode(),
        )
        metadata = RemoteLogSegmentMetadata(
            segment_id=segment_id,
            start_offset=start_offset,
            end_offset_inclusive=start_offset + record_count - 1,
            max_timestamp_ms=1_700_000_000_123,
            broker_id=1,
            event_timestamp_ms=1_700_000_001_000,
            segment_size_in_bytes=size,
            segment_leader_epochs={0: start_offset},
            txn_index_empty=not with_transaction_index,
        )
        return MadeSegment(metadata, data)


FIRST_INDEXED_TIMESTAMP_MS = 1_700_000_000_000
OFFSETS_PER_ENTRY = 10
_TRANSACTION_INDEX = bytes.fromhex(
    "00000000000000000007000000000000000400000000000000050000000000000006"
)


def _offset_index(entries: int, size: int) -> bytes:
    step = size // (entries + 1)
    return b"".join(
        (OFFSETS_PER_ENTRY * (i + 1)).to_bytes(4, "big") + (step * (i + 1)).to_bytes(4, "big")
        for i in range(entries)
    )


def _time_index(entries: int) -> bytes:
    return b"".join(
        (FIRST_INDEXED_TIMESTAMP_MS + i).to_bytes(8, "big")
        + (OFFSETS_PER_ENTRY * (i + 1)).to_bytes(4, "big")
        for i in range(entries)
    )


def _write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path
