"""Ask Spark about the topic: history from the bucket, the tail from the broker."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

MEAN_DELAYS = """
SELECT flight.carrier AS carrier, flight.month AS month,
       count(flight.dep_delay) AS flights, avg(flight.dep_delay) AS mean_delay
FROM (SELECT from_json(CAST(value AS string),
                       'carrier STRING, month INT, dep_delay DOUBLE') AS flight FROM flights)
GROUP BY flight.carrier, flight.month
ORDER BY carrier, month
"""


def read_topic(
    spark: SparkSession, bucket_dir: Path, bootstrap_server: str, topic: str
) -> DataFrame:
    return (
        spark.read.format("isotherm")
        .option("path", bucket_dir.absolute().as_uri())
        .option("kafka.bootstrap.servers", bootstrap_server)
        .option("subscribe", topic)
        .load()
    )


def mean_delays(spark: SparkSession, topic: DataFrame) -> dict[tuple[str, int], tuple[int, float]]:
    topic.createOrReplaceTempView("flights")
    rows = spark.sql(MEAN_DELAYS).collect()
    return {(row.carrier, row.month): (row.flights, row.mean_delay) for row in rows}


def differences(
    found: Mapping[tuple[str, int], tuple[int, float]],
    expected: Mapping[tuple[str, int], tuple[int, float]],
) -> list[str]:
    """Cells with a different count, or with a mean that differs by more than rounding."""
    return [
        f"{carrier} in month {month}: {found.get((carrier, month))} instead of {cell}"
        for (carrier, month), cell in expected.items()
        if not _same(found.get((carrier, month)), cell)
    ] + [f"{key} is not in the source" for key in found.keys() - expected.keys()]


def _same(found: tuple[int, float] | None, expected: tuple[int, float]) -> bool:
    return (
        found is not None
        and found[0] == expected[0]
        and math.isclose(found[1], expected[1], rel_tol=1e-9, abs_tol=1e-9)
    )
