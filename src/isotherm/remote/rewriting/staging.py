"""Uploads rewritten files as a staged segment without its commit mark, and verifies it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from isotherm.errors import CorruptObjectError, CorruptRecordError
from isotherm.record.batch_table import read_batch_table, verify_crcs
from isotherm.record.crc32c import crc32c_extended
from isotherm.remote.rewriting.journal import (
    NewSegment,
    RewriteJournals,
    SegmentReplacement,
)
from isotherm.remote.rewriting.segment_rewrite import RewrittenSegment
from isotherm.remote.segment_metadata import (
    IndexType,
    LogSegmentData,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.segment_blocks import BatchJoiner, segment_blocks

if TYPE_CHECKING:
    from isotherm.record.batch_table import BatchTable


def stage_segment(
    storage: ObjectStoreRemoteStorageManager,
    journals: RewriteJournals,
    run: str,
    old: RemoteLogSegmentMetadata,
    rewritten: RewrittenSegment,
    fetch_bytes: int,
) -> SegmentReplacement:
    """Announce a segment, upload it, and read it back. `undo_run` deletes its objects after a
    crash.

    Raises CorruptObjectError if the segment that is read back differs from the written one.
    """
    staged = stage_new_segment(storage, journals, run, rewritten, fetch_bytes)
    return SegmentReplacement(old, staged.metadata, staged.manifest)


def stage_new_segment(
    storage: ObjectStoreRemoteStorageManager,
    journals: RewriteJournals,
    run: str,
    rewritten: RewrittenSegment,
    fetch_bytes: int,
) -> NewSegment:
    """Same as `stage_segment`, of a segment that replaces none."""
    new = rewritten.metadata
    journals.announce(run, new.segment_id, new.start_offset)
    staged = storage.stage_log_segment_data(new, rewritten.data)
    finished = replace(
        new,
        state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
        custom_metadata=staged.custom_metadata,
    )
    # Before the journal names it: the old segment is deleted on the strength of this copy.
    verify_staged(storage, rewritten, fetch_bytes)
    return NewSegment(finished, staged.manifest)


def verify_staged(
    storage: ObjectStoreRemoteStorageManager, rewritten: RewrittenSegment, fetch_bytes: int
) -> None:
    """Read a segment and its indexes back, through every transformation. The bytes must be those
    that were written, every batch must be sound and in order, and the number of records must be
    that of the kept ones."""
    metadata = rewritten.metadata
    crc = 0
    records = 0
    next_offset = metadata.start_offset
    joiner = BatchJoiner(metadata.segment_size_in_bytes)
    for block in segment_blocks(storage, metadata, fetch_bytes):
        crc = crc32c_extended(crc, block)
        for batches in _sound_batches(joiner, block, metadata):
            ends = batches["base_offset"] + batches["last_offset_delta"] + 1
            # The CRC does not cover a batch's offset: the order is the only check of it.
            if (batches["base_offset"] < np.concatenate([[next_offset], ends[:-1]])).any():
                raise _differs(metadata, "its batches are not in order")
            next_offset = int(ends[-1])
            records += int(batches["records_count"].sum())
    if joiner.position != metadata.segment_size_in_bytes or crc != rewritten.crc32c:
        raise _differs(metadata, "its bytes are not those that were written")
    # The count is that of the cleaner's decisions, the records are those of the written bytes.
    if records != rewritten.counts.records_kept:
        raise _differs(metadata, f"it holds {records} records")
    if next_offset > metadata.end_offset_inclusive + 1:
        raise _differs(metadata, f"it ends at offset {next_offset}")
    for index_type, content in _index_contents(rewritten.data):
        if storage.fetch_index(metadata, index_type) != content:
            raise _differs(metadata, f"its index {index_type.value} is not that written")


def _sound_batches(
    joiner: BatchJoiner, block: memoryview, metadata: RemoteLogSegmentMetadata
) -> Iterator[BatchTable]:
    try:
        for part in joiner.parts(block):
            batches, end = read_batch_table(part)
            verify_crcs(part, batches)
            joiner.took(part, end)
            if len(batches):
                yield batches
    except CorruptRecordError as error:
        raise _differs(metadata, str(error)) from error


def _index_contents(data: LogSegmentData) -> Iterator[tuple[IndexType, bytes]]:
    yield IndexType.OFFSET, data.offset_index_path.read_bytes()
    yield IndexType.TIMESTAMP, data.time_index_path.read_bytes()
    yield IndexType.PRODUCER_SNAPSHOT, data.producer_snapshot_path.read_bytes()
    yield IndexType.LEADER_EPOCH, data.leader_epoch_checkpoint
    if data.transaction_index_path is not None:
        yield IndexType.TRANSACTION, data.transaction_index_path.read_bytes()


def _differs(metadata: RemoteLogSegmentMetadata, what: str) -> CorruptObjectError:
    return CorruptObjectError(
        f"staged segment is not as it was written: {what} segment={metadata.segment_id}"
        f" start_offset={metadata.start_offset}"
    )
