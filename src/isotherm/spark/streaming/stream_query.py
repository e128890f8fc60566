"""Plans a streaming query in the driver: its start, the end of each batch, and the tasks.

One object lives as long as the query. Only the offsets are durable: Spark writes them to its
checkpoint before it plans a batch. `tasks` depends on nothing else, so a batch that is planned
again after a crash reads the same records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from isotherm.clock import Clock
from isotherm.spark.options import SourceOptions
from isotherm.spark.plan.offsets import (
    OffsetBounds,
    OffsetRange,
    check_range,
    clip_range,
    resolve_start,
)
from isotherm.spark.plan.planning import ReadTask, plan_reads
from isotherm.spark.streaming.stream_offsets import (
    PartitionOffsets,
    StreamOffset,
    admit_bytes,
    admit_records,
)
from isotherm.spark.tier.tiered_log import TieredLog, Views
from isotherm.types import TopicPartition

Bounds = dict[TopicPartition, OffsetBounds]


@dataclass(frozen=True, slots=True)
class _Seen:
    """The last known bounds, and the monotonic time at which they were read."""

    bounds: Bounds
    at_s: float


class StreamQuery:
    """The state of one streaming query. Not thread-safe.

    Every method raises OffsetOutOfRangeError if records are lost and failOnDataLoss is set, and
    RetriableError if brokers or store do not answer. Spark then ends the query. A restart continues
    from its checkpoint.
    """

    def __init__(self, options: SourceOptions, log: TieredLog, clock: Clock) -> None:
        self._options = options
        self._log = log
        self._clock = clock
        self._initial: PartitionOffsets | None = None
        self._target: PartitionOffsets | None = None
        self._latest: PartitionOffsets | None = None
        self._seen: _Seen | None = None
        # When `minOffsetsPerTrigger` last let a batch pass.
        self._passed_s: float | None = None

    def initial_offset(self) -> StreamOffset:
        """The start of a new query. Every call returns the same offset."""
        if self._initial is None:
            may_lack_topics = self._options.subscribe_pattern is not None
            self._initial = self._log.planned(self._starts, may_lack_topics=may_lack_topics)
        return StreamOffset(self._initial)

    def _starts(self, views: Views) -> PartitionOffsets:
        limit = self._options.stream_starting_limit
        return resolve_start(
            limit,
            {partition: view.bounds for partition, view in views.items()},
            self._log.find_times(limit, views),
            latest_when_not_found=self._options.starting_offsets_by_timestamp_strategy == "latest",
        )

    def fix_target(self) -> None:
        """Fix the current end as the end of the query, for Trigger.AvailableNow."""
        self._target = {partition: bound.end for partition, bound in self._bounds().items()}

    def next_offset(self, start: StreamOffset, *, is_limited: bool) -> StreamOffset:
        """The end of the batch that begins at `start`; `start` itself if there is no batch yet.

        The options' limits apply only with `is_limited`: Trigger.Once reads everything.
        """
        bounds = self._bounds()
        self._report_vanished(start.offsets, bounds)
        available = [
            OffsetRange(
                partition,
                self._start_in(start.offsets, partition, bound),
                self._end(partition, bound),
            )
            for partition, bound in sorted(bounds.items())
            if self._target is None or partition in self._target
        ]
        self._latest = {whole.topic_partition: whole.end for whole in available}
        if is_limited and self._waits_for_more(available):
            return start
        ends = dict(self._latest)
        if is_limited and self._options.max_offsets_per_trigger is not None:
            ends = admit_records(available, self._options.max_offsets_per_trigger)
        if is_limited and self._options.max_bytes_per_trigger is not None:
            admitted = self._admit_bytes(available, self._options.max_bytes_per_trigger)
            ends = {p: min(end, admitted.get(p, end)) for p, end in ends.items()}
        if ends == start.offsets:
            # There are no records. If no checkpoint has the start yet, an empty batch stores it:
            # otherwise a stream that begins at `latest` would begin later after a restart.
            is_untold = start.start is None and start.offsets == self._initial
            return StreamOffset(ends, ends) if is_untold else start
        return StreamOffset(ends, start.offsets if start.offsets == self._initial else None)

    def latest_offset(self) -> StreamOffset | None:
        """The end of a batch without limits, from which Spark computes the lag."""
        return None if self._latest is None else StreamOffset(self._latest)

    def tasks(self, start: StreamOffset, end: StreamOffset) -> list[ReadTask]:
        """The tasks that together read every record from `start` to `end` once."""
        return self._log.planned(lambda views: self._tasks(start, end, views), may_lack_topics=True)

    def _tasks(self, start: StreamOffset, end: StreamOffset, views: Views) -> list[ReadTask]:
        started = start.offsets if end.start is None else end.start
        self._report_vanished(end.offsets, views)
        ranges = []
        for partition in sorted(end.offsets.keys() & views.keys()):
            bounds = views[partition].bounds
            # An added partition has no start in the checkpoint, and retention may have raised the
            # start of its log since `next_offset`.
            start_offset = self._start_in(started, partition, bounds)
            span = OffsetRange(partition, start_offset, end.offsets[partition])
            problem = check_range(span, bounds)
            if problem is not None:
                self._log.report_data_loss(problem)
            ranges.append(clip_range(span, bounds))
        return self._log.tasks(ranges, views)

    def _bounds(self) -> Bounds:
        """The currently readable offsets. Spark polls without a pause while there are no records.
        The brokers are asked each time, as the Kafka source does; a bucket is listed only at
        intervals."""
        now_s = self._clock.monotonic_s()
        interval_s = self._options.bucket_poll_interval_ms / 1000
        if (
            self._seen is None
            or self._log.is_bounded_by_brokers
            or now_s - self._seen.at_s >= interval_s
        ):
            self._seen = _Seen(self._log.bounds(may_lack_topics=True), now_s)
        return self._seen.bounds

    def _start_in(
        self, start: PartitionOffsets, partition: TopicPartition, bound: OffsetBounds
    ) -> int:
        if partition in start:
            return start[partition]
        if bound.start > 0:
            # The partition is newer than the stream, so the stream has missed its first records.
            self._log.report_data_loss(
                f"a new partition does not begin at offset 0 partition={partition}"
                f" first_available={bound.start}"
            )
        return bound.start

    def _end(self, partition: TopicPartition, bound: OffsetBounds) -> int:
        return bound.end if self._target is None else min(bound.end, self._target[partition])

    def _report_vanished(
        self, offsets: PartitionOffsets, present: Mapping[TopicPartition, object]
    ) -> None:
        vanished = sorted(offsets.keys() - present.keys())
        if vanished:
            self._log.report_data_loss(
                f"partitions of the stream are gone partitions={','.join(map(str, vanished))}"
            )

    def _waits_for_more(self, available: list[OffsetRange]) -> bool:
        least = self._options.min_offsets_per_trigger
        # With a target (AvailableNow) a delay would end the query: Spark takes an unchanged offset
        # for the end.
        if least is None or self._target is not None:
            return False
        now_s = self._clock.monotonic_s()
        # The first look does not wait. Every look that does not wait restarts the delay, also one
        # that finds no record. Source: Spark KafkaMicroBatchStream.delayBatch.
        if self._passed_s is not None:
            waited_ms = (now_s - self._passed_s) * 1000
            is_few = sum(whole.size for whole in available) < least
            if is_few and waited_ms < self._options.max_trigger_delay_ms:
                return True
        self._passed_s = now_s
        return False

    def _admit_bytes(self, available: list[OffsetRange], bytes_max: int) -> PartitionOffsets:
        def admitted(views: Views) -> PartitionOffsets:
            reads = {
                whole.topic_partition: plan_reads(views[whole.topic_partition].pieces, whole)
                for whole in available
                if whole.topic_partition in views
            }
            return admit_bytes(reads, bytes_max)

        return self._log.planned(admitted, may_lack_topics=True)
