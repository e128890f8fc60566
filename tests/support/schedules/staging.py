"""Stages the result of a compaction job, for the broker to publish: a segment that replaces another
one. It has the same records, so all of them must be there afterwards."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path

from isotherm.remote.rewriting.journal import (
    JournalState,
    RewriteJournal,
    RewriteJournals,
    RunKind,
    SegmentReplacement,
)
from isotherm.remote.segment_metadata import (
    IndexType,
    LogSegmentData,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from isotherm.remote.storage.segment_blocks import segment_blocks
from tests.support.schedules.durable import ScheduledStorage
from tests.support.schedules.process import Durable

KEEP_OLD_MS = 5_000


def stage_again(durable: Durable, old: RemoteLogSegmentMetadata, folder: Path, run: str) -> None:
    """Stage a replacement of `old` as the job does: announce, stage, mark the journal as staged."""
    storage = ScheduledStorage(durable.objects)
    client: object = durable.objects
    journals = RewriteJournals(client, storage.root_directory)  # type: ignore[arg-type]
    partition = old.topic_id_partition
    now_ms = durable.run.start_ms + int(durable.run.now_ms)
    new_id = RemoteLogSegmentId(partition, uuid.UUID(int=durable.rng.getrandbits(128), version=4))
    new = replace(
        old,
        segment_id=new_id,
        event_timestamp_ms=max(now_ms, old.event_timestamp_ms + 1),
        state=RemoteLogSegmentState.COPY_SEGMENT_STARTED,
        custom_metadata=None,
    )
    journal = RewriteJournal(
        kind=RunKind.COMPACTION,
        run=run,
        partition=partition,
        state=JournalState.STAGING,
        time_ms=now_ms,
        in_place=True,
    )
    journals.put(journal)
    journals.announce(run, new_id, new.start_offset)
    staged = storage.stage_log_segment_data(new, _files_of(storage, old, folder))
    finished = replace(
        new,
        state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
        custom_metadata=staged.custom_metadata,
    )
    replacement = SegmentReplacement(old, finished, staged.manifest)
    journals.put(
        replace(
            journal,
            state=JournalState.STAGED,
            replacements=(replacement,),
            keep_old_ms=KEEP_OLD_MS,
        )
    )


def _files_of(
    storage: ScheduledStorage, segment: RemoteLogSegmentMetadata, folder: Path
) -> LogSegmentData:
    folder.mkdir()

    def write(name: str, content: bytes | memoryview) -> Path:
        path = folder / name
        path.write_bytes(content)
        return path

    return LogSegmentData(
        log_path=write("log", b"".join(segment_blocks(storage, segment, 1 << 20))),
        offset_index_path=write("index", storage.fetch_index(segment, IndexType.OFFSET)),
        time_index_path=write("timeindex", storage.fetch_index(segment, IndexType.TIMESTAMP)),
        transaction_index_path=None,
        producer_snapshot_path=write(
            "snapshot", storage.fetch_index(segment, IndexType.PRODUCER_SNAPSHOT)
        ),
        leader_epoch_checkpoint=storage.fetch_index(segment, IndexType.LEADER_EPOCH),
    )
