"""Computes the lag of a stream from Spark's progress reports.

Spark does not ask a Python source for metrics, so `sources[].metrics` of the progress stays empty.
The offsets in the progress have the same information.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from isotherm.spark.streaming.stream_offsets import decode_offset

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryProgress


class OffsetsBehindLatest(NamedTuple):
    """The unread offsets after a source's last batch, over its partitions: the Kafka source's
    metrics minOffsetsBehindLatest, maxOffsetsBehindLatest and avgOffsetsBehindLatest. Offsets are
    counted, not records: compaction and markers make it an upper bound."""

    min: int
    max: int
    avg: float


def offsets_behind_latest(
    progress: StreamingQueryProgress | None, source: int = 0
) -> OffsetsBehindLatest | None:
    """The lag of the source with this index in the query, in the order of the plan. None before its
    first batch.

    `progress` is `query.lastProgress`, or that of a listener's event. No broker is asked.
    Raises IndexError if the query has no such source.
    """
    if progress is None:
        return None
    reported = json.loads(progress.json)["sources"][source]
    latest, end = _offsets(reported["latestOffset"]), _offsets(reported["endOffset"])
    behind = [max(0, latest[p] - end[p]) for p in latest.keys() & end.keys()]
    if not behind:
        return None
    return OffsetsBehindLatest(min(behind), max(behind), sum(behind) / len(behind))


def source_metrics(progress: StreamingQueryProgress | None, source: int = 0) -> dict[str, str]:
    """`offsets_behind_latest` with the names and the form of the Kafka source's
    `progress.sources[source].metrics`. Empty before the first batch."""
    behind = offsets_behind_latest(progress, source)
    if behind is None:
        return {}
    return {
        "minOffsetsBehindLatest": str(behind.min),
        "maxOffsetsBehindLatest": str(behind.max),
        "avgOffsetsBehindLatest": str(behind.avg),
    }


def _offsets(reported: Any) -> dict[Any, int]:
    if reported is None:
        return {}
    encoded = json.loads(reported) if isinstance(reported, str) else reported
    return decode_offset(encoded).offsets
