"""A command of the pipeline in a process that has a Spark session."""

from __future__ import annotations

import logging

import pytest
from pyspark.errors import AnalysisException
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from isotherm.cli import pipeline_options
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


@pytest.mark.parametrize("debug", [False, True])
def test_a_query_that_a_command_tries_is_not_logged(spark: SparkSession, debug: bool) -> None:
    logged: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = logged.append  # type: ignore[method-assign]
    # As PySpark makes it at the first error.
    logger = PySparkLogger.getLogger("SQLQueryContextLogger")
    logger.addHandler(handler)
    token = pipeline_options.debugging.set(debug)
    try:
        with spark_session(SparkOptions(master="local[2]")) as used:
            fail(used)
        assert bool(logged) == debug
        before = len(logged)
        fail(spark)
        assert len(logged) == before + 1
    finally:
        pipeline_options.debugging.reset(token)
        logger.removeHandler(handler)


def fail(spark: SparkSession) -> None:
    with pytest.raises(AnalysisException):
        spark.range(1).where("unknown > 1").collect()
