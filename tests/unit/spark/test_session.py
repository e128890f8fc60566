"""The Spark session that Isotherm makes: Java, its version, and the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from isotherm.errors import ConfigError
from isotherm.spark.session import check_java, find_java, parse_java_version, session_config


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('java version "1.8.0_392"', 8),
        ('openjdk version "25-ea" 2025-09-16', 25),
        ('openjdk version "21" 2023-09-19', 21),
        ("java: command failed", None),
    ],
)
def test_java_version_is_read_from_its_answer(text: str, version: int | None) -> None:
    assert parse_java_version(text) == version


def java_home(folder: Path, answer: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{answer}' >&2\n")
    java.chmod(0o755)
    return folder


def test_java_of_java_home_comes_before_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = java_home(tmp_path / "jdk", 'openjdk version "17.0.1"')
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert find_java() == str(home / "bin" / "java")
    check_java()


def test_old_java_is_refused_saying_what_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = java_home(tmp_path / "jdk", 'openjdk version "11.0.2"')
    monkeypatch.setenv("JAVA_HOME", str(home))
    with pytest.raises(ConfigError, match=r"version=11 version_min=17.*openjdk-17-jre-headless"):
        check_java()


@pytest.mark.parametrize("home", ["", "/nonexistent/jdk"])
def test_missing_java_is_reported_with_what_to_run(
    home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", home)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ConfigError, match="which is not installed: install Java 17 or newer"):
        check_java()


def test_session_config_of_a_cluster_keeps_its_network_and_web_page() -> None:
    config = session_config(is_local=False, overrides={})
    assert "spark.driver.host" not in config
    assert "spark.ui.enabled" not in config
    assert config["spark.sql.session.timeZone"] == "UTC"


def test_session_config_can_be_overridden() -> None:
    config = session_config(is_local=True, overrides={"spark.ui.enabled": "true", "a": "b"})
    assert (config["spark.ui.enabled"], config["a"]) == ("true", "b")


def test_session_config_keeps_the_callers_java_options() -> None:
    options = session_config(
        is_local=True, overrides={"spark.driver.extraJavaOptions": "-Xss4m -Da=b"}
    )["spark.driver.extraJavaOptions"]
    assert options.endswith(" -Xss4m -Da=b")
    logging = options.split()[0].removeprefix("-Dlog4j2.configurationFile=file://")
    assert Path(logging).is_file()
