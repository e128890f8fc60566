"""The driver's part of a batch query: turns the options' limits into tasks."""

from __future__ import annotations

from isotherm.spark.options import SourceOptions
from isotherm.spark.plan.offsets import (
    OffsetRange,
    check_order,
    check_range,
    clip_range,
    resolve_end,
    resolve_start,
)
from isotherm.spark.plan.planning import ReadTask
from isotherm.spark.tier.tiered_log import TieredLog, Views


class BatchQuery:
    """Plans one query."""

    def __init__(self, options: SourceOptions, log: TieredLog) -> None:
        self._options = options
        self._log = log

    def plan(self) -> list[ReadTask]:
        """The tasks that together read every wanted record once.

        Raises UnknownTopicOrPartitionError, OffsetOutOfRangeError (with failOnDataLoss) and
        ConfigError if the options do not fit the topics and offsets. Otherwise it raises as
        `TieredLog.planned`.
        """
        return self._log.planned(lambda views: self._log.tasks(self._ranges(views), views))

    def ranges(self) -> list[OffsetRange]:
        """The wanted and readable offsets of each partition. Raises as `plan`."""
        return self._log.planned(self._ranges)

    def _ranges(self, views: Views) -> list[OffsetRange]:
        options = self._options
        bounds = {partition: view.bounds for partition, view in views.items()}
        starts = resolve_start(
            options.starting_limit,
            bounds,
            self._log.find_times(options.starting_limit, views),
            latest_when_not_found=options.starting_offsets_by_timestamp_strategy == "latest",
        )
        ends = resolve_end(
            options.ending_limit,
            bounds,
            self._log.find_times(options.ending_limit, views, is_end=True),
        )
        check_order(starts, ends, "resolved start offset")
        ranges = []
        for partition in sorted(views):
            requested = OffsetRange(partition, starts[partition], ends[partition])
            problem = check_range(requested, bounds[partition])
            if problem is not None:
                self._log.report_data_loss(problem)
            ranges.append(clip_range(requested, bounds[partition]))
        return ranges
