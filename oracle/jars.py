"""Kafka's jars, and Spark's connectors, resolved by Maven and kept in the checkout."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

POM_PATH = Path(__file__).with_name("pom.xml")
SPARK_SOURCE_POM_PATH = Path(__file__).with_name("spark-sql-kafka.xml")
REGISTRY_ARTIFACT = "io.apicurio:apicurio-registry-app:3.0.9:tar.gz:all"
"""The last version that runs on Java 17."""
AVRO_POM_PATH = Path(__file__).with_name("spark-avro.xml")
DELTA_POM_PATH = Path(__file__).with_name("spark-delta.xml")
ICEBERG_CATALOG_POM_PATH = Path(__file__).with_name("iceberg-catalog.xml")
CACHE_DIRECTORY = Path(__file__).resolve().parent.parent / ".oracle"
RESOLVE_TIMEOUT_S = 600


class OracleUnavailableError(Exception):
    """The oracle is not available on this machine; the message names what is missing.

    Tests skip with it.
    """


def kafka_version() -> str:
    """The version of Apache Kafka that pom.xml names."""
    match = re.search(r"<kafka\.version>([^<]+)</kafka\.version>", POM_PATH.read_text())
    assert match is not None, "pom.xml declares kafka.version"
    return match.group(1)


def resolve_jars() -> Path:
    """Return the folder with all jars of the oracle, filling it by Maven the first time.

    The folder's name contains the digest of pom.xml, so a changed pom resolves anew. Safe to call
    from several processes at once: one resolves, the others wait for it.
    Raises OracleUnavailableError when java or mvn is missing or an artifact is not available.
    """
    return resolve(POM_PATH, f"kafka-{kafka_version()}")


def resolve_spark_source_jars() -> list[Path]:
    """Jars of `format("kafka")` for the installed Spark; otherwise as `resolve_jars`."""
    return sorted(resolve(SPARK_SOURCE_POM_PATH, "spark-sql-kafka").glob("*.jar"))


def resolve_spark_avro_jars() -> list[Path]:
    """Jars of `from_avro`; otherwise as `resolve_jars`."""
    return sorted(resolve(AVRO_POM_PATH, "spark-avro").glob("*.jar"))


def resolve_delta_jars() -> list[Path]:
    """Jars of `format("delta")`; otherwise as `resolve_jars`."""
    return sorted(resolve(DELTA_POM_PATH, "spark-delta").glob("*.jar"))


def resolve_registry_archive() -> Path:
    """The archive of the schema registry; otherwise as `resolve_jars`."""
    return _resolve_file(REGISTRY_ARTIFACT)


def resolve_iceberg_catalog() -> Path:
    """The folder with the jars of the REST catalog; otherwise as `resolve_jars`."""
    return resolve(ICEBERG_CATALOG_POM_PATH, "iceberg-catalog")


def _resolve_file(artifact: str) -> Path:
    require_command("java")
    directory = CACHE_DIRECTORY / artifact.replace(":", "-")
    # Without its pom: its parent cannot be resolved everywhere, and the file contains all it needs.
    goals = ["dependency:copy", f"-Dartifact={artifact}"]
    _fill(directory, lambda partial: _run_maven([*goals, f"-DoutputDirectory={partial}"]))
    (file,) = directory.iterdir()
    return file


def resolve(pom_path: Path, name: str) -> Path:
    """The folder with the run-time dependencies of `pom_path`; its name begins with `name`.
    Otherwise as `resolve_jars`.
    """
    require_command("java")
    digest = hashlib.sha256(pom_path.read_bytes()).hexdigest()[:12]
    directory = CACHE_DIRECTORY / f"{name}-{digest}"
    goals = [f"--file={pom_path}", "dependency:copy-dependencies", "-DincludeScope=runtime"]
    _fill(directory, lambda partial: _run_maven([*goals, f"-DoutputDirectory={partial}"]))
    return directory


def require_command(name: str) -> str:
    """The full path of a command, or OracleUnavailableError."""
    path = shutil.which(name)
    if path is None:
        raise OracleUnavailableError(f"command not found: command={name}")
    return path


def _fill(directory: Path, fill: Callable[[Path], None]) -> None:
    """Make the folder unless it exists. Only one process makes it."""
    if directory.is_dir():
        return
    require_command("mvn")
    with cache_lock("lock"):
        if not directory.is_dir():
            partial = directory.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            fill(partial)
            os.rename(partial, directory)


def _run_maven(arguments: Sequence[str]) -> None:
    command = ["mvn", "--quiet", "--batch-mode", *arguments]
    try:
        subprocess.run(
            command, check=True, capture_output=True, text=True, timeout=RESOLVE_TIMEOUT_S
        )
    except subprocess.CalledProcessError as error:
        first = next((line for line in error.stdout.splitlines() if "ERROR" in line), "no output")
        raise OracleUnavailableError(
            f"maven could not resolve the jars: goals={' '.join(arguments)}"
            f" exit={error.returncode} {first}"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise OracleUnavailableError(
            f"maven did not finish: timeout_s={RESOLVE_TIMEOUT_S}"
        ) from error


@contextlib.contextmanager
def cache_lock(name: str) -> Iterator[None]:
    """Hold a file lock against other processes that fill the cache; `name` is the file's."""
    CACHE_DIRECTORY.mkdir(exist_ok=True)
    with (CACHE_DIRECTORY / name).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
