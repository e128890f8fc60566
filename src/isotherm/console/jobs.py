"""Reads the reports of `isotherm pipeline`'s checks from a folder, and starts new checks if that is
allowed.

A report is a file JOB-ANYTHING.jsonl with the output of `isotherm pipeline JOB ... --json`,
wherever it ran. If the console has started the job, the last line has the exit code.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isotherm.clock import Clock
from isotherm.errors import InvalidRequestError
from isotherm.storage_view.rows import Row

logger = logging.getLogger(__name__)

JOBS = ("audit", "sweep", "scrub", "verify")
REPORTS_MAX = 50
REPORT_BYTES_MAX = 8 * 1024 * 1024
FINDINGS_MAX = 500
MESSAGES_MAX = 20
JOB_TIMEOUT_S = 3600
_SUFFIX = ".jsonl"
_UNFINISHED = ".part"
_ENDED = "console_ended"
_NAME = re.compile(rf"(?P<job>{'|'.join(JOBS)})-[\w.:+-]+\.jsonl")
# The tables of an audit whose rows are faults. The other tables only describe.
_FAULTS = ("orphans", "coverage", "retention")
_PLACE = ("topic", "partition", "start_offset", "segment_id")


class JobReports:
    """The reports in a folder. Other programs may write to it at any time."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        # The newest summaries, by name, time and size. Pages request them every few seconds, so a
        # file is read again only after a change.
        self._summaries: dict[tuple[str, int, int], Row] = {}

    def newest(self) -> list[Row]:
        """The newest reports, at most REPORTS_MAX, without their findings. One that is removed
        meanwhile is left out. Raises OSError."""
        if self._folder is None:
            return []
        reports = []
        for path in self._folder.iterdir():
            if _NAME.fullmatch(path.name):
                with contextlib.suppress(FileNotFoundError):
                    status = path.stat()
                    reports.append((status.st_mtime_ns, status.st_size, path))
        reports.sort(reverse=True)
        before, fresh = self._summaries, {}
        for modified_ns, size, path in reports[:REPORTS_MAX]:
            key = (path.name, modified_ns, size)
            with contextlib.suppress(FileNotFoundError):
                fresh[key] = before.get(key) or _summary(path, modified_ns, size, _read(path)[0])
        self._summaries = fresh
        return list(fresh.values())

    def report(self, name: str) -> Row | None:
        """A report with its findings, at most FINDINGS_MAX.

        None if it does not exist. Raises OSError.
        """
        if self._folder is None or _NAME.fullmatch(name) is None:
            return None
        path = self._folder / name
        if not path.is_file():
            return None
        status = path.stat()
        rows, texts = _read(path)
        findings = [row for row in rows if _is_finding(row)]
        return {
            **_summary(path, status.st_mtime_ns, status.st_size, rows),
            "findings": [_finding_row(finding) for finding in findings[:FINDINGS_MAX]],
            "messages": texts[-MESSAGES_MAX:],
        }


def _summary(path: Path, modified_ns: int, size: int, rows: Sequence[Mapping[str, Any]]) -> Row:
    ended: Mapping[str, Any] = next(
        (row[_ENDED] for row in rows if isinstance(row.get(_ENDED), dict)), {}
    )
    named = _NAME.fullmatch(path.name)
    assert named is not None
    return {
        "name": path.name,
        "job": named["job"],
        "written_ms": modified_ns // 1_000_000,
        "found": sum(map(_is_finding, rows)),
        "is_cut": size > REPORT_BYTES_MAX,
        "exit_code": ended.get("exit_code"),
    }


def _read(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """The JSON objects in the file's first REPORT_BYTES_MAX, and its other lines: the reason why a
    job failed, or half a line where the file was cut."""
    with path.open("rb") as file:
        lines = file.read(REPORT_BYTES_MAX).splitlines()
    rows, texts = [], []
    for line in lines:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):  # the second is of lists in lists, thousands deep
            row = None
        if isinstance(row, dict):
            rows.append(row)
        else:
            texts.append(line.decode("utf-8", errors="replace"))
    return rows, texts


def _is_finding(row: Mapping[str, Any]) -> bool:
    return row["table"] in _FAULTS if "table" in row else "kind" in row


def _finding_row(row: Mapping[str, Any]) -> Row:
    rest = {key: value for key, value in row.items() if key not in (*_PLACE, "kind", "table")}
    # In an audit, gaps and overlaps have `first_offset` instead.
    place = {**row, "start_offset": row.get("start_offset", row.get("first_offset"))}
    return {
        "kind": str(row.get("kind") or row.get("cause") or row.get("table")),
        **{key: place.get(key) for key in _PLACE},
        "detail": ", ".join(f"{key} {value}" for key, value in rest.items() if value is not None),
    }


@dataclass(frozen=True, slots=True)
class _Running:
    job: str
    process: subprocess.Popen[bytes]


class JobRunner:
    """Starts one job at a time, as a process with the same command that a user would type.

    Thread-safe.
    """

    def __init__(self, folder: Path, commands: Mapping[str, Sequence[str]], clock: Clock) -> None:
        """`commands` has the command of each job that can be started.

        None of them changes anything.
        """
        self._folder = folder
        self._commands = commands
        self._clock = clock
        self._guard = threading.Lock()
        self._running: _Running | None = None
        self._waiting: threading.Thread | None = None

    @property
    def startable(self) -> list[str]:
        return list(self._commands)

    @property
    def running(self) -> str | None:
        running = self._running
        return None if running is None else running.job

    def start(self, job: str) -> None:
        """Start a job.

        Raises InvalidRequestError for an unknown job, and while another one runs.
        """
        with self._guard:
            if job not in self._commands:
                raise InvalidRequestError(f"no such job can be started job={job}")
            if self._running is not None:
                raise InvalidRequestError(f"a job is running job={self._running.job}")
            report = self._folder / f"{job}-{self._clock.now_ms()}{_SUFFIX}"
            unfinished = report.with_name(report.name + _UNFINISHED)
            with unfinished.open("wb") as output:
                process = subprocess.Popen(  # noqa: S603 - the commands are the console's own
                    self._commands[job],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            self._running = _Running(job, process)
            self._waiting = threading.Thread(
                target=self._wait, args=(process, unfinished, report), name=f"console-{job}"
            )
            self._waiting.start()

    def close(self) -> None:
        """Terminate the running job, and wait until it has ended."""
        with self._guard:
            running, waiting = self._running, self._waiting
        if running is not None:
            running.process.terminate()
        if waiting is not None:
            waiting.join()

    def _wait(self, process: subprocess.Popen[bytes], unfinished: Path, report: Path) -> None:
        try:
            exit_code = process.wait(JOB_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            exit_code = process.wait()
        try:
            with unfinished.open("ab") as output:
                output.write(json.dumps({_ENDED: {"exit_code": exit_code}}).encode() + b"\n")
            # Only now the file has the name of a report, so pages never show one that is still
            # being written.
            unfinished.rename(report)
        except OSError as error:
            logger.warning(
                "the report of a job cannot be stored report=%s reason=%r", report, error
            )
        finally:
            with self._guard:
                self._running = None


def new_token() -> str:
    """A token against cross-site request forgery. A request that changes something must contain it,
    and a page of another site cannot read it."""
    return os.urandom(16).hex()
