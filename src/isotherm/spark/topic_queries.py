"""Queries about a topic that need neither its records nor Spark.

They take the options of a read, as a mapping. They use the segments' metadata, time indexes and the
brokers, and make only a few requests, however long the history is.

Spark imports this package in every session, so modules that load Arrow are imported inside
functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from isotherm.spark.option_parsing import option_texts, parse_options
from isotherm.spark.options import SourceOptions
from isotherm.spark.plan.offsets import GlobalTimestamp
from isotherm.types import Offset, TimestampMs, TopicPartition

if TYPE_CHECKING:
    from isotherm.spark.tier.tiered_log import TieredLog


def count(options: Mapping[str, object]) -> int:
    """The number of offsets that `spark.read` reads with these options.

    Without compaction and transactions this is the number of rows. Otherwise there are fewer rows,
    because removed records, markers and aborted records have offsets too. The driver plans the
    read for it; no Spark job runs. Raises as the read does: ConfigError for options, RetriableError
    if a tier or the brokers do not answer.
    """
    from isotherm.spark.driver.batch_query import BatchQuery

    parsed = _parsed(options)
    with _log(parsed, by_name=parsed.plans_by_name) as log:
        return sum(span.size for span in BatchQuery(parsed, log).ranges())


def offsets_for_times(
    options: Mapping[str, object], timestamp_ms: TimestampMs
) -> dict[TopicPartition, Offset | None]:
    """For each partition that the options choose, the first offset whose record is not older than
    `timestamp_ms` (milliseconds since the epoch), or None if there is no such record. Named after a
    Kafka consumer's method. The driver looks up the times; no Spark job runs. Raises as `count`."""
    parsed = _parsed(options)
    with _log(parsed, by_name=False) as log:
        return log.planned(lambda views: log.find_times(GlobalTimestamp(timestamp_ms), views))


def _parsed(options: Mapping[str, object]) -> SourceOptions:
    return parse_options(option_texts(options))


@contextmanager
def _log(options: SourceOptions, *, by_name: bool) -> Iterator[TieredLog]:
    from isotherm.spark.tier.open_log import open_brokers, open_tiered_log
    from isotherm.spark.tier.tier_settings import read_settings

    settings = read_settings(options)
    with open_tiered_log(options, settings, open_brokers(options), by_name=by_name) as log:
        yield log
