"""Projects a cluster's metadata topic to a compacted topic of keyed states beside it.

It is for clusters whose own topic cannot be compacted, because brokers of Apache Kafka cannot read
keyed records. A task folds a partition of the metadata topic and the same partition of the
projection, and writes the differences to the projection. So a killed run can be repeated without
harm. The fold is that of the brokers: if a segment has two copies, the order of their keys decides
which one a look-up finds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from isotherm.clock import SystemClock
from isotherm.errors import ConfigError, CorruptMetadataError
from isotherm.remote.metadata.topic.kafka_topic import KafkaMetadataTopic, check_is_own_topic
from isotherm.remote.metadata.upkeep.migration import PartitionMigration
from isotherm.spark.numbered_tasks import each_of
from isotherm.spark.reading.brokers import KafkaBrokers, RequestSettings
from isotherm.types import REMOTE_LOG_METADATA_TOPIC

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FIELDS: list[Any] = [
    ("states", pa.int64()),
    ("tombstones", pa.int64()),
    ("live_segments", pa.int64()),
    ("text", pa.string()),
]
_COUNTS = pa.schema(_FIELDS)
_PATIENCE = RequestSettings(retries=100, retry_interval_ms=100)


@dataclass(frozen=True, slots=True)
class TopicProjection:
    """The number of records that a run wrote, and of live segments in the topic. `damaged` names
    the records of the metadata topic that were skipped."""

    states: int
    tombstones: int
    live_segments: int
    damaged: tuple[str, ...]


def project_to_topic(
    spark: SparkSession,
    client_properties: Mapping[str, Any],
    target: str,
    source: str = REMOTE_LOG_METADATA_TOPIC,
) -> TopicProjection:
    """Update the topic `target` to the states in `source`, or create it. Only one run may be active
    at a time.

    Raises PolicyViolationError for the cluster's own metadata topic, and ConfigError for a topic
    with another number of partitions.
    """
    check_is_own_topic(target)
    with closing(KafkaMetadataTopic(client_properties, topic=source)) as topic:
        count = topic.partition_count
    _make_topic(client_properties, target, count)

    def work(number: int) -> Iterator[pa.RecordBatch]:
        yield _project_partition(client_properties, source, target, number)

    rows = each_of(spark, count, work, _COUNTS).collect()
    return TopicProjection(
        states=sum(row.states for row in rows),
        tombstones=sum(row.tombstones for row in rows),
        live_segments=sum(row.live_segments for row in rows),
        damaged=tuple(line for row in rows for line in row.text.splitlines()),
    )


def _make_topic(client_properties: Mapping[str, Any], target: str, count: int) -> None:
    brokers = KafkaBrokers(client_properties, SystemClock(), _PATIENCE)
    brokers.create_topic(target, count, {"cleanup.policy": "compact"})
    partitions = [partition.topic_partition for partition in brokers.partitions([target])]
    # A new topic's partitions have no leader at first. This request waits for one.
    brokers.bounds(partitions)
    partition_count = len(partitions)
    if partition_count != count:
        raise ConfigError(
            "the projection must have as many partitions as the metadata topic"
            f" topic={target} partitions={partition_count} expected={count}"
        )


def _project_partition(
    client_properties: Mapping[str, Any], source: str, target: str, number: int
) -> pa.RecordBatch:
    damaged: list[str] = []

    def pass_over(error: CorruptMetadataError) -> None:
        damaged.append(str(error))

    with (
        closing(KafkaMetadataTopic(client_properties, topic=source)) as topic,
        closing(KafkaMetadataTopic(client_properties, topic=target)) as projected,
    ):
        migration = PartitionMigration(
            topic, number, clock=SystemClock(), on_corrupt=pass_over, target=projected
        )
        plan = migration.plan()
        migration.write(plan)
    counts = {
        "states": plan.survey.states_to_write,
        "tombstones": plan.survey.tombstones_to_write,
        "live_segments": plan.survey.live_segments,
        "text": "\n".join(damaged),
    }
    return pa.RecordBatch.from_pylist([counts], schema=_COUNTS)
