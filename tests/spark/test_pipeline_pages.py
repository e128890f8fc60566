"""The commands of the metadata jobs' pages give the output that the pages show; the audit finds
the planted faults.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from isotherm.cli import pipeline_audit
from isotherm.cli.main import app
from isotherm.console.jobs import JobReports
from isotherm.spark.jobs.audit import (
    COVERED,
    DELETION_UNFINISHED,
    TOPIC_REPLACED,
    UNKNOWN_START,
    UPLOAD_ABANDONED,
)
from tests.support.flights_history import DAY_MS, END_MS, write_flights_history

PAGES = Path(__file__).parents[2] / "docs" / "pipeline"
RUN = re.compile(r"(<!-- run(: later)? -->\n```console\n\$ )isotherm (.*)\n((?:.*\n)*?)```\n")
Shown = list[tuple[str, str]]


@pytest.fixture
def folder(spark: SparkSession, tmp_path: Path) -> Iterator[Path]:
    """The folder where the commands of the pages run."""
    del spark
    before = Path.cwd()
    write_flights_history(tmp_path / "metadata-log-before", END_MS - 2 * DAY_MS)
    write_flights_history(tmp_path / "metadata-log", END_MS - 2 * DAY_MS)
    os.chdir(tmp_path)
    yield tmp_path
    os.chdir(before)


def run_page(name: str, folder: Path) -> Shown:
    """Each command's real output, and its output on the page."""
    page = (PAGES / name).read_text(encoding="utf-8")
    outputs = []
    for found in RUN.finditer(page):
        if found[2]:
            write_flights_history(folder / "metadata-log")
        arguments = found[3].split()
        result = CliRunner().invoke(app, arguments, catch_exceptions=False)
        lines = (line.rstrip() for line in result.stdout.strip("\n").splitlines())
        outputs.append(("".join(f"{line}\n" for line in lines), found[4]))
    assert outputs
    return outputs


@pytest.fixture
def check(folder: Path) -> Callable[[str], None]:
    def run(name: str) -> None:
        for given, shown in run_page(name, folder):
            assert given == shown

    return run


def test_pages_show_what_replay_project_and_verify_print(check: Callable[[str], None]) -> None:
    # The order matters: the second and third page continue from the state of the previous one.
    for name in ("replay.md", "project.md", "verify.md"):
        check(name)


@pytest.fixture
def audited(
    folder: Path, check: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> dict[str, list[dict[str, Any]]]:
    """The tables of the audit's page. Also checks that page."""
    write_flights_history(folder / "metadata-log")
    seen: dict[str, list[dict[str, Any]]] = {}
    printed = pipeline_audit.print_tables

    def keep(tables: dict[str, list[dict[str, Any]]], *, as_json: bool) -> None:
        seen.update(tables)
        printed(tables, as_json=as_json)

    monkeypatch.setattr(pipeline_audit, "print_tables", keep)
    check("audit.md")
    return seen


def test_audit_names_everything_that_was_planted(
    folder: Path,
    audited: dict[str, list[dict[str, Any]]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    tables = audited
    causes = [(row["cause"], row["partition"], row["start_offset"]) for row in tables["orphans"]]
    assert causes == [
        (COVERED, 1, 41_500),
        (DELETION_UNFINISHED, 1, 5000),
        (UNKNOWN_START, 1, None),
        (TOPIC_REPLACED, 0, 0),
        (UPLOAD_ABANDONED, 1, 40_000),
    ]
    covered = [
        (row["partition"], row["kind"], row["first_offset"], row["last_offset"])
        for row in tables["coverage"]
    ]
    assert covered == [
        (0, "gap", 36_000, 36_099),
        (1, "overlap", 37_990, 37_999),
        (1, "overlap", 41_500, 41_999),
    ]
    earlier, first, second = tables["partitions"]
    assert (earlier["uploads"], earlier["finished"]) == (1, 1)
    assert (first["uploads"], first["failed_uploads"], first["retried_uploads"]) == (46, 1, 1)
    assert (second["uploads"], second["failed_uploads"], second["retried_uploads"]) == (47, 0, 1)
    assert first["deleted"] == 16
    assert first["deletion_s_median"] == 2.0
    assert 20 <= first["upload_s_median"] <= 26
    assert first["life_s_median"] == pytest.approx(30 * 86_400, abs=30)
    beyond = {(row["topic_id"], row["partition"], row["limit"]) for row in tables["retention"]}
    assert len(tables["retention"]) == 1
    assert beyond == {(earlier["topic_id"], 0, "age")}
    sizes = {row["topic_id"]: row for row in tables["sizes"]}[first["topic_id"]]
    assert sizes["with_remote_size"] == 30
    assert sizes["their_remote_bytes"] == pytest.approx(sizes["their_log_bytes"] * 0.4)
    growth = tables["growth"]
    assert len(growth) == 45
    assert growth[0]["uploads_finished"] == 3
    assert growth[-1]["live_segments"] == 63, "62 finished ones, and one whose deletion is stuck"
    assert sum(row["bytes"] for row in growth) == growth[-1]["bytes_so_far"]
    assert [row["days_ahead"] for row in tables["forecast"]] == [30, 90, 365]
    assert tables["forecast"][0]["records"] > sum(row["records"] for row in growth)

    costs = {row["stored"]: row for row in tables["money"]}
    assert costs["finished"]["bytes"] == sum(row["log_bytes"] for row in tables["sizes"])
    abandoned = costs[f"left over: {UPLOAD_ABANDONED}"]
    assert (abandoned["segments"], abandoned["bytes"]) == (1, 1_040_000)
    assert abandoned["cost_per_month"] == pytest.approx(1_040_000 / 2**30 * 0.023, abs=1e-6)

    # The console lists the same findings, each with its place on the tier map.
    capsys.readouterr()
    pipeline_audit.print_tables(tables, as_json=True)
    (folder / "reports").mkdir()
    (folder / "reports" / "audit-1.jsonl").write_text(capsys.readouterr().out)
    report = JobReports(folder / "reports").report("audit-1.jsonl")
    assert report is not None
    assert report["found"] == len(report["findings"]) == 5 + 3 + 1
    assert {each["topic"] for each in report["findings"]} == {"flights"}
    assert [
        (each["partition"], each["start_offset"])
        for each in report["findings"]
        if each["kind"] in ("gap", "overlap")
    ] == [(partition, first) for partition, _, first, _ in covered]

    page = (folder / "audit.html").read_text(encoding="utf-8")
    assert "9 findings: 5 left over, 3 gaps and overlaps, 1 beyond retention." in page
    assert page.count("<svg") == page.count("</svg>") == 4
    assert page.count("<table>") == len(tables)
