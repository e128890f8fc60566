"""The archive of Spark's classes, with which the JVMs of tests start in two thirds of the processor
time.

A separate session writes it, once in a checkout (oracle/class_archive.py).
"""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import pyspark

from oracle.class_archive import archive_options
from oracle.jars import OracleUnavailableError
from oracle.kafka import CHEAP_COMPILER

_WRITE_TIMEOUT_S = 900
# That compiler alone gets 48 MB for its code, which a few files of tests fill by more than half. A
# JVM without room for code interprets. This is what both compilers get.
_ROOM_FOR_CODE = "-XX:ReservedCodeCacheSize=240m"
# Its queries load the classes that most sessions need: a shuffle, rows from Python, a SQL function.
# The JVM writes the archive when it ends.
_SESSION = """
import sys
import isotherm.spark
from pyspark import SparkContext

config = {"spark.driver.extraJavaOptions": sys.argv[1], "spark.sql.shuffle.partitions": "2"}
spark = isotherm.spark.session("classes", master="local[2]", config=config)
spark.range(1000).selectExpr("id % 7 AS k").groupBy("k").count().collect()
spark.createDataFrame([(1, "a"), (2, "b")], "n int, t string").selectExpr("n", "md5(t)").collect()
spark.stop()
gateway = SparkContext._gateway
gateway.shutdown()
gateway.proc.stdin.close()
gateway.proc.wait()
"""


@functools.cache
def java_options() -> str:
    """Options for a Spark JVM of tests, in the form of Spark's settings.

    In so short a life the optimizing compiler costs more than it saves.
    """
    jars = Path(pyspark.__file__).parent / "jars"
    try:
        archive = archive_options(jars, _write)
    except OracleUnavailableError:  # Spark itself says what to install
        archive = ()
    return " ".join([CHEAP_COMPILER, _ROOM_FOR_CODE, *archive])


def _write(options: tuple[str, ...]) -> None:
    subprocess.run(
        [sys.executable, "-c", _SESSION, " ".join([CHEAP_COMPILER, *options])],
        check=True,
        capture_output=True,
        timeout=_WRITE_TIMEOUT_S,
    )
