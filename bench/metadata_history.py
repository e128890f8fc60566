"""Years of `__remote_log_metadata`, as brokers of feature level 0 leave them, made in seconds.

KIP-1266 counts 1.2 million records a year at 1 TB a day: 300,000 segments with four events each,
for the start and the end of their copy and of their deletion. The number of live segments is
constant. Each record is a batch, as a broker appends them one by one, in one metadata partition
that serves 100 user partitions. The bytes are those of real batches: Apache Kafka reads them.
"""

from __future__ import annotations

import uuid
from pathlib import Path

import google_crc32c
import numpy as np
import numpy.typing as npt

from isotherm.record.batch import NewRecord, build_batch
from isotherm.remote.metadata.wire.serde import encode_event
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
)
from isotherm.types import TopicIdPartition

EVENTS_PER_YEAR = 1_200_000
LIVE_SEGMENTS = 10_000
USER_PARTITIONS = 100
OFFSETS_PER_SEGMENT = 1_000_000
START_MS = 1_700_000_000_000
DIRECTORY = "__remote_log_metadata-0"

_TOPIC = "flights"
_TOPIC_ID = uuid.UUID(int=0x5F3C << 96)
_CUSTOM_METADATA = b"aiven-segment-7f3a1c"  # about the size that the plug-in of that name stores
_CHUNK = 20_000
_FILE_SIZE_MAX = 512 * 1024 * 1024
_CRC_START = 21
# Positions in a value behind the topic's name: id, partition, segment id, and what follows it.
_PARTITION = 16
_SEGMENT_ID = 21
_REST = 38

Bytes = npt.NDArray[np.uint8]


def write_history(
    directory: Path,
    events: int,
    live: int = LIVE_SEGMENTS,
    *,
    seed: int = 1,
    first_offset: int = 0,
) -> int:
    """Write the segment files of the metadata partition under `directory`; return the bytes
    written.

    Each seed gives other segment ids.
    """
    target = directory / DIRECTORY
    target.mkdir(parents=True)
    # Each segment has four events; the live ones at the end have two.
    segments = (events + 2 * live) // 4
    ids = np.random.default_rng(seed).integers(0, 2**63, size=(segments, 2), dtype=np.int64)
    offset, size = first_offset, 0
    file = None
    for first in range(0, segments, _CHUNK):
        numbers = np.arange(first, min(first + _CHUNK, segments))
        chunk = _chunk(numbers, ids, offset, live)
        if file is None or file.tell() > _FILE_SIZE_MAX:
            if file is not None:
                file.close()
            file = (target / f"{offset:020d}.log").open("wb")
        file.write(chunk)
        size += len(chunk)
        offset += 2 * len(numbers) + 2 * int((numbers >= live).sum())
    if file is not None:
        file.close()
    return size


def _chunk(
    numbers: npt.NDArray[np.int64], ids: npt.NDArray[np.int64], offset: int, live: int
) -> bytes:
    dying = numbers[numbers >= live] - live
    blocks = [_added(numbers, ids), _updated(numbers, ids, _FINISHED)]
    late = [_updated(dying, ids, _DELETE_STARTED), _updated(dying, ids, _DELETE_FINISHED)]
    early = len(numbers) - len(dying)
    parts = []
    for start, end, group in ((0, early, blocks), (early, len(numbers), [*blocks, *late])):
        rows = [block[start:end] if index < 2 else block for index, block in enumerate(group)]
        if start == end:
            continue
        for index, block in enumerate(rows):
            _put(block, 0, offset + index + len(rows) * np.arange(end - start), 8)
            _seal(block)
        parts.append(np.concatenate(rows, axis=1).tobytes())
        offset += len(rows) * (end - start)
    return b"".join(parts)


def _added(numbers: npt.NDArray[np.int64], ids: npt.NDArray[np.int64]) -> Bytes:
    block, value = _block(encode_event(_SEGMENT), len(numbers))
    _identify(block, value, numbers, ids)
    start = numbers // USER_PARTITIONS * OFFSETS_PER_SEGMENT
    rest = value + _REST
    _put(block, rest, start, 8)
    _put(block, rest + 8, start + OFFSETS_PER_SEGMENT - 1, 8)
    _put(block, rest + 20, START_MS + numbers * 1000, 8)
    _put(block, rest + 28, START_MS + numbers * 1000, 8)
    _put(block, rest + 41, start, 8)
    return block


def _updated(numbers: npt.NDArray[np.int64], ids: npt.NDArray[np.int64], template: bytes) -> Bytes:
    block, value = _block(template, len(numbers))
    _identify(block, value, numbers, ids)
    _put(block, value + _REST + 4, START_MS + numbers * 1000, 8)
    return block


def _block(value: bytes, count: int) -> tuple[Bytes, int]:
    """`count` batches of one record, and the position of the topic id in each."""
    batch = build_batch([NewRecord(START_MS, None, value)])
    rows = np.tile(np.frombuffer(bytes(batch), dtype=np.uint8), (count, 1))
    return rows, bytes(batch).index(value) + 4 + len(_TOPIC)


def _identify(
    block: Bytes, value: int, numbers: npt.NDArray[np.int64], ids: npt.NDArray[np.int64]
) -> None:
    _put(block, value + _PARTITION, numbers % USER_PARTITIONS, 4)
    _put(block, value + _SEGMENT_ID, ids[numbers, 0], 8)
    _put(block, value + _SEGMENT_ID + 8, ids[numbers, 1], 8)


def _put(block: Bytes, position: int, numbers: npt.NDArray[np.int64], size: int) -> None:
    raw = np.ascontiguousarray(numbers, dtype=f">i{size}").view(np.uint8)
    block[:, position : position + size] = raw.reshape(len(numbers), size)


def _seal(block: Bytes) -> None:
    value = google_crc32c.value
    crcs = np.array([value(row.tobytes()) for row in block[:, _CRC_START:]], dtype=np.int64)
    _put(block, 17, crcs.astype(np.uint32).astype(np.int64), 4)


def _update_template(state: RemoteLogSegmentState, custom_metadata: bytes | None) -> bytes:
    return encode_event(
        RemoteLogSegmentMetadataUpdate(
            segment_id=_SEGMENT.segment_id,
            event_timestamp_ms=0,
            state=state,
            broker_id=1,
            custom_metadata=custom_metadata,
        )
    )


_SEGMENT = RemoteLogSegmentMetadata(
    segment_id=RemoteLogSegmentId(TopicIdPartition(_TOPIC_ID, _TOPIC, 0), uuid.UUID(int=0)),
    start_offset=0,
    end_offset_inclusive=0,
    max_timestamp_ms=0,
    broker_id=1,
    event_timestamp_ms=0,
    segment_size_in_bytes=2**30,
    segment_leader_epochs={3: 0},
)
_FINISHED = _update_template(RemoteLogSegmentState.COPY_SEGMENT_FINISHED, _CUSTOM_METADATA)
_DELETE_STARTED = _update_template(RemoteLogSegmentState.DELETE_SEGMENT_STARTED, _CUSTOM_METADATA)
_DELETE_FINISHED = _update_template(RemoteLogSegmentState.DELETE_SEGMENT_FINISHED, None)
