"""Estimates a job's requests to the bucket, before the job reads anything.

Requests and bytes follow from metadata or a listing alone. The time follows from rates, by default
those of an S3 bucket and a machine in the same region. It is an estimate: tasks share the rates evenly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from isotherm.errors import PolicyViolationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LISTED_PER_REQUEST = 1000
"""Objects in one answer to a LIST request of S3."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Of one task: seconds that a request takes before its first byte, and bytes a second."""

    request_s: float = 0.03
    bytes_per_s: float = 80e6


@dataclass(frozen=True, slots=True)
class Cost:
    """Requests by kind, and bytes sent by the bucket (`bytes_read`) or moved inside it. `tasks` is
    how many work at once."""

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

    def seconds(self, rates: Rates = Rates()) -> float:
        requests = self.gets + self.lists + self.heads + self.puts
        busy = requests * rates.request_s + self.bytes_read / rates.bytes_per_s
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
    """PolicyViolationError, with nothing read, when the job would read more than that."""
    if max_bytes is not None and cost.bytes_read > max_bytes:
        raise PolicyViolationError(
            f"the job would read more than it may bytes={cost.bytes_read} max_bytes={max_bytes}"
            " hint='raise --max-bytes, take a --sample, or choose fewer topics'"
        )


def parallel_tasks(spark: SparkSession) -> int:
    """How many tasks this session runs at once."""
    return int(spark.sparkContext.defaultParallelism)


def cost_of_reading(
    segments: DataFrame, *, fetch_bytes: int, requests_per_segment: int, tasks: int
) -> Cost:
    """Reading the logs of all these segments in ranges, and some small objects of each."""
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
    """Every directory takes one request at least."""
    return Cost(lists=max(directories, objects // LISTED_PER_REQUEST), tasks=tasks)


def cost_of_manifests(listing: DataFrame, commit_suffix: str | None, tasks: int) -> Cost:
    """Reading the manifest of each segment that a listing shows whole, and the producer snapshot of
    each partition's last one, whose manifest is asked for again. Nothing in a layout that keeps none.
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
