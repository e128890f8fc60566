"""Plans tasks for the records of a topic that a job has not read yet: those after its stored
offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass

from isotherm.errors import UnknownTopicOrPartitionError
from isotherm.spark.options import SourceOptions
from isotherm.spark.plan.offsets import OffsetRange, check_range, clip_range
from isotherm.spark.reading.brokers import KafkaBrokers
from isotherm.spark.source_task import TaskPartition, uncollected
from isotherm.spark.tier.open_log import open_brokers, open_tiered_log
from isotherm.spark.tier.tier_settings import read_settings
from isotherm.spark.tier.tiered_log import TieredLog, Views
from isotherm.types import Offset, uuid_to_text


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """The `ranges` of all partitions, including empty ones, and the tasks that read them once.
    `topic_id` comes from the brokers, or from the segments if there are no brokers."""

    topic_id: str
    ranges: tuple[OffsetRange, ...]
    tasks: tuple[TaskPartition, ...]

    @property
    def offsets(self) -> int:
        """Number of offsets to read."""
        return sum(offset_range.size for offset_range in self.ranges)

    @property
    def size_in_bytes(self) -> int:
        """Estimate, the sum of SegmentRead.size_in_bytes."""
        return sum(task.task.size_in_bytes for task in self.tasks)


class TopicPlanner:
    """Plans for the one topic of the options. A later plan reads only the metadata that is new. Not
    thread-safe. Create another planner after an error."""

    def __init__(self, options: SourceOptions) -> None:
        self._open = ExitStack()
        with ExitStack() as opened:
            settings = read_settings(options)
            self._layout = "" if settings is None else settings.layout
            self._brokers = open_brokers(options)
            self._log = opened.enter_context(open_tiered_log(options, settings, self._brokers))
            self._open = opened.pop_all()

    def close(self) -> None:
        self._open.close()

    def plan(
        self, covered: Mapping[int, Offset], check_id: Callable[[str], None] = lambda _: None
    ) -> TopicPlan:
        """Plan the records from the offsets `covered` on, by partition number. A partition without
        such an offset is read from its start. `check_id` gets the topic's id first: the offsets of
        another topic say nothing about this one.

        Raises UnknownTopicOrPartitionError for a topic without a segment, and OffsetOutOfRangeError
        (with failOnDataLoss) if offsets after the covered ones are no longer kept.
        """

        def plan(views: Views) -> TopicPlan:
            topic_id = _topic_id(views, self._brokers)
            check_id(topic_id)
            ranges = _ranges(self._log, views, covered)
            tasks = [TaskPartition(task, self._layout) for task in self._log.tasks(ranges, views)]
            return TopicPlan(topic_id, tuple(ranges), tuple(tasks))

        with uncollected():
            return self._log.planned(plan)


def plan_topic(
    options: SourceOptions,
    covered: Mapping[int, Offset],
    check_id: Callable[[str], None] = lambda _: None,
) -> TopicPlan:
    """As TopicPlanner.plan, for a single plan."""
    with closing(TopicPlanner(options)) as planner:
        return planner.plan(covered, check_id)


def _ranges(log: TieredLog, views: Views, covered: Mapping[int, Offset]) -> list[OffsetRange]:
    ranges = []
    for partition in sorted(views):
        bounds = views[partition].bounds
        start = covered.get(partition.partition)
        if start is None:
            start = bounds.start
            # A commit covers all partitions that its run has seen, also empty ones.
            if covered and start > 0:
                log.report_data_loss(
                    "a partition that no run has seen does not begin at offset 0"
                    f" partition={partition} first_available={start}"
                )
        elif bounds.end < start and log.is_bounded_by_brokers:
            log.report_data_loss(
                f"the log ends before the offsets that were read already partition={partition}"
                f" covered_end={start} available_end={bounds.end} cause='an unclean election, or a"
                " change of isolationLevel from read_uncommitted to read_committed'"
            )
        # An earlier run may have read more: without the tail the log ends at the first transaction
        # that is open where the bucket ends. That is not data loss.
        requested = OffsetRange(partition, start, max(start, bounds.end))
        if requested.size and (problem := check_range(requested, bounds)):
            log.report_data_loss(problem)
        ranges.append(clip_range(requested, bounds) if requested.size else requested)
    return ranges


def _topic_id(views: Views, brokers: KafkaBrokers | None) -> str:
    if brokers is not None:
        return uuid_to_text(brokers.partitions({min(views).topic})[0].topic_id)
    for view in views.values():
        for piece in view.pieces:
            return uuid_to_text(piece.segment.topic_id_partition.topic_id)
    raise UnknownTopicOrPartitionError(
        f"the bucket has no readable segment of the topic yet topic={min(views).topic}"
    )
