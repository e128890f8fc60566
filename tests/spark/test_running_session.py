"""A command of the pipeline in a process that has a Spark session."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from isotherm.cli.pipeline_options import SparkOptions, spark_session

pytestmark = pytest.mark.spark

SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"


def test_session_keeps_its_settings_but_for_those_of_the_command(spark: SparkSession) -> None:
    before = spark.conf.get(SHUFFLE_PARTITIONS)
    given = ["spark.isotherm.given=yes"]
    with spark_session(SparkOptions(master="local[2]", spark_config=given)) as used:
        assert used.conf.get(SHUFFLE_PARTITIONS) == before
        assert used.conf.get("spark.isotherm.given") == "yes"
    assert spark.conf.get(SHUFFLE_PARTITIONS) == before
