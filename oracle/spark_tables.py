"""Reads tables with a Spark that has the jars of Iceberg and Delta, as other teams run it.

Its release is the newest that both support, older than the PySpark here. So it is a Java program on
its own jars.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from oracle.jars import require_command
from oracle.java_program import class_path

HERE = Path(__file__).parent
TIMEOUT_S = 300
_LOG_SIZE_SHOWN = 3000
# The options that Spark's launcher passes to Java.
_OPENED = (
    "java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio",
    "java.util", "java.util.concurrent", "java.util.concurrent.atomic", "sun.nio.ch", "sun.nio.cs",
    "sun.security.action", "sun.util.calendar",
)  # fmt: skip
_JAVA_OPTIONS = (
    "-Xmx1g",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
)
_SETTINGS = {
    "spark.app.name": "oracle",
    # A state of Delta's log has fifty parts by default.
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "1",
    "spark.ui.enabled": "false",
}


def query_by_spark(
    settings: Mapping[str, str], queries: Mapping[str, str], folder: Path
) -> dict[str, Path]:
    """Run queries; return a Parquet file of each query's rows, by the query's name. `folder` must
    exist.

    OracleUnavailableError if that Spark is not available; AssertionError with the end of its log if
    it fails.
    """
    classes = class_path(HERE / "spark-tables.xml", [HERE / "ReadTables.java"])
    command = [require_command("java"), *_JAVA_OPTIONS, "--class-path", classes, "ReadTables"]
    given = {**_SETTINGS, "spark.sql.warehouse.dir": str(folder / "warehouse"), **settings}
    done = subprocess.run(
        [*command, *(f"{name}={value}" for name, value in given.items())],
        input="".join(f"{folder / name}\t{query}\n" for name, query in queries.items()),
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr[-_LOG_SIZE_SHOWN:]
    return {name: next((folder / name).glob("*.parquet")) for name in queries}
