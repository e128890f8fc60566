"""Writes a DataFrame as the history of a tiered topic that has no records (load, repartition).

    plan      the topic's settings and log ends, and the rows of each partition
    write     the tasks write segments, and stage them without manifests (load_passes)
    adopt     the topic's broker commits and publishes the segments, and its log begins behind them
              (remote/rewriting/adoption.py)

The bucket has a journal from the first new object to the last step, as for a compaction.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
from pyspark.storagelevel import StorageLevel

from isotherm.clock import Clock
from isotherm.errors import (
    ConfigError,
    PolicyViolationError,
    RequestTimedOutError,
    UnsupportedVersionError,
)
from isotherm.record.compression import CompressionType
from isotherm.record.encode import Partitioner
from isotherm.remote.rewriting.history_writer import HistoryRules
from isotherm.remote.rewriting.journal import (
    FoundRun,
    JournalState,
    NewSegment,
    RewriteJournal,
    RunKind,
)
from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.jobs.load_passes import (
    TASK_BYTES_MIN,
    PartitionRows,
    WriteSettings,
    count_rows,
    first_offsets,
    plan_ranges,
    prepare,
    write_all,
)
from isotherm.spark.jobs.moved_offsets import MOVED, MovedRules
from isotherm.spark.jobs.packed_rows import WorkerRows
from isotherm.spark.jobs.rewrite_run import (
    check_begun_alone,
    check_cluster_publishes,
    check_not_undone,
    new_run,
)
from isotherm.spark.jobs.rewrite_tasks import open_journals, tasks_for
from isotherm.spark.options import SourceOptions
from isotherm.spark.reading.brokers import KafkaBrokers
from isotherm.spark.small_input import SMALL_INPUT_ROWS_MAX, small_session
from isotherm.spark.table_frame import table_frame
from isotherm.spark.tier.open_log import open_brokers
from isotherm.spark.tier.tier_settings import tier_settings
from isotherm.types import Offset, TimestampMs, TopicIdPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

BATCH_SIZE_DEFAULT = 128 * 1024
_FIRST_LOOK_S = 0.1
_PAUSE_GROWTH = 1.25
_LOOK_INTERVAL_S = 1.0
"""Each look lists the bucket, so the pauses between them grow up to this one."""
_UNLIMITED = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """`compression` None is the topic's codec, or none if producers choose it. `segment_bytes` None
    is the topic's. `appends` allows a topic that an earlier load has filled. The rows of
    `copies_records` were another topic's: they may be of any time, and expired."""

    now_ms: TimestampMs
    partitioner: Partitioner = Partitioner.MURMUR2
    order_by: str | None = None
    compression: CompressionType | None = None
    compression_level: int | None = None
    batch_size: int = BATCH_SIZE_DEFAULT
    segment_bytes: int | None = None
    appends: bool = False
    copies_records: bool = False


def load_settings(
    *,
    now_ms: TimestampMs,
    partitioner: str = Partitioner.MURMUR2.value,
    order_by: str | None = None,
    compression: str | None = None,
    batch_size: int | None = None,
    segment_bytes: int | None = None,
    appends: bool = False,
) -> LoadSettings:
    """Settings from texts. Raises ConfigError for an unknown partitioner or codec."""
    partitioners = [kind.value for kind in Partitioner]
    if partitioner not in partitioners:
        raise ConfigError(f"unknown partitioner value={partitioner!r} one_of={partitioners}")
    codecs = [codec.name.lower() for codec in CompressionType]
    if compression is not None and compression not in codecs:
        raise ConfigError(f"unknown codec compression={compression!r} one_of={codecs}")
    return LoadSettings(
        now_ms=now_ms,
        partitioner=Partitioner(partitioner),
        order_by=order_by,
        compression=None if compression is None else CompressionType[compression.upper()],
        batch_size=batch_size or BATCH_SIZE_DEFAULT,
        segment_bytes=segment_bytes,
        appends=appends,
    )


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """The topic: its partitions with their log ends, where the history begins, and its settings."""

    store: ObjectStoreSettings
    ends: Mapping[TopicIdPartition, Offset]
    rules: HistoryRules
    retention_ms: int
    retention_bytes: int

    @property
    def owners(self) -> dict[int, TopicIdPartition]:
        return {end.partition: end for end in self.ends}


