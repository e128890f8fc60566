"""Reading tiered topics in Spark: `session()` starts one that finds `format("isotherm")`."""

from isotherm.spark.interface import (
    OffsetsBehindLatest,
    count,
    offsets_behind_latest,
    offsets_for_times,
    read,
    register,
    session,
    source_metrics,
    topic,
)

__all__ = [
    "OffsetsBehindLatest",
    "count",
    "offsets_behind_latest",
    "offsets_for_times",
    "read",
    "register",
    "session",
    "source_metrics",
    "topic",
]
