"""Starts a Spark session for the source: `isotherm.spark.session()`.

Its settings, with reasons:
- PYSPARK_PYTHON is this interpreter, or the given one. Spark's default is the first `python3` on
  the PATH. Without an active virtual environment that Python would lack the source, and Spark would
  not find it. PYSPARK_DRIVER_PYTHON is the same, because Spark starts the executors' Python by that
  name for a source that it discovered.
- The session's time zone is UTC, so that timestamps print as Kafka has them.
- Workers use Unix domain sockets, which start a task sooner than TCP.
- Global views are in the database `isotherm` (sql_views.py). Spark reads that name once, before the
  session starts.
- A local session stays on the loopback interface and has no web page. Its workers are forked with
  their modules loaded (worker_daemon.py). A session on a cluster does not set this daemon, since it
  would need Isotherm on every node.
- Spark logs errors only (`log4j2.properties` beside this file), and shows no progress bar, which
  would mix with the program's own output.

`config` overrides any of them. Java is checked before Spark starts, because Spark's own error does
not say that Java is missing.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from isotherm.errors import ConfigError
from isotherm.spark.requirements import check_requirements
from isotherm.spark.sql_views import VIEWS_DATABASE, VIEWS_DATABASE_OPTION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_VERSION_MIN = 17
_JAVA_ANSWER_TIMEOUT_S = 60
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_WHAT_TO_RUN = (
    "install Java 17 or newer and try again: `apt-get install openjdk-17-jre-headless` on Debian"
    " or Ubuntu, `dnf install java-17-openjdk-headless` on Fedora, `brew install openjdk@17` on"
    " macOS; or set JAVA_HOME to one"
)

_CONFIG = {
    "spark.sql.session.timeZone": "UTC",
    "spark.python.unix.domain.socket.enabled": "true",
    VIEWS_DATABASE_OPTION: VIEWS_DATABASE,
    "spark.ui.showConsoleProgress": "false",
}
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_LOGGING = Path(__file__).with_name("log4j2.properties")
_LOCAL_CONFIG = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.python.daemon.module": "isotherm.spark.worker_daemon",
}


def session(
    app_name: str = "isotherm",
    *,
    master: str = "local[*]",
    config: Mapping[str, str] | None = None,
    python: str | None = None,
) -> SparkSession:
    """The running session, or a new one with the settings that the module's docstring lists.

    `python` is the Python of driver and executors, by a name that both can find, such as
    `./environment/bin/python`. The default is this interpreter's path. `config` has Spark's own
    settings, which override ours; a running session takes those that Spark lets it change. The
    caller stops the session. Raises ConfigError, with a command to run, if PySpark, pandas or Java
    is missing or unsupported.
    """
    check_requirements()
    check_java()
    os.environ["PYSPARK_PYTHON"] = python or sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = python or sys.executable
    is_local = master.startswith("local")
    if is_local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")

    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in session_config(is_local=is_local, overrides=config or {}).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def session_config(*, is_local: bool, overrides: Mapping[str, str]) -> dict[str, str]:
    """All settings of a session. The caller's Java options come after ours, so that they override
    them."""
    java_options = f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}"
    if _JAVA_OPTIONS in overrides:
        java_options += f" {overrides[_JAVA_OPTIONS]}"
    settled = {**_CONFIG, **(_LOCAL_CONFIG if is_local else {}), **overrides}
    return settled | {_JAVA_OPTIONS: java_options}


def check_java() -> None:
    """Raise ConfigError, with a command to run, unless the Java that Spark will start is new
    enough."""
    java = find_java()
    if java is None:
        raise ConfigError(f"Spark needs Java, which is not installed: {_WHAT_TO_RUN}")
    answer = subprocess.run(  # noqa: S603 - the java that Spark itself is going to run
        [java, "-version"],
        capture_output=True,
        text=True,
        check=False,
        timeout=_JAVA_ANSWER_TIMEOUT_S,
    )
    version = parse_java_version(answer.stderr + answer.stdout)
    if version is None or version < JAVA_VERSION_MIN:
        raise ConfigError(
            f"Spark cannot use this Java java={java} version={version}"
            f" version_min={JAVA_VERSION_MIN}: {_WHAT_TO_RUN}"
        )


def find_java() -> str | None:
    """The `java` that Spark's launcher finds: that of JAVA_HOME, else the one on the PATH."""
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        return str(java) if java.is_file() else None
    return shutil.which("java")


def parse_java_version(text: str) -> int | None:
    """The major version in the answer of `java -version`: 8 for 1.8.0_392, 17 for 17.0.15."""
    version = _VERSION.search(text)
    return int(version.group(1)) if version else None