@dataclass(frozen=True, slots=True)
class LoadReport:
    """The outcome for one partition. `segments` is 0 in a plan."""

    partition: TopicIdPartition
    start_offset: Offset
    records: int
    bytes: int
    segments: int = 0
    written_bytes: int = 0

    def as_row(self) -> dict[str, Any]:
        return {
            "topic": self.partition.topic,
            "partition": self.partition.partition,
            "start_offset": self.start_offset,
            "records": self.records,
            "bytes": self.bytes,
            "segments": self.segments,
            "written_bytes": self.written_bytes,
        }


def open_target(options: SourceOptions, topic: str, settings: LoadSettings) -> LoadTarget:
    """Ask the brokers for the topic. Raises UnknownTopicOrPartitionError if there is none, and
    PolicyViolationError if it cannot take a history: it is not tiered, it has records, an earlier
    run is not over, or its brokers publish no staged segments."""
    brokers = open_brokers(options)
    if brokers is None:
        raise ConfigError("the topic's cluster is not named hint='name it with --bootstrap-server'")
    store = tier_settings(options)
    if store.create_layout().commit_suffix is None:
        raise UnsupportedVersionError(
            f"segments cannot be staged in this layout layout={store.layout}"
        )
    partitions = sorted(brokers.partitions([topic]), key=lambda owner: owner.partition)
    check_cluster_publishes(brokers)
    config = brokers.topic_config(topic)
    if config["remote.storage.enable"] != "true":
        raise PolicyViolationError(
            f"the topic has no remote tier topic={topic}"
            " hint='create it with remote.storage.enable=true'"
        )
    ends = _ends(brokers, partitions, settings)
    _check_no_run(store, partitions)
    level = settings.compression_level
    codec = settings.compression
    if codec is None:
        codec = _codec_of(config["compression.type"])
    max_message_bytes = int(config["max.message.bytes"])
    rules = HistoryRules(
        now_ms=settings.now_ms,
        segment_bytes=settings.segment_bytes or int(config["segment.bytes"]),
        index_interval_bytes=int(config["index.interval.bytes"]),
        max_message_bytes=max_message_bytes,
        batch_size=min(settings.batch_size, max_message_bytes),
        compression=codec,
        compression_level=level,
    )
    return LoadTarget(
        store, ends, rules, int(config["retention.ms"]), int(config["retention.bytes"])
    )


def _codec_of(compression_type: str) -> CompressionType:
    name = "NONE" if compression_type in ("producer", "uncompressed") else compression_type.upper()
    return CompressionType[name]


def _ends(
    brokers: KafkaBrokers, partitions: Sequence[TopicIdPartition], settings: LoadSettings
) -> dict[TopicIdPartition, Offset]:
    bounds = brokers.bounds([partition.topic_partition for partition in partitions])
    ends = {}
    for partition in partitions:
        present = bounds[partition.topic_partition]
        if present.end and not settings.appends:
            raise PolicyViolationError(
                f"the topic has records already partition={partition} start_offset={present.start}"
                f" end_offset={present.end} hint='a history is written into a new topic; --append"
                " continues one that an earlier run has written'"
            )
        ends[partition] = present.end
    return ends


