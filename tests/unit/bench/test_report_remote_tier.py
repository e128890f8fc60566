"""The remote tier's part of the bench report."""

from __future__ import annotations

from typing import Any

import pytest

from bench.report import render

MEASURED: dict[str, Any] = {
    "text": "What?",
    "date": "2026-01-02",
    "commit": "abc",
    "rounds": 3,
    "machine": {"cpu": "A CPU", "cpus": 2},
    "versions": {"kafka": "4.3.1"},
}
QUOTA = {
    "quota": "copy",
    "limit_bytes_per_s": 4_000_000,
    "bytes_per_s": 4_100_000,
    "of_limit": 1.025,
    "seconds": 20.0,
}
TRAFFIC = {
    "case": "refused",
    "sound_p50_ms": 1,
    "sound_p99_ms": 2,
    "sick_p50_ms": 3,
    "sick_p99_ms": 4,
    "p99_of_sound": 2,
    "smallest": 1.5,
    "largest": 2.5,
    "cpu_of_sound": 1.1,
    "resident_mb": 200,
    "open_files": 40,
    "threads": 20,
}
CACHE_SIDE = {
    "requests": 1000,
    "hit_ratio": 0.9,
    "hit_ratio_second_half": 0.95,
    "remote_calls": 200,
}
GETS = {
    "mb_per_s": 500.0,
    "spread": 0.1,
    "share": 0.8,
    "gets_per_gib": 16.0,
    "cpu_s_per_gb": 1.6,
    "cpu_share": 0.9,
}
BROKER = {"server_cpu_s_per_gb": 0.5, "server_resident_mb": 300.0}
HISTORIES = {
    "records": 1000,
    "reads_compared": 500,
    "pieces_of_work": 90,
    "faults": [["lost_reply", "PUT", 7]],
    "differences": [],
}


@pytest.mark.parametrize(
    ("question", "fields", "rows"),
    [
        ("remote_quota", {"quotas": [QUOTA]}, ["| copy | 4.00 | 4.10 | 1.025 | 20 |"]),
        (
            "console",
            {"waits": {"zoom": {"count": 90, "median_ms": 41.4, "largest_ms": 1234.6}}},
            ["| zoom | 90 | 41 | 1,235 |"],
        ),
        (
            "index_cache",
            {"seed": 1, "caching": [{"case": "scan", "sides": {"lru": CACHE_SIDE}}]},
            ["| scan | lru | 1,000 | 90.0% | 95.0% | 200 |"],
        ),
        (
            "cold_store",
            {"latency_ms": 20, "store": {"GETs alone": GETS, "one consumer": GETS | BROKER}},
            [
                "| GETs alone | 500 | 10% | 0.80 | 16.0 | 1.60 | 0.90 | - | - |",
                "| one consumer | 500 | 10% | 0.80 | 16.0 | 1.60 | 0.90 | 0.50 | 300 |",
            ],
        ),
        (
            "store_faults",
            {"local_traffic": [TRAFFIC]},
            [
                (
                    "| refused | 1.00 | 2.00 | 3.00 | 4.00 | 2.00 | 1.50 to 2.50 | 1.10 | 200 | 40"
                    " | 20 |"
                )
            ],
        ),
        (
            "fault_histories",
            {
                "seeds": [5, 9],
                "histories": {"wire": HISTORIES, "store": HISTORIES | {"differences": [7, 8]}},
            },
            [
                "| wire | 1,000 | 500 | 90 | 7 | nothing |",
                "| store | 1,000 | 500 | 90 | 7 | seed 7, seed 8 |",
                "| wire | lost reply | PUT | 7 |",
            ],
        ),
    ],
)
def test_report_has_a_section_for_each_result_of_the_remote_tier(
    question: str, fields: dict[str, Any], rows: list[str]
) -> None:
    page = render([{"question": question, **MEASURED, **fields}])
    assert "## What?" in page
    assert [row for row in rows if row not in page] == []
    assert "commit `abc`" in page
