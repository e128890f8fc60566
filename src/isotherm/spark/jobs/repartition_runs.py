"""The runs of a repartition: the first one copies everything, a later one what has arrived since.

    ranges     what the brokers have beyond the end of the last run
    load       reads, writes and stages it, with its map of offsets
    map        is stored, if there is a folder for it, before the broker may adopt anything
    adoption   the new topic's broker appends it
    groups     get their offsets in the new topic

A run after the first checks that the new topic ends where the last run ended. Otherwise a record
could be copied twice, or lie behind those of a producer. A driver that was killed has stored its
map or has staged nothing that is adopted (docs/decisions/0315).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from isotherm.clock import Clock
from isotherm.errors import PolicyViolationError
from isotherm.remote.rewriting.journal import JournalState
from isotherm.spark.jobs.load import (
    LoadPlan,
    LoadReport,
    LoadSettings,
    LoadTarget,
    StagedHistory,
    await_adoption,
    hand_over,
    open_target,
    planned,
    stage,
)
from isotherm.spark.jobs.load_passes import RANGE_BYTES
from isotherm.spark.jobs.moved_offsets import (
    MOVED,
    MovedRules,
    TranslatedOffset,
    moved_rules,
    translated_offsets,
)
from isotherm.spark.jobs.offsets_map import (
    CopiedTo,
    MapOfTopics,
    copied_to,
    ended_at,
    forget_runs,
    range_bytes,
    read_map,
    runs_behind,
    without_runs,
    write_map,
)
from isotherm.spark.jobs.repartition import (
    OldRange,
    check_groups_follow,
    check_groups_have_committed,
    old_count,
    old_ranges,
    old_rows,
)
from isotherm.spark.jobs.rewrite_run import new_run
from isotherm.spark.jobs.rewrite_tasks import open_journals
from isotherm.spark.options import SourceOptions
from isotherm.spark.plan.offsets import parse_partition_offsets
from isotherm.spark.reading.brokers import KafkaBrokers
from isotherm.spark.tier.tier_settings import tier_settings
from isotherm.types import Offset, TopicIdPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOTHING_COPIED = CopiedTo({}, {})
_GAIN = 0.9
"""The lag of two runs must fall below this share of the lag before them."""
_MS_PER_S = 1000

Committed = Mapping[str, Mapping[int, Offset]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repartition:
    """Two topics and how one is copied into the other. `old_texts` are the options of reads of the
    old topic, `options` those of the new one, `brokers` read committed records."""

    old: str
    new: str
    old_texts: Mapping[str, object]
    options: SourceOptions
    brokers: KafkaBrokers
    settings: LoadSettings
    wait_s: float
    offsets_map: str | None = None


class CopyReport(NamedTuple):
    """A run, before the broker may adopt it and after it has. What has arrived in its last `lag_ms`
    may be missing."""

    partitions: list[LoadReport]
    groups: list[TranslatedOffset]
    copied_to: CopiedTo
    is_adopted: bool = False
    lag_ms: int = 0


class _StagedCopy(NamedTuple):
    target: LoadTarget
    history: StagedHistory
    report: CopyReport


def parse_copied_to(text: str, old: str, new: str) -> CopiedTo:
    """The text of `--from-offsets`. Raises ConfigError for an invalid one."""
    parsed = parse_partition_offsets(text, "--from-offsets")
    by_topic: dict[str, dict[int, Offset]] = {old: {}, new: {}}
    for place, offset in parsed.items():
        if place.topic in by_topic:
            by_topic[place.topic][place.partition] = offset
    return CopiedTo(by_topic[old], by_topic[new])


def copied_to_text(ends: CopiedTo, old: str, new: str) -> str:
    return json.dumps({old: _texts(ends.old), new: _texts(ends.new)})


def _texts(ends: Mapping[int, Offset]) -> dict[str, Offset]:
    return {str(partition): offset for partition, offset in sorted(ends.items())}


def ranges_to_copy(plan: Repartition, since: CopiedTo) -> list[OldRange]:
    """The committed offsets of the old topic behind `since`."""
    owners = plan.brokers.partitions([plan.old])
    bounds = plan.brokers.bounds([owner.topic_partition for owner in owners])
    return old_ranges({place.partition: ends for place, ends in bounds.items()}, since.old)


def earlier_ranges(spark: SparkSession, plan: Repartition) -> DataFrame | None:
    """The map of earlier runs into the new topic, which exists; None without one."""
    if plan.offsets_map is None:
        return None
    old, new = (plan.brokers.partitions([topic])[0] for topic in (plan.old, plan.new))
    return read_map(spark, MapOfTopics(plan.offsets_map, old, new))


def runs(
    spark: SparkSession,
    plan: Repartition,
    since: CopiedTo,
    groups: Sequence[str],
    lag_ms_max: int | None,
    show_step: Callable[[str], None],
    clock: Clock,
) -> Iterator[CopyReport]:
    """Copy what has arrived since, and with `lag_ms_max` again and again, until the lag is not
    above it, or does not fall any more."""
    lags_ms: list[int] = []
    while True:
        began_s = clock.monotonic_s()
        staged = _stage(spark, plan, since, groups, show_step, clock)
        # Whoever keeps the end of the run has it before the new topic may have the records.
        yield staged.report
        _adopt(plan, staged, show_step, clock)
        lag_ms = round((clock.monotonic_s() - began_s) * _MS_PER_S)
        yield staged.report._replace(is_adopted=True, lag_ms=lag_ms)
        since = staged.report.copied_to
        lags_ms.append(lag_ms)
        if lag_ms_max is None or not goes_on(lags_ms, lag_ms_max):
            return


def goes_on(lags_ms: Sequence[int], lag_ms_max: int) -> bool:
    """Whether another run is worth it, after runs with these lags. A run has a fixed cost, and it
    gives each new partition a segment at least: an endless series of runs would harm the topic."""
    if lags_ms[-1] <= lag_ms_max:
        return False
    return len(lags_ms) < 3 or min(lags_ms[-2:]) < _GAIN * lags_ms[-3]


def _stage(
    spark: SparkSession,
    plan: Repartition,
    since: CopiedTo,
    groups: Sequence[str],
    show_step: Callable[[str], None],
    clock: Clock,
) -> _StagedCopy:
    """Write and stage the records, and store the map: nothing is in the new topic yet."""
    show_step("reading the topics")
    ranges = ranges_to_copy(plan, since)
    committed = {group: plan.brokers.committed_offsets(group, plan.old) for group in groups}
    check_groups_have_committed(committed, plan.old)
    settings = replace(
        plan.settings, now_ms=clock.now_ms(), appends=bool(since.old), copies_records=True
    )
    target = open_target(plan.options, plan.new, settings)
    _check_ends(target, since)
    _forget_undone_runs(spark, plan, target)
    earlier = earlier_ranges(spark, plan) if since.old else None
    if since.old and earlier is None:
        check_groups_follow(committed, ranges)
    history = StagedHistory(new_run(), [], [], MOVED.empty_table())
    if not since.old or any(old_range.end > old_range.start for old_range in ranges):
        rows = old_rows(spark, plan.old_texts, plan.old, ranges)
        show_step("reading records")
        with planned(rows, target, settings) as load_plan:
            rules = _moved_rules(plan, load_plan, old_count(ranges), committed)
            fetch_bytes = plan.options.fetch_bytes
            history = stage(load_plan, show_step, fetch_bytes=fetch_bytes, moved=rules)
    ends = _ends_behind(ranges, target, history.reports)
    show_step("translating offsets")
    translated = _translated(history.moved, earlier, committed, target)
    if plan.offsets_map is not None:
        _store_map(spark, plan, target, history, ends)
    return _StagedCopy(target, history, CopyReport(history.reports, translated, ends))


def _forget_undone_runs(spark: SparkSession, plan: Repartition, target: LoadTarget) -> None:
    """Take the runs out of the map that were undone. No run is unfinished: `open_target` has looked
    for them."""
    ranges = earlier_ranges(spark, plan)
    if ranges is not None:
        ends = {owner.partition: end for owner, end in target.ends.items()}
        forget_runs(spark, ranges, runs_behind(ranges, ends))


def _adopt(
    plan: Repartition, staged: _StagedCopy, show_step: Callable[[str], None], clock: Clock
) -> None:
    hand_over(staged.target.store, staged.history)
    show_step("waiting for the broker to adopt the history")
    await_adoption(staged.target.store, list(staged.target.ends), plan.wait_s, clock)
    # Last: a group must not be sent to records that are not there yet.
    by_group: dict[str, dict[int, Offset]] = {}
    for translated in staged.report.groups:
        by_group.setdefault(translated.group, {})[translated.partition] = translated.offset
    for group, offsets in by_group.items():
        plan.brokers.commit_offsets(group, plan.new, offsets)


def _moved_rules(
    plan: Repartition, load_plan: LoadPlan, old_partitions: int, committed: Committed
) -> MovedRules | None:
    if plan.offsets_map is not None:
        size = range_bytes(sum(row.bytes for row in load_plan.rows), old_partitions)
    elif committed:
        size = RANGE_BYTES
    else:
        return None
    return moved_rules(old_partitions, committed, size)


def _check_ends(target: LoadTarget, since: CopiedTo) -> None:
    """Raise PolicyViolationError if the new topic does not end where the last run ended."""
    if not since.new:
        return
    for owner, end in target.ends.items():
        copied_end = since.new.get(owner.partition, 0)
        if end != copied_end:
            raise PolicyViolationError(
                "the new topic does not end where the last run ended"
                f" partition={owner} end_offset={end} copied_to={copied_end}"
                " hint='after a producer or an interrupted run nothing can be appended: copy into"
                " another topic'"
            )


def _ends_behind(
    ranges: Sequence[OldRange], target: LoadTarget, reports: Sequence[LoadReport]
) -> CopiedTo:
    new = {owner.partition: end for owner, end in target.ends.items()}
    for report in reports:
        new[report.partition.partition] += report.records
    return CopiedTo({old_range.partition: old_range.end for old_range in ranges}, new)


def _translated(
    moved: pa.Table, earlier: DataFrame | None, committed: Committed, target: LoadTarget
) -> list[TranslatedOffset]:
    if not committed:
        return []
    starts = dict(target.ends)
    if earlier is not None:
        moved = pa.concat_tables([moved, earlier.select(*MOVED.names).toArrow().cast(MOVED)])
        starts = dict.fromkeys(starts, 0)
    return translated_offsets(moved, committed, starts)


def _store_map(
    spark: SparkSession,
    plan: Repartition,
    target: LoadTarget,
    history: StagedHistory,
    ends: CopiedTo,
) -> None:
    assert plan.offsets_map is not None, "the caller's condition"
    (old, *_), new = plan.brokers.partitions([plan.old]), next(iter(target.ends))
    place = MapOfTopics(plan.offsets_map, old, new)
    moved = pa.concat_tables([history.moved, ended_at(ends.old, ends.new)])
    write_map(spark, place, history.run, moved)


def since_of_map(spark: SparkSession, plan: Repartition) -> CopiedTo:
    """Where the runs of the map have ended, if there is a map and the new topic is in it. Runs that
    were undone do not count; those that the broker may still adopt do."""
    is_new = plan.new not in plan.brokers.topic_names()
    ranges = None if is_new else earlier_ranges(spark, plan)
    if ranges is None:
        return NOTHING_COPIED
    owners = plan.brokers.partitions([plan.new])
    if not _is_unfinished(plan, owners):
        bounds = plan.brokers.bounds([owner.topic_partition for owner in owners])
        ends = {place.partition: offsets.end for place, offsets in bounds.items()}
        ranges = without_runs(ranges, runs_behind(ranges, ends))
    return copied_to(ranges)


def _is_unfinished(plan: Repartition, owners: Collection[TopicIdPartition]) -> bool:
    return any(
        run.journal is None or run.journal.state is not JournalState.REFUSED
        for run in open_journals(tier_settings(plan.options)).find()
        if run.partition in owners
    )
