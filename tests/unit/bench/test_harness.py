"""The bench harness: the order of its rounds, and the summaries and ratios of a result."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.harness import Case, ratios, run_case, summarize
from bench.load import parse_producer_performance
from bench.report import render

PERF_OUTPUT = """\
12345 records sent, 2469.0 records/sec (2.41 MB/sec), 9.1 ms avg latency, 80.0 ms max latency.
50000 records sent, 40000.5 records/sec (39.06 MB/sec), 12.34 ms avg latency, 99.00 ms max \
latency, 7 ms 50th, 20 ms 95th, 31 ms 99th, 44 ms 99.9th.
"""


class FakeServer:
    """A server that is this process, under a name."""

    bootstrap_server = "127.0.0.1:1"
    log_dir = remote_dir = Path()

    def __init__(self, name: str) -> None:
        self.name = name
        self.pid = os.getpid()

    def start(self) -> None:
        raise AssertionError("a case does not start servers")

    stop = start


def test_case_alternates_the_sides_and_drops_the_round_that_warms_up(capsys) -> None:
    calls: list[str] = []

    def measure(server: FakeServer) -> dict[str, float]:
        calls.append(server.name)
        return {"mb_per_s": float(len(calls)), "records_per_s": 1.0}

    case = Case(
        name="c",
        parameters={},
        bytes_moved=1,
        measure=measure,
        prepare=lambda server: calls.append("prepare " + server.name),
        finish=lambda server: calls.append("finish " + server.name),
    )
    result = run_case(case, [FakeServer("isotherm"), FakeServer("kafka")], rounds=2)
    assert calls == [
        "prepare isotherm",
        "prepare kafka",
        *["isotherm", "kafka"] * 3,
        "finish isotherm",
        "finish kafka",
    ]
    assert result["sides"]["isotherm"]["mb_per_s"]["values"] == [5.0, 7.0]
    assert result["ratios"]["mb_per_s"] == pytest.approx(6 / 7)
    assert result["sides"]["kafka"]["server_resident_mb"]["median"] > 1
    assert "isotherm" in capsys.readouterr().err


def test_summary_is_median_and_spread() -> None:
    summary = summarize([{"x": 4.0}, {"x": 1.0}, {"x": 2.0}])
    assert summary == {"x": {"median": 2.0, "spread": 1.5, "values": [4.0, 1.0, 2.0]}}


def test_ratios_need_both_sides() -> None:
    side = {"x": {"median": 3.0}}
    assert ratios({"isotherm": side}) == {}
    assert ratios({"isotherm": side, "kafka": {"x": {"median": 2.0}}}) == {"x": 1.5}
    assert ratios({"isotherm": side, "kafka": {"x": {"median": 0.0}}}) == {}


def test_summary_line_of_the_producer_perf_tool_is_read() -> None:
    assert parse_producer_performance(PERF_OUTPUT, record_size=1000) == {
        "records_per_s": 40000.5,
        "mb_per_s": pytest.approx(40.0005),
        "seconds": pytest.approx(50000 / 40000.5),
        "latency_p50_ms": 7.0,
        "latency_p95_ms": 20.0,
        "latency_p99_ms": 31.0,
    }


def test_output_without_a_summary_is_an_error() -> None:
    with pytest.raises(ValueError, match="no summary"):
        parse_producer_performance("Exception in thread main", record_size=1)


def test_report_shows_each_case_with_both_sides_and_the_ratio() -> None:
    def side(rate: float) -> dict:
        metrics = {"mb_per_s": rate, "server_cpu_s_per_gb": 2.0, "server_resident_mb": 100.0}
        return {name: {"median": v, "spread": 0.25} for name, v in metrics.items()}

    sides = {"isotherm": side(150.0), "kafka": side(100.0)}
    document = {
        "question": "produce",
        "text": "How fast?",
        "date": "2026-01-02",
        "rounds": 3,
        "commit": "abc",
        "machine": {"cpu": "A CPU", "cpus": 2},
        "load_average": 0.5,
        "versions": {"kafka": "4.3.1"},
        "results": [{"case": "1 KiB", "sides": sides, "ratios": ratios(sides)}],
    }
    page = render([document])
    assert "## How fast?" in page
    assert "| 1 KiB | 150.0 | 25% | 100.0 | 25% | 1.50 |" in page
    assert "| 1 KiB | 2.00 | 2.00 | 1.00 | 100 | 100 |" in page
    assert "3 rounds, 2026-01-02, commit `abc`, 2 CPUs (A CPU)" in page
