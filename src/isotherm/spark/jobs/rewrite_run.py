"""The driver's part of a run that rewrites a history (compact, erase), in place or as a copy.

    begin_journals      one journal for each partition, before the first staged object
    (the job's tasks)   stage new segments, without manifests (rewrite_tasks)
    end_staging         the journals name the new segments. Of a copy the driver stores the
                        manifests, oldest first. In place the topic's broker takes over: it commits
                        and publishes each segment under its key, and deletes the old segments
                        (remote/rewriting/finisher.py)

The target contains a journal from the first new object to the last step. After an interrupted run
the journal shows the state of the run, and `recover` finishes or undoes the run
(remote/rewriting/journal.py).
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from isotherm.errors import (
    ConfigError,
    PolicyViolationError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from isotherm.remote.rewriting.journal import (
    FoundRun,
    JournalState,
    RewriteJournal,
    RewriteJournals,
    RunKind,
)
from isotherm.remote.rewriting.pieces import Piece
from isotherm.remote.rewriting.run_recovery import command_of, finish_copy, undo_run
from isotherm.remote.segment_metadata import RemoteLogSegmentId
from isotherm.remote.storage.inventory import list_segment_objects, open_for_reading
from isotherm.remote.storage.object_client import open_object_store
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.jobs.rewrite_tasks import StagedPiece, open_journals
from isotherm.spark.options import SourceOptions, storage_url
from isotherm.spark.reading.brokers import KafkaBrokers
from isotherm.spark.tier.tier_settings import tier_settings
from isotherm.types import REMOTE_LOG_METADATA_AUDIT_TOPIC, TimestampMs, TopicIdPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteSettings:
    """`target` is None for a run in place. `now_ms` is the time of the run. `source` is a bucket in
    a built-in layout, or options that name a user's RemoteStorageManager, which is only read."""

    kind: RunKind
    source: ObjectStoreSettings | SourceOptions
    target: ObjectStoreSettings | None
    now_ms: TimestampMs
    fetch_bytes: int
    keep_old_ms: int

    @property
    def in_place(self) -> bool:
        return self.target is None

    @property
    def written(self) -> ObjectStoreSettings:
        if self.target is not None:
            return self.target
        if isinstance(self.source, SourceOptions):
            raise ConfigError(
                f"{self.kind.value} in place writes objects of a built-in layout, and a storage"
                " manager of your own has a layout of its own"
                f" class={self.source.storage_manager} hint='name a place for the copy with --to'"
            )
        return self.source

    @property
    def bucket(self) -> ObjectStoreSettings | None:
        """The source, if it has a built-in layout."""
        return None if isinstance(self.source, SourceOptions) else self.source


def source_and_target(
    options: SourceOptions, to_url: str | None, to_storage: dict[str, str] | None
) -> tuple[ObjectStoreSettings | SourceOptions, ObjectStoreSettings | None]:
    """The places of a run from the options of the source. `to_url` (a URL or a folder's path) and
    `to_storage` (settings that override the source's) name the target of a copy, whose layout is
    `aiven` by default."""
    source = tier_settings(options) if options.storage_manager is None else options
    target = None
    if to_url is not None:
        url: str | None = storage_url(to_url)
    else:
        url = source.url if to_storage and isinstance(source, ObjectStoreSettings) else None
    if url is not None:
        config = {**options.storage_settings, "url": url, **(to_storage or {})}
        target = ObjectStoreSettings.from_config(config)
    return source, target


def check_settings(settings: RewriteSettings, options: SourceOptions) -> None:
    """Raise ConfigError or UnsupportedVersionError for settings that cannot work, before any
    read."""
    if settings.written.create_layout().commit_suffix is None:
        raise UnsupportedVersionError(
            f"segments cannot be staged in this layout layout={settings.written.layout}"
            " hint='write a copy to another bucket or prefix with --to, whose layout is aiven'"
        )
    if settings.target is None:
        if options.metadata_source != "topic":
            raise ConfigError(
                f"{settings.kind.value} in place needs the metadata topic"
                " hint='name the cluster with --bootstrap-server, or a target with --to'"
            )
        return
    url, prefix = settings.target.url.rstrip("/"), settings.target.key_prefix
    source = settings.bucket
    if source is not None and (source.url.rstrip("/"), source.key_prefix) == (url, prefix):
        raise ConfigError(f"the target of a copy is its source url={url} key.prefix={prefix!r}")