def _check_no_run(store: ObjectStoreSettings, partitions: Iterable[TopicIdPartition]) -> None:
    """Raise PolicyViolationError if a run of any kind is not over. Journals of refused loads go:
    they have no object left, and a new load is their answer."""
    journals, chosen = open_journals(store), set(partitions)
    for run in journals.find():
        if run.partition not in chosen:
            continue
        if run.journal is not None and run.journal.state is JournalState.REFUSED:
            journals.forget(run)
            continue
        raise PolicyViolationError(
            f"an earlier run is unfinished run={run.run} partition={run.partition}"
            f" state={run.journal.state.value if run.journal else None}"
            " hint='if it is not running any more, --recover --run undoes it'"
        )


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The rows, on disk, in pieces, and where they go."""

    target: LoadTarget
    rows: list[PartitionRows]
    pieces: DataFrame


class StagedHistory(NamedTuple):
    """Staged segments. The broker adopts them once `hand_over` has stored the `journals`. `moved`
    is a table of MOVED: see MovedRules."""

    run: str
    journals: Sequence[RewriteJournal]
    reports: list[LoadReport]
    moved: pa.Table

    @property
    def segments(self) -> list[NewSegment]:
        return [segment for journal in self.journals for segment in journal.new_segments]


@contextmanager
def planned(
    rows: DataFrame | WorkerRows, target: LoadTarget, settings: LoadSettings
) -> Iterator[LoadPlan]:
    """Read the input, and keep it on the executors' disks in the block.

    Raises ConfigError for columns of wrong types, InvalidRecordError for rows that are no records,
    and PolicyViolationError if the topic's retention would delete records at once.
    """
    spark = (rows.tasks if isinstance(rows, WorkerRows) else rows).sparkSession
    with ExitStack() as stack:
        folder = stack.enter_context(_pieces_folder(spark))
        packed = prepare(
            rows,
            partitioner=settings.partitioner,
            partitions_count=len(target.ends),
            run_size=target.rules.batch_size,
            order_by=settings.order_by,
            now_ms=settings.now_ms,
            folder=folder,
        )
        if folder is None:
            pieces = packed.persist(StorageLevel.DISK_ONLY)
            stack.callback(pieces.unpersist)
        else:
            # The pieces are in files, so a row has little more than a place.
            table = packed.toArrow()
            is_small = len(table) <= SMALL_INPUT_ROWS_MAX
            pieces = table_frame(small_session(spark) if is_small else spark, table)
        counted = count_rows(pieces, len(target.ends), copies_records=settings.copies_records)
        if not settings.copies_records:
            _check_retention(target, counted, settings.now_ms)
        yield LoadPlan(target, counted, pieces)


@contextmanager
def _pieces_folder(spark: SparkSession) -> Iterator[str | None]:
    """A folder that all tasks see: there is one if all are in the driver's machine."""
    if not str(spark.conf.get("spark.master")).startswith("local["):
        yield None
        return
    parent = str(spark.conf.get("spark.local.dir", tempfile.gettempdir())).partition(",")[0]
    with tempfile.TemporaryDirectory(prefix="isotherm-load-", dir=parent) as folder:
        yield folder


def _check_retention(
    target: LoadTarget, rows: Sequence[PartitionRows], now_ms: TimestampMs
) -> None:
    for row in rows:
        place = f"partition={target.owners[row.partition]}"
        if target.retention_ms != _UNLIMITED and row.first_ms < now_ms - target.retention_ms:
            raise PolicyViolationError(
                f"the topic's retention would delete records at once {place}"
                f" retention.ms={target.retention_ms} oldest_ms={row.first_ms}"
                " hint='set retention.ms=-1, or a time that covers them'"
            )
        if target.retention_bytes != _UNLIMITED and row.bytes > target.retention_bytes:
            raise PolicyViolationError(
                f"the topic's retention would delete records at once {place}"
                f" retention.bytes={target.retention_bytes} bytes={row.bytes}"
            )


def report(plan: LoadPlan, staged: Sequence[NewSegment] = ()) -> list[LoadReport]:
    reports = []
    for row in plan.rows:
        owner = plan.target.owners[row.partition]
        mine = [segment.metadata for segment in _segments_of(owner, staged)]
        reports.append(
            LoadReport(
                owner,
                plan.target.ends[owner],
                row.records,
                row.bytes,
                len(mine),
                sum(segment.segment_size_in_bytes for segment in mine),
            )
        )
    return reports


def load(
    plan: LoadPlan, progress: Callable[[str], None] = lambda text: None, *, fetch_bytes: int
) -> list[LoadReport]:
    """Write and stage the segments, and leave them to the broker (`await_adoption`). Raises the
    errors of `stage` and of `hand_over`."""
    staged = stage(plan, progress, fetch_bytes=fetch_bytes)
    hand_over(plan.target.store, staged)
    return staged.reports


