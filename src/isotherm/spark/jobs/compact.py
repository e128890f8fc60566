"""Compacts a tiered topic by key (KIP-534's rules), in place or into another bucket or prefix.

    plan       find the pieces of the log, and which of them can be cleaned (compact_plan)
    stage      write new segments to the target, without manifests, in two Spark passes
               (compact_passes)
    copy       for a copy, the driver stores the manifests, oldest first
    in place   the topic's broker takes over the journal: it commits and publishes each segment
               under its key, and deletes the old segments (remote/compaction/finisher.py)

The target contains a journal from the first new object to the last step. After an interrupted run
the journal shows the state of the run, and `recover` finishes or undoes the run
(remote/compaction/journal.py).
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from isotherm.errors import (
    ConfigError,
    PolicyViolationError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
)
from isotherm.remote.compaction.journal import (
    CompactionJournal,
    CompactionJournals,
    FoundRun,
    JournalState,
)
from isotherm.remote.compaction.run_recovery import finish_copy, undo_run
from isotherm.remote.compaction.segment_rewrite import CompactionRules
from isotherm.remote.storage.inventory import list_segment_objects, open_for_reading
from isotherm.remote.storage.object_client import open_object_store
from isotherm.remote.storage.object_store import ObjectStoreRemoteStorageManager
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.jobs.compact_passes import (
    PassSettings,
    StagedPiece,
    newest_of_all,
    open_journals,
    open_producers_of,
    shuffle_partitions,
    stage_all,
)
from isotherm.spark.jobs.compact_plan import CompactionPlan, plan_compaction, unproven_histories
from isotherm.spark.jobs.cost import Cost, parallel_tasks
from isotherm.spark.options import SourceOptions, storage_url
from isotherm.spark.plan.planning import lineage_pieces
from isotherm.spark.reading.brokers import KafkaBrokers
from isotherm.spark.tier.open_log import open_brokers, open_segment_source
from isotherm.spark.tier.storage import storage_of_job
from isotherm.spark.tier.tier_settings import tier_settings
from isotherm.spark.tier.tiered_log import choose_partitions, newest_histories
from isotherm.types import REMOTE_LOG_METADATA_AUDIT_TOPIC, TimestampMs, TopicIdPartition

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_INDEX_GETS = 5
"""GETs for one segment: its indexes, while it is planned and written, and its manifest."""
_STAGING_PUTS = 4
"""PUTs for one new segment: its announcement, log, indexes and manifest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionSettings:
    """`target` is None for a compaction in place. Delete horizons of tombstones are compared with
    `now_ms`, the time of the run. `source` is a bucket in a built-in layout, or options that name a
    user's RemoteStorageManager, which is only read."""

    source: ObjectStoreSettings | SourceOptions
    target: ObjectStoreSettings | None
    now_ms: TimestampMs
    delete_retention_ms: int
    fetch_bytes: int
    keep_old_ms: int

    @property
    def written(self) -> ObjectStoreSettings:
        if self.target is not None:
            return self.target
        if isinstance(self.source, SourceOptions):
            raise ConfigError(
                "compaction in place writes objects of a built-in layout, and a storage manager of"
                f" your own has a layout of its own class={self.source.storage_manager}"
                " hint='name a place for the compacted copy with --to'"
            )
        return self.source

    @property
    def bucket(self) -> ObjectStoreSettings | None:
        """The source, if it has a built-in layout."""
        return None if isinstance(self.source, SourceOptions) else self.source

    @property
    def rules(self) -> CompactionRules:
        return CompactionRules(
            now_ms=self.now_ms,
            delete_retention_ms=self.delete_retention_ms,
            fetch_bytes=self.fetch_bytes,
        )


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """The counts of one partition.

    `segments` and `bytes` are those of the whole partition. `changed` counts the rewritten
    segments, in a copy all of them, and `uncleanable` the segments above the cleanable part. The
    records (including control records) and bytes before and after are those of the rewritten
    segments.
    """

    partition: TopicIdPartition
    segments: int
    bytes: int
    uncleanable: int
    changed: int
    records_before: int
    records_after: int
    bytes_before: int
    bytes_after: int

    def as_row(self) -> dict[str, Any]:
        row = {field.name: getattr(self, field.name) for field in fields(self)[1:]}
        return {"topic": self.partition.topic, "partition": self.partition.partition, **row}


