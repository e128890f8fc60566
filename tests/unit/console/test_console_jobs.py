"""Reports of jobs, and the conditions under which one can be started."""

from __future__ import annotations

import functools
import http.client
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from isotherm.clock import SystemClock
from isotherm.console import jobs
from isotherm.console.jobs import JobReports, JobRunner
from isotherm.errors import InvalidRequestError
from tests.support.console_server import running_console
from tests.support.scripted_cluster import damaged_cluster
from tests.unit.console.test_console_api import json_of

SWEPT = [
    {"cost": {"gets": 0, "lists": 3}},
    {"kind": "partial_upload", "topic": "orders", "partition": 1, "start_offset": 2000, "size": 7},
    {"kind": "foreign", "topic": None, "partition": None, "key": "a/b", "size": 9, "detail": "x"},
    {"swept": {"objects": 40, "findings": 2}},
]
AUDITED = [
    {"table": "growth", "day": "2026-01-01", "events": 7},
    {"table": "orphans", "topic": "orders", "partition": 0, "start_offset": 5, "cause": "failed"},
]
# Ends a test that hangs. No assertion depends on it.
TIMEOUT_S = 300


def write(folder: Path, name: str, rows: list[dict[str, Any]], written_s: int) -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(path, (written_s, written_s))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, "sweep-2026-01-31.jsonl", SWEPT, 1000)
    write(tmp_path, "audit-2026-01-31T12:00.jsonl", AUDITED, 2000)
    write(tmp_path, "other-2026.jsonl", SWEPT, 3000)
    return tmp_path


def test_newest_report_is_first_and_findings_are_counted(folder: Path) -> None:
    audit, sweep = JobReports(folder).newest()
    assert (audit["job"], audit["found"], audit["written_ms"]) == ("audit", 1, 2_000_000)
    assert (sweep["name"], sweep["found"], sweep["exit_code"]) == (
        "sweep-2026-01-31.jsonl",
        2,
        None,
    )


def test_finding_names_the_place_on_the_tier_map(folder: Path) -> None:
    found = JobReports(folder).report("sweep-2026-01-31.jsonl")
    assert found is not None
    partial, foreign = found["findings"]
    assert (partial["topic"], partial["partition"], partial["start_offset"]) == ("orders", 1, 2000)
    assert partial["detail"] == "size 7"
    assert (foreign["topic"], foreign["detail"]) == (None, "key a/b, size 9, detail x")
    audit = JobReports(folder).report("audit-2026-01-31T12:00.jsonl")
    assert audit is not None
    assert [each["kind"] for each in audit["findings"]] == ["failed"]


@pytest.mark.parametrize("name", ["../secret.jsonl", "other-2026.jsonl", "sweep-none.jsonl", ""])
def test_other_files_are_not_read(folder: Path, name: str) -> None:
    (folder.parent / "secret.jsonl").write_text("{}")
    assert JobReports(folder).report(name) is None


def test_large_report_is_cut_and_half_a_line_is_what_it_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "REPORT_BYTES_MAX", 150)
    found = JobReports(folder).report("sweep-2026-01-31.jsonl")
    assert found is not None
    assert (found["is_cut"], found["found"], len(found["messages"])) == (True, 1, 1)


def runner_of(folder: Path, code: str) -> JobRunner:
    return JobRunner(folder, {"audit": [sys.executable, "-c", code]}, SystemClock())


PRINTS = (
    f"print({json.dumps(AUDITED[1])!r}); import sys; print('why', file=sys.stderr); sys.exit(3)"
)


def ended(runner: JobRunner) -> None:
    for thread in threading.enumerate():
        if thread.name == "console-audit":
            thread.join(TIMEOUT_S)
    assert runner.running is None


def test_job_leaves_a_report_with_its_exit_code(tmp_path: Path) -> None:
    runner = runner_of(tmp_path, PRINTS)
    runner.start("audit")
    ended(runner)
    (listed,) = JobReports(tmp_path).newest()
    assert (listed["exit_code"], listed["found"]) == (3, 1)
    found = JobReports(tmp_path).report(listed["name"])
    assert found is not None
    assert found["messages"] == ["why"]


def test_one_job_runs_at_a_time_and_ends_with_the_console(tmp_path: Path) -> None:
    runner = runner_of(tmp_path, "import sys; sys.stdin.close(); import time; time.sleep(600)")
    runner.start("audit")
    with pytest.raises(InvalidRequestError, match="running"):
        runner.start("audit")
    with pytest.raises(InvalidRequestError, match="no such job"):
        runner.start("compact")
    runner.close()
    assert runner.running is None
    (listed,) = JobReports(tmp_path).newest()
    assert listed["exit_code"] != 0


