"""A history that a load has staged for a partition, without Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from isotherm.record.compression import CompressionType
from isotherm.remote.rewriting.history_writer import HistoryRules, HistoryWriter
from isotherm.remote.rewriting.journal import (
    JournalState,
    NewSegment,
    RewriteJournal,
    RewriteJournals,
    RunKind,
)
from isotherm.remote.rewriting.staging import stage_new_segment
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.types import Offset, TimestampMs, TopicIdPartition

FETCH_BYTES = 1000


def stage_history(
    storage: ObjectStoreRemoteStorageManager,
    journals: RewriteJournals,
    directory: Path,
    partition: TopicIdPartition,
    values: list[bytes],
    start_offset: Offset = 0,
    *,
    run: str = "run",
    now_ms: TimestampMs = 0,
    segment_bytes: int = 400,
    batch_size: int = 100,
) -> None:
    """Stage records with these values, which are their keys too, in segments of `segment_bytes`."""
    count = len(values)
    rows = pa.RecordBatch.from_arrays(
        [
            pa.array(values, pa.binary()),
            pa.array(values, pa.binary()),
            pa.array(range(now_ms, now_ms + count), pa.int64()),
            pa.array([0] * count, pa.int32()),
        ],
        names=["key", "value", "timestamp", "timestamp_type"],
    )
    rules = HistoryRules(
        now_ms=now_ms,
        segment_bytes=segment_bytes,
        index_interval_bytes=1,
        max_message_bytes=1_000_000,
        batch_size=batch_size,
        compression=CompressionType.NONE,
    )
    directory.mkdir(exist_ok=True)
    writer = HistoryWriter(partition, start_offset, rules, directory)
    staged: list[NewSegment] = []

    def stage() -> None:
        staged.append(stage_new_segment(storage, journals, run, writer.take(), FETCH_BYTES))
        writer.remove_files()

    for _ in writer.append(rows):
        stage()
    stage()
    assert len(staged) > 2
    journals.put(
        RewriteJournal(
            kind=RunKind.LOAD,
            run=run,
            partition=partition,
            state=JournalState.STAGED,
            time_ms=now_ms,
            in_place=True,
            new_segments=tuple(staged),
        )
    )
