"""Records of a metadata topic as files of its log, for tests of readers of a dump."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from isotherm.record.batch import NewRecord, assign_offsets, build_batch
from isotherm.types import REMOTE_LOG_METADATA_TOPIC, Offset

DumpedRecord = tuple[bytes | None, bytes | None]


def write_dump(
    directory: Path,
    number: int,
    records: Sequence[DumpedRecord],
    *,
    first_offset: Offset = 0,
    first_timestamp_ms: int = 0,
    timestamps_ms: Sequence[int] | None = None,
    topic: str = REMOTE_LOG_METADATA_TOPIC,
) -> Path:
    """Write a segment file of a partition's log under `directory`; return its path.

    Each record is a batch; by default each is a millisecond later than the one before.
    """
    folder = directory / f"{topic}-{number}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{first_offset:020d}.log"
    content = bytearray()
    for index, (key, value) in enumerate(records):
        timestamp_ms = timestamps_ms[index] if timestamps_ms else first_timestamp_ms + index
        batch = build_batch([NewRecord(timestamp_ms, key, value)])
        assign_offsets(batch, 0, first_offset + index, 0)
        content += batch
    path.write_bytes(content)
    return path
