"""Reading tiered topics in Spark: `session()` starts one that finds `format("isotherm")`."""

from isotherm.spark.closed_sockets import be_quiet_in_a_worker
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
    write_history,
)

# Spark's planners, and sessions that users make, have PySpark's own daemon. Its workers import this
# package.
be_quiet_in_a_worker()

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
    "write_history",
]
