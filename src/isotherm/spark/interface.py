"""The public interface of `isotherm.spark`.

If its packages are missing, the import error names them.
"""

from isotherm.extras import SPARK, missing_extra

try:
    from isotherm.spark.mapped_read import read
    from isotherm.spark.session import session
    from isotherm.spark.sql_views import register
    from isotherm.spark.streaming.progress import (
        OffsetsBehindLatest,
        offsets_behind_latest,
        source_metrics,
    )
    from isotherm.spark.topic_frame import topic
    from isotherm.spark.topic_queries import count, offsets_for_times
    from isotherm.spark.topic_writer import write_history
except ModuleNotFoundError as error:
    if (missing := missing_extra(error, SPARK)) is None:
        raise
    raise missing from None

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
