"""`isotherm.spark.write_history`: a DataFrame becomes the history of a tiered topic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from isotherm.clock import SystemClock
from isotherm.spark.option_parsing import option_texts, parse_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from isotherm.spark.jobs.load import LoadReport

WAIT_S_DEFAULT = 600.0


def write_history(
    frame: DataFrame,
    topic: str,
    options: Mapping[str, object],
    *,
    partitioner: str = "murmur2",
    order_by: str | None = None,
    compression: str | None = None,
    batch_size: int | None = None,
    append: bool = False,
    key_format: str = "binary",
    value_format: str = "binary",
    registry: str | None = None,
    registry_options: Mapping[str, str] | None = None,
    wait_s: float = WAIT_S_DEFAULT,
) -> list[LoadReport]:
    """Write the rows of `frame` into the bucket, as the records of a topic that has none yet.

    `frame` has the columns of Spark's Kafka sink: `value` and optional `key` (binary or string),
    `headers`, `partition`, and `timestamp` (a timestamp, or milliseconds). `options` are those of a
    read, with `path` and `kafka.bootstrap.servers`. Records are in the order of `order_by` (SQL, an
    integer, date or time; the timestamp by default). `partitioner` is murmur2 (Kafka's default),
    consistent (librdkafka's) or column. With `append` the topic may have the history of an earlier
    call, if no producer has written since. `key_format` and `value_format` encode a column as json,
    or as avro, protobuf or json-schema by the newest schema of TOPIC-key or TOPIC-value in
    `registry`, a URL, whose `registry_options` are those of confluent-kafka's client; `value` may
    then be missing, and has all columns that are no part of a record.

    Returns when the topic's broker has adopted the history: consumers read it, and producers go on
    behind it. Raises PolicyViolationError for a topic that cannot take a history, ConfigError for
    columns and options, RequestTimedOutError if no broker adopts it for `wait_s` seconds.
    """
    from isotherm.spark.jobs import load as job
    from isotherm.spark.tables.schema_registry import registry_settings
    from isotherm.spark.value_encoding import encoded_columns

    clock = SystemClock()
    texts: dict[str, Any] = {"subscribe": topic, **options}
    parsed = parse_options(option_texts(texts))
    settings = job.load_settings(
        now_ms=clock.now_ms(),
        partitioner=partitioner,
        order_by=order_by,
        compression=compression,
        batch_size=batch_size,
        appends=append,
    )
    target = job.open_target(parsed, topic, settings)
    registered = registry_settings(registry, registry_options)
    rows = encoded_columns(frame, topic, key_format, value_format, registered)
    with job.planned(rows, target, settings) as plan:
        reports = job.load(plan, fetch_bytes=parsed.fetch_bytes)
    job.await_adoption(target.store, list(target.ends), wait_s, clock)
    return reports
