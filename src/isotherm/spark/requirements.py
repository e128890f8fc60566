"""Checks the requirements of the source and the jobs: a supported version of PySpark, and pandas.

The checks, their messages and docs/spark.md use one table of versions. This module does not import
PySpark.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import NamedTuple

from isotherm.errors import ConfigError
from isotherm.extras import SPARK, install_command

_INSTALL = f"run {install_command(SPARK)}"
_STREAMS_SINCE = (4, 2)


class TablePackages(NamedTuple):
    """The packages for `project --format`, in the form of `spark.jars.packages`. None if there is
    no package for that version of Spark."""

    delta: str | None
    iceberg: str | None


# By minor version of PySpark, the packages that are tested with it.
SPARK_VERSIONS: dict[tuple[int, int], TablePackages] = {
    (4, 0): TablePackages(
        "io.delta:delta-spark_2.13:4.0.1",
        "org.apache.iceberg:iceberg-spark-runtime-4.0_2.13:1.11.0",
    ),
    (4, 1): TablePackages(
        "io.delta:delta-spark_2.13:4.3.1",
        "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.11.0",
    ),
    (4, 2): TablePackages("io.delta:delta-spark_2.13:4.4.0", None),
    (4, 3): TablePackages(None, None),
}

_DECODERS = {"avro": ("fastavro", "polars"), "protobuf": ("ptars", "grpc_tools")}


def check_requirements() -> None:
    """Raise ConfigError, with a command to run, unless supported versions of PySpark and pandas
    are installed."""
    pyspark = installed_pyspark()
    if pyspark is None:
        raise ConfigError(f"this needs PySpark, which is not installed: {_INSTALL}")
    check_version(pyspark)
    if _version("pandas") is None:
        raise ConfigError(
            f"PySpark maps columns only with pandas, which is not installed: {_INSTALL}"
        )


def installed_pyspark() -> str | None:
    """The version of PySpark that Python would import. None if there is none."""
    return _version("pyspark")


def check_version(pyspark: str) -> None:
    """Raise ConfigError, with the reason, for an unsupported version of PySpark."""
    minor = _minor(pyspark)
    if minor in SPARK_VERSIONS:
        return
    versions = [f"{major}.{number}" for major, number in SPARK_VERSIONS]
    why = (
        "it has no data sources in Python"
        if minor < min(SPARK_VERSIONS)
        else "it is newer than this Isotherm"
    )
    raise ConfigError(
        f"this version of PySpark is not supported: {why} version={pyspark}"
        f" supported={versions[0]}-{versions[-1]}: {_INSTALL}"
    )


def check_iceberg() -> None:
    """Raises ConfigError, with a command to run, unless PyIceberg and SQLAlchemy are installed."""
    _check_packages("Iceberg", "iceberg", ("pyiceberg", "sqlalchemy"))


def check_delta() -> None:
    """Raises ConfigError, with a command to run, unless delta-rs is installed."""
    _check_packages("Delta", "delta", ("deltalake",))


def _check_packages(name: str, extra: str, packages: Iterable[str]) -> None:
    for package in packages:
        if _version(package) is None:
            raise ConfigError(
                f"{name} tables need {package}, which is not installed: run"
                f" {install_command(extra)}, or choose --to parquet"
            )


def check_registry_packages(value_format: str) -> None:
    """Raise ConfigError, with a command to run, unless the packages that decode values of this
    format are installed."""
    for package in ("authlib", *_DECODERS.get(value_format, ())):
        if importlib.util.find_spec(package) is None:
            raise ConfigError(
                f"values of {value_format} need {package}, which is not installed: run"
                f" {install_command('registry')}"
            )


def check_streams() -> None:
    """Raise ConfigError if this version of PySpark cannot run the source as a stream."""
    pyspark = _version("pyspark")
    if pyspark is not None and _minor(pyspark) < _STREAMS_SINCE:
        raise ConfigError(
            "streams need PySpark 4.2 or newer: older versions pass neither the start of a batch"
            f" nor limits to a source; batch queries work version={pyspark}"
        )


def table_package(table_format: str, spark: str) -> str | None:
    """The package with which this version of Spark writes such tables. None if there is none."""
    packages = SPARK_VERSIONS.get(_minor(spark))
    return None if packages is None else packages._asdict()[table_format]


def _minor(pyspark: str) -> tuple[int, int]:
    major, number = pyspark.split(".")[:2]
    return int(major), int(number)


@functools.cache
def _version(package: str) -> str | None:
    """The version that Python would import. A Spark folder on the path has no package metadata, so
    its module is imported for the version."""
    if importlib.util.find_spec(package) is None:
        return None
    try:
        return version(package)
    except PackageNotFoundError:
        return str(importlib.import_module(package).__version__)