def stage(
    plan: LoadPlan,
    progress: Callable[[str], None],
    *,
    fetch_bytes: int,
    moved: MovedRules | None = None,
) -> StagedHistory:
    """Write and stage the segments.

    After an error `--recover` removes what is staged. Errors of tasks arrive as the cause of a
    PySparkException.
    """
    target = plan.target
    journals, run = open_journals(target.store), new_run()
    task_bytes = max(TASK_BYTES_MIN, target.rules.segment_bytes)
    ranges = plan_ranges(plan.pieces, plan.rows, task_bytes)
    owners = target.owners
    progress("counting records")
    starts = {row.partition: target.ends[owners[row.partition]] for row in plan.rows}
    places = first_offsets(plan.pieces, plan.rows, ranges, starts)
    if not places:
        return StagedHistory(run, [], report(plan), MOVED.empty_table())
    progress("writing segments")
    started = [
        RewriteJournal(
            kind=RunKind.LOAD,
            run=run,
            partition=owners[row.partition],
            state=JournalState.STAGING,
            time_ms=target.rules.now_ms,
            in_place=True,
        )
        for row in plan.rows
    ]
    for journal in started:
        journals.put(journal)
    check_begun_alone(journals, run, {journal.partition for journal in started})
    settings = WriteSettings(
        run=run, target=target.store, rules=target.rules, fetch_bytes=fetch_bytes, moved=moved
    )
    tasks = tasks_for(plan.pieces.sparkSession, sum(row.bytes for row in plan.rows))
    written = write_all(plan.pieces, ranges, places, owners, settings, tasks)
    staged = []
    for journal in started:
        segments = _segments_of(journal.partition, written.segments)
        _check_whole(journal.partition, segments, plan)
        staged.append(replace(journal, state=JournalState.STAGED, new_segments=segments))
    return StagedHistory(run, staged, report(plan, written.segments), written.moved)


def hand_over(store: ObjectStoreSettings, staged: StagedHistory) -> None:
    """Leave the segments to the broker. Raises PolicyViolationError if another program has undone
    the run."""
    if not staged.journals:
        return
    journals = open_journals(store)
    check_not_undone(
        journals, staged.run, [segment.metadata.segment_id for segment in staged.segments]
    )
    # The last one makes the load whole: the broker adopts none of its partitions before.
    for journal in staged.journals:
        journals.put(journal)


def _segments_of(
    partition: TopicIdPartition, staged: Sequence[NewSegment]
) -> tuple[NewSegment, ...]:
    return tuple(segment for segment in staged if segment.metadata.topic_id_partition == partition)


def _check_whole(
    partition: TopicIdPartition, segments: Sequence[NewSegment], plan: LoadPlan
) -> None:
    """The segments must cover the offsets of the partition's records without a gap: the broker's
    log begins behind them."""
    offset = plan.target.ends[partition]
    end = offset + next(row.records for row in plan.rows if row.partition == partition.partition)
    for segment in segments:
        if segment.metadata.start_offset != offset:
            break
        offset = segment.metadata.end_offset_inclusive + 1
    if offset != end:
        raise PolicyViolationError(
            f"segments do not cover the partition's records partition={partition} end_offset={end}"
            f" missing_from={offset}"
        )


def waiting_runs(
    store: ObjectStoreSettings, partitions: Iterable[TopicIdPartition]
) -> list[FoundRun]:
    """The staged loads that no broker has adopted yet. Raises PolicyViolationError for a refused
    one, whose journal it removes."""
    journals, chosen = open_journals(store), set(partitions)
    runs = [run for run in journals.find() if run.partition in chosen and run.journal is not None]
    for run in runs:
        if run.journal is not None and run.journal.state is JournalState.REFUSED:
            journals.forget(run)
            raise PolicyViolationError(
                f"the broker has refused the history, and deleted it: {run.journal.reason}"
            )
    return runs


def await_adoption(
    store: ObjectStoreSettings,
    partitions: Sequence[TopicIdPartition],
    wait_s: float,
    clock: Clock,
) -> None:
    """Wait until the broker has adopted the histories. Raises PolicyViolationError if it refuses
    one, and RequestTimedOutError after the time limit; the broker goes on after that."""
    deadline_s = clock.monotonic_s() + wait_s
    never, pause_s = threading.Event(), _FIRST_LOOK_S
    while runs := waiting_runs(store, partitions):
        if clock.monotonic_s() >= deadline_s:
            raise RequestTimedOutError(
                "no broker has adopted the history yet: its leader checks the bucket of"
                " rsm.config every rlmm.config.remote.log.rewrite.check.interval.ms"
                f" run={runs[0].run} partition={runs[0].partition} waited_s={wait_s:g}"
                f" bucket={store.url} hint='is this the bucket of the topic, and do all replicas"
                " run?'"
            )
        clock.wait(never, pause_s)
        pause_s = min(_PAUSE_GROWTH * pause_s, _LOOK_INTERVAL_S)
