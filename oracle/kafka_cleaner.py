"""Kafka's own log cleaner, in a JVM that cleans one closed log after the other."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from oracle.kafka import java_command

_END_TIMEOUT_S = 300


class KafkaCleaner:
    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def clean(self, *fields: object) -> list[int]:
        """Send one line of arguments; return one line of results.

        The Java program's head describes both.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(*fields, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        assert answer, "the JVM ended"
        assert not answer.startswith("failed"), answer
        return [int(field) for field in answer.split()]


@contextmanager
def running_cleaner(program: Path) -> Iterator[KafkaCleaner]:
    """`program` is tests/oracle/CleanLogs.java."""
    command = java_command(str(program), log_level="error")
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield KafkaCleaner(process)
        assert process.stdin is not None
        process.stdin.close()
        process.wait(timeout=_END_TIMEOUT_S)