def check_cluster_publishes(brokers: KafkaBrokers) -> None:
    """Raise PolicyViolationError for a cluster that cannot publish staged segments. Only a cluster
    with metadata of level 1 can, and it has the audit topic."""
    try:
        brokers.partitions([REMOTE_LOG_METADATA_AUDIT_TOPIC])
    except UnknownTopicOrPartitionError as error:
        raise PolicyViolationError(
            "the cluster cannot replace segments: this requires Isotherm with the feature"
            " remote.log.metadata.compaction=1 hint='write a copy with --to'"
        ) from error


def check_target(partitions: Sequence[TopicIdPartition], settings: RewriteSettings) -> None:
    """Raise PolicyViolationError if there is an unfinished run, or if the target of a copy already
    has segments of the topics, since readers would mix the two histories."""
    for run in unfinished_runs(settings, set(partitions).__contains__):
        raise PolicyViolationError(
            f"an earlier run is unfinished run={run.run} partition={run.partition}"
            f" state={run.journal.state.value if run.journal else None}"
            " hint='if it is not running any more, isotherm pipeline"
            f" {command_of(run)} --recover --run finishes or undoes it'"
        )
    if settings.target is None:
        return
    client, layout = open_for_reading(settings.target), settings.target.create_layout()
    topics = {partition.topic for partition in partitions}
    for objects in list_segment_objects(client, layout, topics.__contains__):
        raise PolicyViolationError(
            "the target has segments of this topic already"
            f" segment={objects.segment_id} url={settings.target.url}"
            " hint='name another prefix with --to-option key.prefix='"
        )


def new_run() -> str:
    """A name for a run."""
    return os.urandom(8).hex()


def begin_journals(
    journals: RewriteJournals, run: str, pieces: Sequence[Piece], settings: RewriteSettings
) -> list[RewriteJournal]:
    """Store a journal for each partition of the pieces. Call right before the staging: a run that
    stores nothing for long counts as abandoned. Raises the error of `check_begun_alone`."""
    started = [
        RewriteJournal(
            kind=settings.kind,
            run=run,
            partition=partition,
            state=JournalState.STAGING,
            time_ms=settings.now_ms,
            in_place=settings.in_place,
            keep_old_ms=settings.keep_old_ms,
        )
        for partition in dict.fromkeys(piece.segment.topic_id_partition for piece in pieces)
    ]
    for journal in started:
        journals.put(journal)
    check_begun_alone(journals, run, {journal.partition for journal in started})
    return started


def check_begun_alone(
    journals: RewriteJournals, run: str, partitions: Collection[TopicIdPartition]
) -> None:
    """Raise PolicyViolationError if another run has a journal for one of the partitions; the
    journals of this run are removed then.

    Call when this run's journals are stored: of two runs that have found the partition free at the
    same time, the one that lists last sees the other's journal. Each may see the other's.
    """
    listed = [
        listed_run for listed_run in journals.list_runs() if listed_run.partition in partitions
    ]
    others = [listed_run for listed_run in listed if listed_run.run != run]
    if not others:
        return
    for own in listed:
        if own.run == run:
            journals.forget(journals.read(own))
    raise PolicyViolationError(
        f"another run has begun at the same time run={others[0].run}"
        f" partition={others[0].partition} hint='repeat the command when the other run is"
        " over'"
    )


def end_staging(
    journals: RewriteJournals,
    started: Sequence[RewriteJournal],
    staged: Sequence[StagedPiece],
    settings: RewriteSettings,
) -> None:
    """Publish a copy, or leave the journals of a run in place to the broker. Raises
    PolicyViolationError if another program has undone the run."""
    run = started[0].run
    # If a broker has undone the run as abandoned, its journals must not come back.
    check_not_undone(
        journals,
        run,
        [piece.replacement.new.segment_id for piece in staged if piece.replacement is not None],
    )
    # All journals before the first manifest: a copy is complete when all its partitions are staged,
    # and after a crash `plan_recovery` would undo a part of it otherwise.
    for journal in started:
        journals.put(_staged_journal(journal, staged))
    for unfinished in journals.find():
        if unfinished.run != run:
            continue
        # In place the broker goes on. Without replacements only the journal is to be removed.
        if settings.in_place and unfinished.journal is not None and unfinished.journal.replacements:
            continue
        finish_copy(_storage(settings.written), journals, unfinished)


