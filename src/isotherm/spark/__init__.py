"""Reading tiered topics in Spark: `session()` starts one that finds `format("isotherm")`."""

from isotherm.spark.mapped_read import read
from isotherm.spark.session import session
from isotherm.spark.streaming.progress import (
    OffsetsBehindLatest,
    offsets_behind_latest,
    source_metrics,
)
from isotherm.spark.topic_frame import topic
from isotherm.spark.topic_queries import count, offsets_for_times

__all__ = [
    "OffsetsBehindLatest",
    "count",
    "offsets_behind_latest",
    "offsets_for_times",
    "read",
    "session",
    "source_metrics",
    "topic",
]
