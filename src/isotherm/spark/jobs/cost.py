"""Estimates a job's requests to the bucket, before the job reads anything.

Requests and bytes follow from metadata or a listing alone. The time is estimated with the rates of
an S3 bucket and a machine in the same region, as if all tasks were busy to the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from isotherm.errors import PolicyViolationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# For one task in the bucket's region: the time until the first byte of an answer, and the bytes per
# second after that.
_REQUEST_S = 0.03
_BYTES_PER_S = 80e6
LISTED_PER_REQUEST = 1000
"""Objects in one answer to a LIST request of S3."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The requests by kind, and the bytes that the bucket sends (`bytes_read`) or copies inside
    itself. `tasks` is the number of tasks that run in parallel."""

    gets: int = 0
    lists: int = 0
    heads: int = 0
    puts: int = 0
    bytes_read: int = 0
    tasks: int = 1

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.gets + other.gets,
            self.lists + other.lists,
            self.heads + other.heads,
            self.puts + other.puts,
            self.bytes_read + other.bytes_read,
            max(self.tasks, other.tasks),
        )

    def seconds(self) -> float:
        requests = self.gets + self.lists + self.heads + self.puts
        busy = requests * _REQUEST_S + self.bytes_read / _BYTES_PER_S
        return busy / max(self.tasks, 1)

    def as_row(self) -> dict[str, Any]:
        return {
            "gets": self.gets,
            "lists": self.lists,
            "heads": self.heads,
            "puts": self.puts,
            "bytes": self.bytes_read,
            "tasks": self.tasks,
            "seconds": round(self.seconds(), 1),
        }


def check_cost(cost: Cost, max_bytes: int | None) -> None:
    """Raise PolicyViolationError, before any read, if the job would read more than `max_bytes`."""
    if max_bytes is not None and cost.bytes_read > max_bytes:
        raise PolicyViolationError(
            f"the job would read more than it may bytes={cost.bytes_read} max_bytes={max_bytes}"
            " hint='raise --max-bytes, take a --sample, or choose fewer topics'"
        )


def parallel_tasks(spark: SparkSession) -> int:
    """The number of tasks that this session runs in parallel."""
    return int(spark.sparkContext.defaultParallelism)


def cost_of_reading(
    segments: DataFrame, *, fetch_bytes: int, requests_per_segment: int, tasks: int
) -> Cost:
    """The cost to read the logs of these segments in ranges, and `requests_per_segment` small
    objects of each."""
    from pyspark.sql import functions as sql

    row = segments.agg(
        sql.count(sql.lit(1)),
        sql.coalesce(sql.sum(sql.col("size_in_bytes").cast("long")), sql.lit(0)),
        sql.coalesce(sql.sum(sql.ceil(sql.col("size_in_bytes") / fetch_bytes)), sql.lit(0)),
    ).first()
    count, size, ranges = row if row is not None else (0, 0, 0)
    return Cost(
        gets=int(ranges) + int(count) * requests_per_segment,
        heads=2 * int(count),
        bytes_read=int(size),
        tasks=min(tasks, max(int(count), 1)),
    )


def cost_of_listing(objects: int, directories: int, tasks: int) -> Cost:
    """The cost of LIST requests: at least one for each directory."""
    return Cost(lists=max(directories, objects // LISTED_PER_REQUEST), tasks=tasks)


def cost_of_manifests(listing: DataFrame, commit_suffix: str | None, tasks: int) -> Cost:
    """The cost to read the manifest of each complete segment of a listing, and the producer
    snapshot of each partition's last segment (which fetches that manifest again). Zero for a layout
    without manifests.
    """
    from pyspark.sql import functions as sql

    row = (
        listing.where(sql.col("suffix") == sql.lit(commit_suffix))
        .agg(
            sql.count(sql.lit(1)),
            sql.coalesce(sql.sum("size"), sql.lit(0)),
            sql.count_distinct("topic_id", "partition"),
        )
        .first()
    )
    count, size, partitions = row if row is not None else (0, 0, 0)
    gets = int(count) + 2 * int(partitions)
    return Cost(gets=gets, bytes_read=int(size), tasks=min(tasks, max(gets, 1)))
