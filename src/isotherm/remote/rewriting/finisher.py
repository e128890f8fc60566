"""The broker's part of a run in place (compaction, erasure): publishes staged segments, and deletes
the old ones.

A job stages new segments, and its journal maps them to the old ones (journal.py). The broker that
leads the partition does the rest:

    for each segment, oldest first    commit its manifest, publish it under the old one's key
    the journal says `published`      from here on no new read finds the old segments
    keep_old_ms later                 the old objects are deleted, then the announced objects,
                                      then the journal

After the publication of an erasure each replica's broker drops its local copies of the old
segments, and notes it in the run's folder. The leader removes the journal only then.

The oldest segment is first, so that a reader that has read a record also reads its tombstone. Every
step may be repeated: after a crash the next pass does it again. A segment that is deleted meanwhile
(by retention, or with its topic) is not replaced: its new objects are deleted instead. A run ends
when its partition is deleted: all objects that it staged or kept are deleted.

In a cluster a deposed leader may work on the same run. So each step decides on facts that never
change: a segment that was replaced or deleted never returns, and a new segment that has nothing to
replace is never published (docs/decisions/0121).
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from isotherm.clock import Clock
from isotherm.errors import IsothermError, RemoteResourceNotFoundError
from isotherm.metrics.registry import Metrics
from isotherm.remote.metadata.api import ReplacesSegments
from isotherm.remote.rewriting.adoption import AdoptsHistories, HistoryAdoption
from isotherm.remote.rewriting.journal import (
    FoundRun,
    JournalState,
    ListedRun,
    RewriteJournal,
    RewriteJournals,
    RunKind,
    SegmentReplacement,
)
from isotherm.remote.rewriting.local_copies import LocalCopies
from isotherm.remote.rewriting.run_recovery import command_of, delete_staged, undo_run
from isotherm.remote.segment_metadata import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
)
from isotherm.remote.tasks.deletion_rules import (
    is_kept_long_enough,
    is_partition_gone,
    is_replaced,
    is_run_abandoned,
    may_be_replaced,
)
from isotherm.remote.tasks.tier import RemoteTierAccess
from isotherm.types import BrokerId, TimestampMs, TopicIdPartition

if TYPE_CHECKING:
    from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager

_logger = logging.getLogger(__name__)

REPLACED = "isotherm_remote_rewrite_replaced_segments"
REPLACED_TEXT = "Remote segments whose place a rewritten one has taken."
FINISH_ERRORS = "isotherm_remote_rewrite_errors"
FINISH_ERRORS_TEXT = (
    "Failed checks of a run that rewrites a tiered topic; the next check tries again."
)


class Replaced(enum.Enum):
    """The outcome of a replacement. NEVER: the old segment is deleted, being deleted, or replaced
    by yet another one. The new one is in no metadata, and never will be."""

    NOW = enum.auto()
    BEFORE = enum.auto()
    NEVER = enum.auto()


@dataclass(frozen=True, slots=True)
class TierReplacementTarget:
    """The remote tier of the broker, for replacements.

    `leads` returns whether this broker leads a partition: only its leader replaces segments. A
    deposed leader may not know yet that it is deposed. Without `local` no local copies are dropped.
    """

    tier: RemoteTierAccess
    metadata: ReplacesSegments
    leads: Callable[[TopicIdPartition], bool]
    local: LocalCopies | None = None

    def serves(self, partition: TopicIdPartition) -> bool:
        """Whether this broker leads the partition and has its metadata."""
        return self.leads(partition) and self.metadata.is_ready(partition)

    def is_deleted(self, partition: TopicIdPartition) -> bool:
        """Whether the partition belonged to this cluster and its deletion is finished."""
        return is_partition_gone(
            exists=self.tier.leader_epoch_of(partition) is not None,
            is_deletion_recorded=self.metadata.is_partition_deleted(partition),
        )

    def segment(self, segment_id: RemoteLogSegmentId) -> RemoteLogSegmentMetadata | None:
        """A live segment. Objects are deleted because of this answer, so every stored event is read
        first."""
        with self.tier.exclusive.exclusively(segment_id.topic_id_partition):
            return self.metadata.segment(segment_id)

    def replace(self, old: RemoteLogSegmentId, new: RemoteLogSegmentMetadata) -> Replaced:
        """Replace the old segment in the metadata, and no other. The look-up and the record are one
        step, across brokers. Raises UnsupportedVersionError at feature level 0, the errors of reads
        of the metadata, and RemoteResourceNotFoundError also if this broker no longer has the
        partition."""

        def decide() -> Future[None] | Replaced:
            if self.metadata.segment(new.segment_id) is not None:
                return Replaced.BEFORE
            # Looked up by id, not by key: a later run may have put another segment under the key.
            if not may_be_replaced(self.metadata.segment(old)):
                return Replaced.NEVER
            return self.metadata.replace_remote_log_segment(new)

        outcome = self.tier.decided(new.topic_id_partition, decide)
        if isinstance(outcome, Replaced):
            return outcome
        outcome.result()
        return Replaced.NOW

    def forget_indexes(self, segment_ids: Iterable[RemoteLogSegmentId]) -> None:
        self.tier.index_cache.remove(segment_ids)


class RewriteFinisher:
    """Call `run` in one thread at a time."""

    def __init__(
        self,
        journals: RewriteJournals,
        storage: ObjectStoreRemoteStorageManager,
        target: TierReplacementTarget,
        *,
        abandoned_after_ms: int,
        is_alone: bool,
        clock: Clock,
        metrics: Metrics,
        logs: AdoptsHistories | None = None,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        """An unfinished run that has stored nothing for `abandoned_after_ms` is undone if the
        broker `is_alone`, else reported. Another broker could publish it while this one deletes its
        objects. Without `logs` no load is adopted."""
        self._journals = journals
        self._storage = storage
        self._target = target
        self._abandoned_after_ms = abandoned_after_ms
        self._is_alone = is_alone
        self._clock = clock
        self._metrics = metrics
        self._adoption: HistoryAdoption | None = None
        if logs is not None:
            self._adoption = HistoryAdoption(journals, storage, target.tier, target.metadata, logs)
        self._is_cancelled = is_cancelled
        self._waiting: dict[ListedRun, TimestampMs] = {}
        # Runs whose old objects this process has deleted, while replicas still drop local copies.
        self._without_old: set[tuple[TopicIdPartition, str]] = set()
        self._reported: set[ListedRun] = set()
        # Runs of which a follower has nothing to drop.
        self._not_followed: set[ListedRun] = set()
        # The names of loads of which no partition is being staged any more.
        self._whole: set[str] = set()

    def run(self) -> None:
        """Check all runs in the bucket: one listing, and two requests for each journal that may
        be due. Failures of a run are logged and counted; a failed listing raises."""
        listed = self._journals.list_runs()
        # A journal may be large, and nothing is due while readers may still need the old segments.
        # A run whose objects have changed is another key, and is read again.
        self._waiting = {run: due for run, due in self._waiting.items() if run in listed}
        self._reported.intersection_update(listed)
        self._not_followed.intersection_update(listed)
        self._whole.intersection_update(run.run for run in listed)
        for run in listed:
            if self._is_cancelled():
                return
            if self._clock.now_ms() < self._waiting.get(run, 0):
                continue
            try:
                self._finish(run, [other for other in listed if other.run == run.run])
            except (IsothermError, OSError) as error:
                _logger.warning(
                    "run is not finished, the next check tries again partition=%s run=%s: %s",
                    run.partition,
                    run.run,
                    error,
                )
                self._metrics.counter(FINISH_ERRORS, FINISH_ERRORS_TEXT).inc()

    def _finish(self, listed: ListedRun, partitions: Sequence[ListedRun]) -> None:
        """`partitions` are all those of the run, as they are listed."""
        if not self._target.serves(listed.partition):
            if self._target.is_deleted(listed.partition):
                self._end_with_partition(self._journals.read(listed))
            else:
                self._follow(listed)
            return
        run = self._journals.read(listed)
        journal = run.journal
        if journal is None or journal.state is JournalState.STAGING:
            is_ours = journal is None or journal.in_place
            if is_ours and is_run_abandoned(
                modified_ms=max(partition.modified_ms for partition in partitions),
                abandoned_after_ms=self._abandoned_after_ms,
                now_ms=self._clock.now_ms(),
            ):
                self._give_up(listed, run, partitions)
        elif journal.kind is RunKind.LOAD:
            is_staged = journal.state is JournalState.STAGED
            if is_staged and self._adoption is not None and self._is_whole(partitions):
                self._adoption.adopt(run, journal)
        # The journal of a copy is left to the job, which stores the manifests and replaces nothing.
        elif journal.in_place:
            if journal.state is JournalState.STAGED:
                journal = self._publish(journal)
            self._end(listed, run, journal)

    def _is_whole(self, partitions: Sequence[ListedRun]) -> bool:
        """Whether every partition of a load is staged. A load whose job ended before that is
        undone, and no part of it may be in the topic then."""
        name = partitions[0].run
        if name in self._whole:
            return True
        for partition in partitions:
            try:
                journal = self._journals.read(partition).journal
            except RemoteResourceNotFoundError:
                # Adopted or undone since the listing: the next one tells which.
                return False
            if journal is not None and journal.state is JournalState.STAGING:
                return False
        self._whole.add(name)
        return True

    def _end(self, listed: ListedRun, run: FoundRun, journal: RewriteJournal) -> None:
        """Delete what a published run has left, as far as its time has come."""
        run, missing = self._without_local_copies(run, journal)
        if not is_kept_long_enough(
            published_ms=journal.time_ms,
            keep_old_ms=journal.keep_old_ms,
            now_ms=self._clock.now_ms(),
        ):
            if not missing:
                self._waiting[listed] = journal.time_ms + journal.keep_old_ms
            return
        key = (run.partition, run.run)
        if key not in self._without_old:
            self._delete_old(run, journal)
            self._without_old.add(key)
            if missing:
                _logger.info(
                    "erasure waits for replicas to drop their local copies partition=%s run=%s"
                    " brokers=%s",
                    run.partition,
                    run.run,
                    sorted(missing),
                )
        if missing:
            return
        # The journal goes last: without it the next pass would not find what a crash has left.
        self._journals.forget(run)
        self._without_old.discard(key)

    def _follow(self, listed: ListedRun) -> None:
        """Drop this replica's local copies of segments that an erasure has replaced."""
        local = self._target.local
        if local is None or not local.has_replica(listed.partition):
            return
        if local.broker_id in listed.dropped_by or listed in self._not_followed:
            return
        run = self._journals.read(listed)
        if run.journal is None:
            return
        if run.journal.kind is RunKind.ERASURE and run.journal.in_place:
            self._without_local_copies(run, run.journal)
        else:
            # Not among those that wait: this broker may lead the partition the next time.
            self._not_followed.add(listed)

    def _without_local_copies(
        self, run: FoundRun, journal: RewriteJournal
    ) -> tuple[FoundRun, frozenset[BrokerId]]:
        """Drop this broker's local copies of what an erasure has replaced. Returns the run as it
        is then, and the replicas that have not said that they have dropped theirs."""
        local = self._target.local
        if local is None or journal.kind is not RunKind.ERASURE or not journal.in_place:
            return run, frozenset()
        if journal.state is not JournalState.PUBLISHED or not journal.replacements:
            return run, frozenset()
        if local.broker_id not in run.dropped_by:
            end = (
                max(replacement.old.end_offset_inclusive for replacement in journal.replacements)
                + 1
            )
            self._target.forget_indexes(
                replacement.old.segment_id for replacement in journal.replacements
            )
            local.forget_ranges(replacement.old.segment_id for replacement in journal.replacements)
            if local.drop(run.partition, end):
                self._journals.note_dropped(run, local.broker_id)
                run = replace(run, dropped_by=run.dropped_by | {local.broker_id})
        return run, local.replicas_of(run.partition) - run.dropped_by

    def _give_up(self, listed: ListedRun, run: FoundRun, partitions: Sequence[ListedRun]) -> None:
        if self._is_alone:
            _logger.warning("abandoned run is undone run=%s", run.run)
            if run.journal is not None and run.journal.kind is RunKind.LOAD:
                # Without this journal the partitions that are staged would look like a whole load.
                for other in partitions:
                    if other.partition != run.partition:
                        self._undo_staged(other)
            self._undo(run)
        elif listed not in self._reported:
            self._reported.add(listed)
            _logger.warning(
                "run is abandoned partition=%s run=%s hint='when it is not running any more,"
                " isotherm pipeline %s --recover --run undoes it'",
                run.partition,
                run.run,
                command_of(run),
            )

    def _undo_staged(self, listed: ListedRun) -> None:
        run = self._journals.read(listed)
        if run.journal is not None and run.journal.state is JournalState.STAGED:
            self._undo(run)

    def _undo(self, run: FoundRun) -> None:
        # None should be live. But a run whose journal is lost does not say how far it came.
        live = [
            segment_id
            for _, segment_id in run.staged
            if self._target.segment(segment_id) is not None
        ]
        undo_run(self._storage, self._journals, run, live=live)

    def _end_with_partition(self, run: FoundRun) -> None:
        """Delete all objects of the run: no metadata names a segment of the partition any more, or
        ever will."""
        if run.journal is not None and not run.journal.in_place:
            return  # its old segments are another bucket's
        _logger.info("run is dropped, its partition was deleted run=%s", run.run)
        replacements = run.journal.replacements if run.journal is not None else ()
        for replacement in replacements:
            self._storage.delete_log_segment_data(replacement.old)
            self._storage.delete_log_segment_data(replacement.new)
        undo_run(self._storage, self._journals, run)

    def _publish(self, journal: RewriteJournal) -> RewriteJournal:
        for replacement in journal.replacements:
            self._replace(replacement)
        # From now on no new read finds the old segments, so `keep_old_ms` counts from now. After a
        # crash before the journal is written, `_replace` finds everything replaced.
        published = replace(journal, state=JournalState.PUBLISHED, time_ms=self._clock.now_ms())
        self._journals.put(published)
        return published

    def _replace(self, replacement: SegmentReplacement) -> None:
        old_id = replacement.old.segment_id
        # The manifest first: a segment that is published must be whole for each reader. Without the
        # old segment the new one was published before, manifest included, or never will be.
        if self._target.segment(old_id) is not None:
            self._storage.commit_log_segment_data(replacement.new, replacement.manifest)
        outcome = self._target.replace(old_id, replacement.new)
        if outcome is Replaced.NOW:
            self._metrics.counter(REPLACED, REPLACED_TEXT).inc()
        elif outcome is Replaced.NEVER:
            _logger.info(
                "segment is not replaced: it is deleted or being deleted segment=%s", old_id
            )
            self._storage.delete_log_segment_data(replacement.new)

    def _delete_old(self, run: FoundRun, journal: RewriteJournal) -> None:
        live = [
            replacement for replacement in journal.replacements if self._is_superseded(replacement)
        ]
        self._target.forget_indexes(replacement.old.segment_id for replacement in live)
        for replacement in live:
            self._storage.delete_log_segment_data(replacement.old)
        # The replacements are published, or `_replace` has deleted their objects.
        delete_staged(
            self._storage,
            run,
            kept=[replacement.new.segment_id for replacement in journal.replacements],
        )

    def _is_superseded(self, replacement: SegmentReplacement) -> bool:
        """Whether no metadata names the old segment any more. If one does, the task that began the
        segment's deletion deletes its objects."""
        return is_replaced(self._target.segment(replacement.old.segment_id))
