"""Follows the tail of an erasure: records that were on brokers only when the run began are erased
once their segments are tiered.

A closed segment is tiered by itself. The active one is rolled by the next record, after segment.ms
or at segment.bytes; without a new record local.retention.ms or local.retention.bytes rolls it, when
it is due.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from isotherm.errors import UnknownTopicOrPartitionError
from isotherm.remote.erasure.certificate import ErasureCertificate
from isotherm.spark.jobs.rewrite_plan import read_histories
from isotherm.spark.jobs.rewrite_run import RewriteSettings, unfinished_runs
from isotherm.spark.options import SourceOptions
from isotherm.spark.plan.offsets import OffsetBounds
from isotherm.spark.tier.open_log import open_brokers
from isotherm.types import Offset, TopicIdPartition

_ROLLING = ("segment.ms", "segment.bytes", "local.retention.ms", "local.retention.bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingTail:
    """Offsets [start, end) of a partition that are on brokers only. `config` has the settings that
    roll its active segment."""

    partition: TopicIdPartition
    start: Offset
    end: Offset
    config: Mapping[str, str]

    def __str__(self) -> str:
        settings = " ".join(f"{name}={value}" for name, value in self.config.items())
        return f"{self.partition} offsets {self.start} to {self.end - 1} ({settings})"


def read_log_bounds(
    options: SourceOptions, partitions: frozenset[int] | None
) -> dict[TopicIdPartition, OffsetBounds]:
    """Where the log of each selected partition begins and ends, behind the last record of an open
    transaction. Empty without brokers."""
    brokers = open_brokers(options, to_last_record=True)
    if brokers is None:
        return {}
    names = [name for name in brokers.topic_names() if options.selects_topic(name)]
    owners = [
        owner
        for owner in brokers.partitions(names)
        if (partitions is None or owner.partition in partitions)
        and (not options.assigned or owner.topic_partition in options.assigned)
    ]
    bounds = brokers.bounds([owner.topic_partition for owner in owners])
    return {owner: bounds[owner.topic_partition] for owner in owners}


def waiting_tails(
    options: SourceOptions,
    certificate: ErasureCertificate,
    log_ends: Mapping[TopicIdPartition, Offset],
) -> list[WaitingTail]:
    """The offsets below `log_ends` that the run has not reached. What retention, DeleteRecords or a
    truncation has removed meanwhile is no part of them.

    Raises UnknownTopicOrPartitionError if a topic is gone, or is a new one of that name.
    """
    reached = {partition.partition: partition.end_offset for partition in certificate.partitions}
    behind = {owner: end for owner, end in log_ends.items() if reached.get(owner, 0) < end}
    if not behind:
        return []
    bounds = read_log_bounds(options, None)
    configs: dict[str, dict[str, str]] = {}
    tails = []
    for owner, log_end in behind.items():
        if owner not in bounds:
            raise UnknownTopicOrPartitionError(
                f"the topic was deleted while the run waited for its tail partition={owner}"
            )
        start = max(reached.get(owner, 0), bounds[owner].start)
        end = min(log_end, bounds[owner].end)
        if start < end:
            if owner.topic not in configs:
                configs[owner.topic] = _rolling_config(options, owner.topic)
            config = configs[owner.topic]
            tails.append(WaitingTail(partition=owner, start=start, end=end, config=config))
    return tails


def _rolling_config(options: SourceOptions, topic: str) -> dict[str, str]:
    brokers = open_brokers(options)
    assert brokers is not None, "a run in place has brokers"
    config = brokers.topic_config(topic)
    return {name: config[name] for name in _ROLLING if name in config}


def ready_tails(
    options: SourceOptions, settings: RewriteSettings, tails: Sequence[WaitingTail]
) -> dict[TopicIdPartition, Offset]:
    """The partitions for which a next pass may begin, and from where on: the bucket has some of
    the offsets, and no run is left on the partition."""
    pieces = read_histories(options, settings).pieces
    ready = {
        tail.partition: tail.start
        for tail in tails
        if any(
            piece.end_offset > tail.start
            for piece in pieces.get(tail.partition.topic_partition, ())
        )
    }
    for run in unfinished_runs(settings, ready.__contains__):
        ready.pop(run.partition, None)
    return ready