def check_settings(settings: CompactionSettings, options: SourceOptions) -> None:
    """Raise ConfigError or UnsupportedVersionError for settings that cannot work, before any
    read."""
    if settings.written.create_layout().commit_suffix is None:
        raise UnsupportedVersionError(
            f"segments cannot be staged in this layout layout={settings.written.layout}"
            " hint='compact into another bucket or prefix, whose layout is aiven'"
        )
    if settings.target is None:
        if options.metadata_source != "topic":
            raise ConfigError(
                "compaction in place needs the metadata topic"
                " hint='name the cluster with --bootstrap-server, or a target with --to'"
            )
        return
    url, prefix = settings.target.url.rstrip("/"), settings.target.key_prefix
    source = settings.bucket
    if source is not None and (source.url.rstrip("/"), source.key_prefix) == (url, prefix):
        raise ConfigError(f"the target of a copy is its source url={url} key.prefix={prefix!r}")


def read_plan(options: SourceOptions, settings: CompactionSettings) -> CompactionPlan:
    """Read the metadata (or list the bucket), fetch indexes, and plan. Offsets below the log start
    are left out if brokers report the log start.

    Raises CorruptObjectError if a manifest cannot be read, even with failOnDataLoss=false: the
    compacted log would lack that segment. Raises SegmentReadError, for a copy, if the leader epochs
    of a partition are not proven: the copy would have records of a deposed leader. In place nothing
    of that partition is cleaned.
    """
    brokers = open_brokers(options)
    owners: list[TopicIdPartition] | None = None
    if brokers is not None:
        names = [name for name in brokers.topic_names() if options.selects_topic(name)]
        owners = brokers.partitions(names)
        if settings.target is None:
            _check_cluster_publishes(brokers)
    strict = replace(options, fail_on_data_loss=True)
    with open_segment_source(strict, settings.bucket) as source:
        found = newest_histories(source.visible_segments(options.selects_topic, owners))
    chosen = choose_partitions(options, found)
    starts = {} if brokers is None else brokers.bounds(chosen)
    histories = {}
    for partition in chosen:
        pieces = lineage_pieces(found.get(partition, ()))
        start = starts[partition].start if partition in starts else 0
        histories[partition] = [piece for piece in pieces if piece.end_offset > start]
    storage = storage_of_job(settings.source)
    unproven = unproven_histories(storage, {each: found.get(each, ()) for each in chosen})
    if settings.target is not None:
        for error in unproven.values():
            raise error
    return plan_compaction(storage, histories, in_place=settings.target is None, unproven=unproven)


def _check_cluster_publishes(brokers: KafkaBrokers) -> None:
    """Raise PolicyViolationError for a cluster that cannot publish staged segments. Only a cluster
    with metadata of level 1 can, and it has the audit topic."""
    try:
        brokers.partitions([REMOTE_LOG_METADATA_AUDIT_TOPIC])
    except UnknownTopicOrPartitionError as error:
        raise PolicyViolationError(
            "the cluster cannot replace segments: this requires Isotherm with the feature"
            " remote.log.metadata.compaction=1 hint='write a compacted copy with --to'"
        ) from error


