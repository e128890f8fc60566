"""The session of the tests begins with an archive of Spark's classes."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from tests.support.spark_classes import java_options


def test_session_maps_the_archive_of_its_classes(spark: SparkSession) -> None:
    _, _, archive = java_options().partition("-XX:SharedArchiveFile=")
    assert archive
    jvm = spark._jvm
    assert jvm is not None
    process_id = jvm.java.lang.ProcessHandle.current().pid()
    # A JVM with another class path runs without the archive, and without an error.
    assert archive in Path(f"/proc/{process_id}/maps").read_text(encoding="utf-8")
