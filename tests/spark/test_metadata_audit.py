"""The audit of a history with one of everything; its report, and the pages that show both."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pyspark.sql import SparkSession

from isotherm.remote.storage.settings import ObjectStoreSettings
from isotherm.spark.audit_report import render
from isotherm.spark.jobs.audit import (
    COVERED,
    DELETION_UNFINISHED,
    TOPIC_REPLACED,
    UNKNOWN_START,
    UPLOAD_ABANDONED,
    Audit,
    AuditSettings,
    Retention,
)
from isotherm.spark.metadata_log import DumpMetadataLog
from isotherm.testing.flights_history import DAY_MS, END_MS, write_flights_history


@pytest.fixture(scope="module")
def tables(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[dict[str, Any]]]:
    folder = tmp_path_factory.mktemp("flights")
    write_flights_history(folder)
    limit = Retention(ms=30 * DAY_MS + 7_200_000)
    settings = AuditSettings(now_ms=END_MS, retention={"flights": limit})
    log = DumpMetadataLog((ObjectStoreSettings(url=folder.as_uri()),))
    with Audit(spark, log, settings) as audit:
        assert audit.replay.findings.count() == 0
        return {
            name: [row.asDict() for row in frame.collect()] for name, frame in audit.tables.items()
        }


def test_audit_names_everything_that_was_planted(
    tables: dict[str, list[dict[str, Any]]],
) -> None:
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
    assert sum(row["bytes"] for row in growth) == growth[-1]["bytes_so_far"]
    assert [row["days_ahead"] for row in tables["forecast"]] == [30, 90, 365]
    assert tables["forecast"][0]["records"] > sum(row["records"] for row in growth)


def test_report_stands_alone(tables: dict[str, list[dict[str, Any]]]) -> None:
    page = render("Audit of <x>", END_MS, tables)
    assert "Audit of &lt;x&gt;" in page
    assert page.count("<svg") >= 5
    assert page.count("<svg") == page.count("</svg>")
    assert not re.search(r"(src|href)=|https?://|@import|url\(", page)
    assert "upload abandoned" in page
    assert "None." in render("Empty", END_MS, {})
