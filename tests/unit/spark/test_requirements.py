"""What is refused before PySpark is loaded, and the reasons given."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from isotherm.cli.main import app
from isotherm.errors import ConfigError
from isotherm.extras import SPARK, install_command
from isotherm.spark import requirements, session
from isotherm.spark.requirements import (
    SPARK_VERSIONS,
    check_requirements,
    check_streams,
    check_version,
    table_package,
)

PAGE = Path(__file__).parents[3] / "docs" / "spark.md"
# The required options of each job.
NEEDED = {
    "replay": [],
    "project": ["--to=x"],
    "verify": ["--against=x"],
    "audit": [],
    "sweep": ["--path=x"],
    "scrub": ["--path=x"],
    "rebuild": ["--path=x"],
    "compact": ["--path=x"],
}


def installed(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    monkeypatch.setattr(requirements, "_version", versions.get)


@pytest.mark.parametrize("job", NEEDED)
def test_job_without_pyspark_says_what_to_run(job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    done = CliRunner().invoke(app, ["pipeline", job, *NEEDED[job]])
    assert isinstance(done.exception, ConfigError)
    assert str(done.exception).endswith(install_command(SPARK))
    assert CliRunner().invoke(app, ["pipeline", job, "--help"]).exit_code == 0


def test_session_without_pyspark_says_what_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch)
    with pytest.raises(
        ConfigError,
        match="needs PySpark, which is not installed.*" + re.escape(install_command(SPARK)),
    ):
        session()


def test_missing_pandas_says_what_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, pyspark="4.3.0")
    with pytest.raises(ConfigError, match="pandas.*" + re.escape(install_command(SPARK))):
        check_requirements()
    installed(monkeypatch, pyspark="4.3.0", pandas="2.2.0")
    check_requirements()


@pytest.mark.parametrize(
    ("version", "why"),
    [
        ("3.5.9", "has no data sources in Python version=3.5.9 supported=4.0-4.3"),
        ("4.4.0.dev1", "is newer than this Isotherm version=4.4.0.dev1"),
        ("5.0.0", "is newer"),
    ],
)
def test_other_versions_are_refused_with_the_reason(version: str, why: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(why)):
        check_version(version)


def test_streams_are_refused_where_spark_does_not_tell_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    installed(monkeypatch, pyspark="4.1.4")
    with pytest.raises(ConfigError, match=r"streams need PySpark 4\.2.*version=4\.1\.4"):
        check_streams()
    installed(monkeypatch, pyspark="4.2.0")
    check_streams()


def test_package_of_a_table_suits_the_version_of_spark() -> None:
    assert (table_package("iceberg", "4.1.4") or "").endswith("runtime-4.1_2.13:1.11.0")
    assert table_package("delta", "4.3.0") is None
    assert table_package("delta", "3.5.9") is None


def test_page_has_the_table_of_versions() -> None:
    _, _, rest = PAGE.read_text().partition("<!-- versions:")
    listed = rest.partition("<!-- end of versions -->")[0]
    rows = [line for line in listed.splitlines() if line.startswith("| 4")]
    assert rows == [
        f"| {major}.{minor} | yes | {'yes' if (major, minor) >= (4, 2) else 'no'}"
        f" | {_cell(packages.delta)} | {_cell(packages.iceberg)} |"
        for (major, minor), packages in SPARK_VERSIONS.items()
    ]


def _cell(package: str | None) -> str:
    return f"`{package}`" if package else "none"