def cost_of(spark: SparkSession, plan: CompactionPlan, settings: CompactionSettings) -> Cost:
    """The cost of both passes: two reads of the cleaned segments, one of the other segments of a
    copy, and one to verify the written segments, which are at most as large as their sources."""
    worked_on = plan.cleaned if settings.target is None else plan.pieces

    def fetches(pieces: Iterable[Any]) -> tuple[int, int]:
        sizes = [piece.segment.segment_size_in_bytes for piece in pieces]
        return sum(-(-size // settings.fetch_bytes) for size in sizes), sum(sizes)

    first, second = fetches(plan.cleaned), fetches(worked_on)
    return Cost(
        gets=first[0] + 2 * second[0] + 2 * _INDEX_GETS * len(worked_on),
        lists=2,
        puts=_STAGING_PUTS * len(worked_on),
        bytes_read=first[1] + 2 * second[1],
        tasks=parallel_tasks(spark),
    )


def unfinished_runs(
    settings: CompactionSettings, is_selected: Callable[[TopicIdPartition], bool]
) -> list[FoundRun]:
    """The interrupted and active runs on the selected partitions."""
    return [run for run in open_journals(settings.written).find() if is_selected(run.partition)]


def unpublished_runs(
    settings: CompactionSettings, partitions: Iterable[TopicIdPartition]
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

    found: FoundRun
    step: RecoveryStep

    def as_row(self) -> dict[str, Any]:
        journal, partition = self.found.journal, self.found.partition
        return {
            "topic": partition.topic,
            "partition": partition.partition,
            "run": self.found.run,
            "state": None if journal is None else journal.state.value,
            "step": self.step.value,
        }


def plan_recovery(runs: Sequence[FoundRun]) -> list[Recovery]:
    """The recovery step of each run. A run in place whose segments are all staged is left to the
    broker, which publishes it."""
    # A copy is complete when all its partitions are staged. If one is not, the whole run is undone.
    unstaged = {run.run for run in runs if _is_unstaged(run)}
    steps = []
    for run in runs:
        in_place = run.journal is not None and run.journal.in_place
        if _is_unstaged(run) or (run.run in unstaged and not in_place):
            steps.append(Recovery(run, RecoveryStep.UNDO))
        else:
            step = RecoveryStep.LEFT_TO_BROKER if in_place else RecoveryStep.FINISH
            steps.append(Recovery(run, step))
    return steps


def recover(settings: CompactionSettings, runs: Sequence[FoundRun]) -> list[Recovery]:
    """Take the steps of `plan_recovery`. None of the runs may be active."""
    storage, journals = _storage(settings.written), open_journals(settings.written)
    steps = plan_recovery(runs)
    # Delete the journal that shows an incomplete copy last. If it went first and a crash followed,
    # the other journals would look like those of a complete run.
    for each in sorted(steps, key=lambda step: _is_unstaged(step.found)):
        if each.step is RecoveryStep.UNDO:
            undo_run(storage, journals, each.found)
        elif each.step is RecoveryStep.FINISH:
            finish_copy(storage, journals, each.found)
    return steps


def _is_unstaged(run: FoundRun) -> bool:
    return run.journal is None or run.journal.state is JournalState.STAGING


def check_target(plan: CompactionPlan, settings: CompactionSettings) -> None:
    """Raise PolicyViolationError if there is an unfinished run, or if the target of a copy already
    has segments of the topics, since readers would mix the two histories."""
    for run in unfinished_runs(settings, set(plan.partitions).__contains__):
        raise PolicyViolationError(
            f"an earlier compaction is not over run={run.run} partition={run.partition}"
            f" state={run.journal.state.value if run.journal else None}"
            " hint='if it is not running any more, --recover --run finishes or undoes it'"
        )
    if settings.target is None:
        return
    client, layout = open_for_reading(settings.target), settings.target.create_layout()
    topics = {partition.topic for partition in plan.partitions}
    for objects in list_segment_objects(client, layout, topics.__contains__):
        raise PolicyViolationError(
            "the target has segments of this topic already"
            f" segment={objects.segment_id} url={settings.target.url}"
            " hint='name another prefix with --to-option key.prefix='"
        )


def compact(
    spark: SparkSession,
    plan: CompactionPlan,
    settings: CompactionSettings,
    progress: Callable[[str], None] = lambda text: None,
) -> list[PartitionReport]:
    """Stage all segments. Then publish a copy, or leave the journals of a run in place to the
    broker.

    After an error `recover` removes the staged segments. An error in a task, such as
    CorruptObjectError, arrives as the cause of a PySparkException.
    """
    check_target(plan, settings)
    in_place = settings.target is None
    worked_on = plan.cleaned if in_place else list(plan.pieces)
    run = os.urandom(8).hex()
    passes = PassSettings(
        run=run,
        source=settings.source,
        target=settings.written,
        rules=settings.rules,
        in_place=in_place,
    )
    if not worked_on:
        return report(plan, [])
    journals = open_journals(settings.written)
    progress("reading the keys")
    newest = newest_of_all(spark, plan.cleaned, passes)
    try:
        with shuffle_partitions(spark, plan.cleaned):
            opened = open_producers_of(plan.cleaned, newest)
        progress(f"writing {len(worked_on)} segments again")
        # The journals begin only after pass 1, because a run that stores nothing for long counts as
        # abandoned.
        started = _begin(journals, run, worked_on, settings)
        staged = stage_all(spark, worked_on, newest, opened, passes)
    finally:
        newest.unpersist()
    progress("publishing")
    # If a broker has undone the run as abandoned, its journals must not come back.
    _check_not_undone(journals, run, staged)
    # All journals before the first manifest: a copy is complete when all its partitions are staged,
    # and after a crash `plan_recovery` would undo a part of it otherwise.
    for journal in started:
        journals.put(_staged_journal(journal, staged))
    ours = [found for found in journals.find() if found.run == run]
    for found in ours:
        # In place the broker goes on. Without replacements only the journal is to be removed.
        if in_place and found.journal is not None and found.journal.replacements:
            continue
        finish_copy(_storage(settings.written), journals, found)
    return report(plan, staged)


def _check_not_undone(
    journals: CompactionJournals, run: str, staged: Sequence[StagedPiece]
) -> None:
    """Raise PolicyViolationError if another program took the run for abandoned and deleted its
    staged segments."""
    announced = {
        segment_id
        for unfinished in journals.find()
        if unfinished.run == run and unfinished.journal is not None
        for _, segment_id in unfinished.staged
    }
    for each in staged:
        if each.replacement is not None and each.replacement.new.segment_id not in announced:
            raise PolicyViolationError(
                f"the compaction was undone while it ran run={run}"
                f" segment={each.replacement.new.segment_id}"
            )


def report(plan: CompactionPlan, staged: Sequence[StagedPiece]) -> list[PartitionReport]:
    reports = []
    for partition in plan.partitions:
        mine = [each for each in staged if each.piece.segment.topic_id_partition == partition]
        pieces = [each for each in plan.pieces if each.segment.topic_id_partition == partition]
        reports.append(
            PartitionReport(
                partition,
                segments=len(pieces),
                bytes=sum(piece.segment.segment_size_in_bytes for piece in pieces),
                uncleanable=sum(not piece.is_cleaned for piece in pieces),
                changed=sum(each.replacement is not None for each in mine),
                records_before=sum(each.records_read for each in mine),
                records_after=sum(each.records_kept for each in mine),
                bytes_before=sum(each.bytes_read for each in mine),
                bytes_after=sum(each.bytes_written for each in mine),
            )
        )
    return reports


def _begin(
    journals: CompactionJournals, run: str, pieces: Sequence[Any], settings: CompactionSettings
) -> list[CompactionJournal]:
    started = [
        CompactionJournal(
            run=run,
            partition=partition,
            state=JournalState.STAGING,
            time_ms=settings.now_ms,
            in_place=settings.target is None,
            keep_old_ms=settings.keep_old_ms,
        )
        for partition in dict.fromkeys(piece.segment.topic_id_partition for piece in pieces)
    ]
    for journal in started:
        journals.put(journal)
    return started


def _staged_journal(journal: CompactionJournal, staged: Sequence[StagedPiece]) -> CompactionJournal:
    return replace(
        journal,
        state=JournalState.STAGED,
        replacements=tuple(
            each.replacement
            for each in staged
            if each.replacement is not None
            and each.piece.segment.topic_id_partition == journal.partition
        ),
    )


def _storage(settings: ObjectStoreSettings) -> ObjectStoreRemoteStorageManager:
    store = open_object_store(settings, create_folder=False)
    return ObjectStoreRemoteStorageManager(settings, store=store)


def settings_of(
    options: SourceOptions,
    *,
    now_ms: TimestampMs,
    delete_retention_ms: int,
    keep_old_ms: int = 0,
    to_url: str | None = None,
    to_storage: dict[str, str] | None = None,
) -> CompactionSettings:
    """Settings from the options of the source. `to_url` (a URL or a folder's path) and `to_storage`
    (settings that override the source's) name the target of a copy, whose layout is `aiven` by
    default."""
    source = tier_settings(options) if options.storage_manager is None else options
    target = None
    if to_url is not None:
        url: str | None = storage_url(to_url)
    else:
        url = source.url if to_storage and isinstance(source, ObjectStoreSettings) else None
    if url is not None:
        config = {**options.storage_settings, "url": url, **(to_storage or {})}
        target = ObjectStoreSettings.from_config(config)
    return CompactionSettings(
        source=source,
        target=target,
        now_ms=now_ms,
        delete_retention_ms=delete_retention_ms,
        fetch_bytes=options.fetch_bytes,
        keep_old_ms=keep_old_ms,
    )
