"""The archive of Kafka's classes changes how fast a JVM starts, and nothing that it prints."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from oracle import class_archive
from oracle.class_archive import archive_options
from oracle.kafka import java_command

pytestmark = pytest.mark.oracle

TOOL = "kafka.tools.StorageTool"


def ran(command: list[str]) -> tuple[int, str, str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    return done.returncode, done.stdout, done.stderr


def archive_in(command: list[str]) -> str:
    (found,) = (each for each in command if each.startswith("-XX:SharedArchiveFile="))
    return found


def test_a_tool_begins_with_the_archive(kafka_tools: Path) -> None:
    command = java_command(TOOL, "random-uuid")
    logging = ["-Xlog:class+load=info:stdout"]
    _, output, _ = ran([*command[:-2], *logging, *command[-2:]])
    shared = [line for line in output.splitlines() if "shared objects file (top)" in line]
    assert any("org.apache.kafka.common.Uuid " in line for line in shared)


@pytest.mark.parametrize("content", [b"", b"no archive", None])
def test_an_archive_that_does_not_fit_changes_nothing(
    content: bytes | None, kafka_tools: Path, tmp_path: Path
) -> None:
    """The archive is missing, or it is one of other jars."""
    command = java_command(TOOL, "--help")
    if content is None:
        other = [f"{kafka_tools}{'/./*'}" if "/*" in each else each for each in command]
    else:
        path = tmp_path / "classes.jsa"
        path.write_bytes(content)
        replaced = f"-XX:SharedArchiveFile={path}"
        other = [replaced if each == archive_in(command) else each for each in command]
    assert other != command
    assert ran(other) == ran(java_command(TOOL, "--help", shares_classes=False))


def test_an_archive_is_written_once(
    kafka_tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(class_archive, "CACHE_DIRECTORY", tmp_path)
    calls: list[tuple[str, ...]] = []

    def write(options: tuple[str, ...]) -> None:
        calls.append(options)
        Path(options[0].partition("=")[2]).write_bytes(b"classes")

    first, again = (archive_options(kafka_tools, write) for _ in range(2))
    assert first == again != ()
    assert len(calls) == 1
    assert archive_options(kafka_tools / "others", write) != first


def test_a_run_that_leaves_no_archive_is_not_repeated(
    kafka_tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(class_archive, "CACHE_DIRECTORY", tmp_path)
    calls: list[tuple[str, ...]] = []
    assert [archive_options(kafka_tools, calls.append) for _ in range(2)] == [(), ()]
    assert len(calls) == 1
