"""Finishes or undoes a run. A light module: the broker imports it at its start."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from isotherm.remote.rewriting.journal import FoundRun, RewriteJournals, RunKind
from isotherm.remote.segment_metadata import RemoteLogSegmentId, RemoteLogSegmentMetadata
from isotherm.types import Offset

if TYPE_CHECKING:
    from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager


_COMMANDS = {RunKind.COMPACTION: "compact", RunKind.ERASURE: "erase", RunKind.LOAD: "load"}


def command_of(run: FoundRun) -> str:
    """The command of `isotherm pipeline` whose --recover is for this run. A run that has lost its
    journal has no kind, and each command undoes it."""
    return _COMMANDS[RunKind.COMPACTION if run.journal is None else run.journal.kind]


def undo_run(
    storage: ObjectStoreRemoteStorageManager,
    journals: RewriteJournals,
    run: FoundRun,
    *,
    live: Collection[RemoteLogSegmentId] = (),
) -> None:
    """Delete the staged segments of a failed run except `live` ones, and its journal.
    Idempotent."""
    delete_staged(storage, run, kept=live)
    journals.forget(run)


def finish_copy(
    storage: ObjectStoreRemoteStorageManager, journals: RewriteJournals, run: FoundRun
) -> None:
    """Store the manifests of a copy, oldest first, and remove the run's journal. Idempotent."""
    assert run.journal is not None, "a run without a journal has nothing to finish"
    replacements = run.journal.replacements
    # Whatever a crash leaves committed is a prefix of the log, which is correct for readers.
    for replacement in replacements:
        storage.commit_log_segment_data(replacement.new, replacement.manifest)
    delete_staged(storage, run, kept=[replacement.new.segment_id for replacement in replacements])
    journals.forget(run)


def delete_staged(
    storage: ObjectStoreRemoteStorageManager,
    run: FoundRun,
    *,
    kept: Collection[RemoteLogSegmentId],
) -> None:
    """Delete the announced segments of a run except `kept`: those of failed attempts."""
    for start_offset, segment_id in run.staged:
        if segment_id not in kept:
            storage.delete_log_segment_data(place_of_segment(segment_id, start_offset))


def place_of_segment(
    segment_id: RemoteLogSegmentId, start_offset: Offset
) -> RemoteLogSegmentMetadata:
    """The fields of a segment that its object keys need."""
    return RemoteLogSegmentMetadata(
        segment_id=segment_id,
        start_offset=start_offset,
        end_offset_inclusive=start_offset,
        max_timestamp_ms=0,
        broker_id=0,
        event_timestamp_ms=0,
        segment_size_in_bytes=0,
        segment_leader_epochs={0: start_offset},
    )