def check_not_undone(
    journals: RewriteJournals, run: str, staged: Iterable[RemoteLogSegmentId]
) -> None:
    """Raise PolicyViolationError if another program took the run for abandoned and deleted its
    staged segments."""
    announced = {
        segment_id
        for unfinished in journals.find()
        if unfinished.run == run and unfinished.journal is not None
        for _, segment_id in unfinished.staged
    }
    for segment_id in staged:
        if segment_id not in announced:
            raise PolicyViolationError(
                f"the run was undone while it ran run={run} segment={segment_id}"
            )


def _staged_journal(journal: RewriteJournal, staged: Sequence[StagedPiece]) -> RewriteJournal:
    return replace(
        journal,
        state=JournalState.STAGED,
        replacements=tuple(
            piece.replacement
            for piece in staged
            if piece.replacement is not None
            and piece.piece.segment.topic_id_partition == journal.partition
        ),
    )


def unfinished_runs(
    settings: RewriteSettings, is_selected: Callable[[TopicIdPartition], bool]
) -> list[FoundRun]:
    """The interrupted and active runs on the selected partitions, of any kind."""
    return [run for run in open_journals(settings.written).find() if is_selected(run.partition)]


def unpublished_runs(
    settings: RewriteSettings, partitions: Iterable[TopicIdPartition]
) -> list[FoundRun]:
    """The runs in place that the broker still has to publish."""
    return [
        run
        for run in unfinished_runs(settings, set(partitions).__contains__)
        if run.journal is not None and run.journal.state is JournalState.STAGED
    ]


class RecoveryStep(enum.Enum):
    UNDO = "undo"
    FINISH = "finish"
    LEFT_TO_BROKER = "left to the broker"


@dataclass(frozen=True, slots=True)
class Recovery:
    """The step that recovery takes for one partition of an interrupted run."""

    unfinished: FoundRun
    step: RecoveryStep

    def as_row(self) -> dict[str, Any]:
        journal, partition = self.unfinished.journal, self.unfinished.partition
        return {
            "topic": partition.topic,
            "partition": partition.partition,
            "run": self.unfinished.run,
            "state": None if journal is None else journal.state.value,
            "step": self.step.value,
        }


def plan_recovery(runs: Sequence[FoundRun]) -> list[Recovery]:
    """The recovery step of each run. A run in place whose segments are all staged is left to the
    broker, which publishes it."""
    # A copy or a load is complete when all its partitions are staged. If one is not, the whole run
    # is undone. A load of which a partition is refused was complete.
    unstaged = {run.run for run in runs if _is_unstaged(run)}
    staging = {run.run for run in runs if _is_staging(run)}
    steps = []
    for run in runs:
        in_place = run.journal is not None and run.journal.in_place
        is_load = run.journal is not None and run.journal.kind is RunKind.LOAD
        if (
            _is_unstaged(run)
            or (run.run in unstaged and not in_place)
            or (run.run in staging and is_load)
        ):
            steps.append(Recovery(run, RecoveryStep.UNDO))
        else:
            step = RecoveryStep.LEFT_TO_BROKER if in_place else RecoveryStep.FINISH
            steps.append(Recovery(run, step))
    return steps


def recover(settings: RewriteSettings, runs: Sequence[FoundRun]) -> list[Recovery]:
    """Take the steps of `plan_recovery`. None of the runs may be active."""
    storage, journals = _storage(settings.written), open_journals(settings.written)
    steps = plan_recovery(runs)
    # Delete the journal that shows an incomplete run last. If it went first and a crash followed,
    # the other journals would look like those of a complete one.
    for recovery in sorted(steps, key=lambda step: _is_unstaged(step.unfinished)):
        if recovery.step is RecoveryStep.UNDO:
            undo_run(storage, journals, recovery.unfinished)
        elif recovery.step is RecoveryStep.FINISH:
            finish_copy(storage, journals, recovery.unfinished)
    return steps


def _is_unstaged(run: FoundRun) -> bool:
    return run.journal is None or run.journal.state in (
        JournalState.STAGING,
        JournalState.REFUSED,
    )


def _is_staging(run: FoundRun) -> bool:
    return run.journal is not None and run.journal.state is JournalState.STAGING


def _storage(settings: ObjectStoreSettings) -> ObjectStoreRemoteStorageManager:
    store = open_object_store(settings, create_folder=False)
    return ObjectStoreRemoteStorageManager(settings, store=store)