def posted(address: str, path: str, headers: dict[str, str]) -> int:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=TIMEOUT_S)
    connection.request("POST", path, headers=headers)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


@pytest.fixture
def runner(tmp_path: Path) -> Iterator[JobRunner]:
    made = runner_of(tmp_path, PRINTS)
    yield made
    made.close()


def test_start_needs_the_token_of_this_console(tmp_path: Path, runner: JobRunner) -> None:
    small = functools.partial(damaged_cluster, history=1)
    with running_console(small, reports=tmp_path, runner=runner) as address:
        token = json_of(address, "/api/jobs")["token"]
        assert posted(address, "/api/jobs/audit", {}) == 403
        assert posted(address, "/api/jobs/audit", {"x-csrf-token": token[:-1]}) == 403
        assert json_of(address, "/api/jobs")["reports"] == []
        assert posted(address, "/api/jobs/compact", {"x-csrf-token": token}) == 409
        assert posted(address, "/api/jobs/audit", {"x-csrf-token": token}) == 202
        ended(runner)
        (listed,) = json_of(address, "/api/jobs")["reports"]
        assert listed["exit_code"] == 3


def test_console_that_only_reads_starts_nothing(tmp_path: Path) -> None:
    small = functools.partial(damaged_cluster, history=1)
    with running_console(small, reports=tmp_path) as address:
        assert json_of(address, "/api/jobs")["startable"] == []
        assert posted(address, "/api/jobs/audit", {"x-csrf-token": ""}) in (404, 405)


def test_odd_report_hides_no_other(folder: Path) -> None:
    (folder / "verify-1.jsonl").write_text('{"console_ended": 1}\n' + "[" * 100_000 + "\n")
    with running_console(lambda: damaged_cluster(1), reports=folder) as address:
        names = [each["name"] for each in json_of(address, "/api/jobs")["reports"]]
        assert {"verify-1.jsonl", "sweep-2026-01-31.jsonl"} < set(names)
        assert json_of(address, "/api/jobs/reports/verify-1.jsonl")["exit_code"] is None


def test_report_is_read_again_when_it_has_changed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    read = jobs._read

    def counted(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
        reads.append(path.name)
        return read(path)

    monkeypatch.setattr(jobs, "_read", counted)
    reports = JobReports(folder)
    first = reports.newest()
    assert reports.newest() == first
    assert len(reads) == 2
    write(folder, "sweep-2026-01-31.jsonl", SWEPT[:2], 1000)
    assert [each["found"] for each in reports.newest()] == [1, 1]
    assert reads[2:] == ["sweep-2026-01-31.jsonl"]


def test_report_that_cannot_be_stored_does_not_keep_the_next_job_from_starting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "reports"
    folder.mkdir()
    (folder / "once").touch()
    once = f"shutil.rmtree({str(folder)!r}) if os.path.exists({str(folder / 'once')!r}) else None"
    runner = runner_of(folder, f"import os, shutil; {once}")
    runner.start("audit")
    ended(runner)
    assert [str(folder) in record.getMessage() for record in caplog.records] == [True]
    folder.mkdir()
    runner.start("audit")
    ended(runner)
    assert len(JobReports(folder).newest()) == 1


def test_folder_that_is_gone_is_named_when_a_job_starts(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    runner = JobRunner(gone, {"audit": [sys.executable, "-c", ""]}, SystemClock())
    with running_console(lambda: damaged_cluster(1), reports=gone, runner=runner) as address:
        token = json_of(address, "/api/jobs")["token"]
        gone.rmdir()
        client = http.client.HTTPConnection(urlsplit(address).netloc, timeout=TIMEOUT_S)
        client.request("POST", "/api/jobs/audit", headers={"x-csrf-token": token})
        answer = client.getresponse()
        assert answer.status == 500
        assert str(gone) in json.loads(answer.read())["error"]
        client.close()
    runner.close()


@pytest.mark.parametrize("method", ["stat", "open"])
def test_report_that_is_removed_meanwhile_does_not_hide_the_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    plain = getattr(Path, method)

    def after_removal(path: Path, *arguments: Any, **options: Any) -> Any:
        if path.name.startswith("audit-"):
            path.unlink(missing_ok=True)
        return plain(path, *arguments, **options)

    monkeypatch.setattr(Path, method, after_removal)
    assert [report["job"] for report in JobReports(folder).newest()] == ["sweep"]
