"""The list of questions, the targets and floors of their ratios, and the pages generated from
them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import __main__ as suite
from bench import plot, report, soak
from bench.floors import check, read_floors
from bench.plot import over_time, small_multiples
from bench.ratios import ratios_of
from bench.report_growth import exponent
from bench.report_pages import FIGURES, figures
from bench.targets import Bound, headline, read_targets, table

BENCH = Path(suite.__file__).parent
TASKS = {task.name: task for task in (*suite.COMPARED, *suite.CLUSTERS, *suite.FURTHER)}


def produce_result(ratio: float) -> dict[str, Any]:
    return {"question": "produce", "results": [{"case": "1 KiB", "ratios": {"mb_per_s": ratio}}]}


def test_every_question_is_a_module_and_the_budgets_are_kept() -> None:
    assert [name for name in TASKS if not (BENCH / f"{name}.py").exists()] == []
    assert sum(task.minutes for task in suite.COMPARED) <= 60
    assert sum(task.quick_minutes or 0 for task in suite.COMPARED) < 5


def test_every_target_and_floor_is_about_a_question_of_the_suite() -> None:
    compared = {task.name for task in (*suite.COMPARED, *suite.CLUSTERS)}
    quick = {task.name for task in suite.COMPARED if task.quick_minutes}
    assert {target.question for target in read_targets()} <= compared
    assert {floor.question for floor in read_floors()} <= quick


def test_suite_goes_on_behind_a_question_that_fails_and_names_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def module(name: str, *arguments: str, timeout_s: float | None = None) -> int:
        asked.append((name, arguments))
        return int(name == "first")

    monkeypatch.setattr(suite, "_module", module)
    tasks = [suite.Task("first", 1.0), suite.Task("second", 1.0, 0.5)]
    assert suite.run(tasks, is_quick=True) == ["first"]
    assert asked == [("first", ("--quick",)), ("second", ("--quick",))]
    assert "first: failed with status 1" in capsys.readouterr().err


@pytest.mark.slow
def test_question_that_takes_too_long_is_ended_with_what_it_started(tmp_path: Path) -> None:
    script = tmp_path / "bench" / "endless.py"
    script.parent.mkdir()
    script.write_text("import time\nprint('here', flush=True)\ntime.sleep(600)\n")
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from bench import __main__ as suite\n"
        "suite.REPOSITORY = Path(sys.argv[2])\n"
        "print(suite._module('endless', timeout_s=1))"
    )
    command = [sys.executable, "-c", code, str(BENCH.parent), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["here", "-9"]


@pytest.mark.parametrize(
    ("bound", "fallen"),
    [
        (Bound(question="produce", metric="mb_per_s", at_least=1.5), 0),
        (Bound(question="produce", metric="mb_per_s", at_least=1.7), 1),
        (Bound(question="produce", metric="mb_per_s", at_most=1.6), 0),
        (Bound(question="produce", metric="mb_per_s", at_most=1.5), 1),
        (Bound(question="produce", metric="mb_per_s", case="2 KiB", at_least=1.0), 1),
        (Bound(question="latency", metric="mb_per_s", at_least=9.0), 0),
    ],
)
def test_floor_falls_when_the_ratio_or_its_case_is_gone(
    tmp_path: Path, bound: Bound, fallen: int
) -> None:
    (tmp_path / "produce.json").write_text(json.dumps(produce_result(1.6)))
    found, _ = check(tmp_path, [bound])
    assert len(found) == fallen


def test_table_tells_the_worst_case_and_whether_the_target_is_met() -> None:
    results = [
        {"case": case, "ratios": {"mb_per_s": ratio}} for case, ratio in (("a", 2.1), ("b", 1.2))
    ]
    document = {"question": "cleaner", "results": results, "load_average": 1.64}
    rows = "\n".join(table([document]))
    assert "| cleaner, MB/s | ≥ 2 | 1.20 to 2.10 | 1 of 2 |  | 1.6 |" in rows
    assert (
        "| tail, fetch client, MB/s | ≥ 1 | not yet | - | the machine's rate of copies | - |"
        in rows
    )


def test_readme_says_which_figures_were_measured_beside_other_work() -> None:
    def row_of(load_average: float) -> str:
        result = {"case": "1,000 partitions", "ratios": {"resident_mb": 0.25}}
        document = {"question": "partitions", "results": [result], "load_average": load_average}
        (row,) = [row for row in headline([document]) if row.startswith("| memory while idle")]
        return row

    assert row_of(0.9) == "| memory while idle | 0.25 | lower | ≤ 0.5 | yes | quiet |"
    assert row_of(2.3) == "| memory while idle | 0.25 | lower | ≤ 0.5 | yes | loaded (2.3) |"


def test_ratios_of_every_form() -> None:
    decoding = {
        "sides": {"columns": {"records_per_s": 10.0}, "java": {"records_per_s": 4.0}},
        "case": "lz4",
    }
    sides = {
        "kafka, level 0": {"seconds": 8.0, "cpu_seconds": 8.0},
        "isotherm, level 0": {"seconds": 2.0, "cpu_seconds": 4.0},
        "isotherm, level 1": {"seconds": 0.1, "cpu_seconds": 0.2},
    }
    document = {"decoding": [decoding], "bootstrap": [{"years": 1, "sides": sides}]}
    found = {(ratio.case, ratio.metric): ratio.value for ratio in ratios_of(document)}
    assert found["lz4", "records_per_s of java"] == 2.5
    assert found["1 years", "seconds of level 0"] == 4.0
    assert found["1 years", "seconds of level 1"] == pytest.approx(80.0)


def test_pages_and_plots_are_what_the_results_say() -> None:
    differing = [
        str(path)
        for path, text in report.pages().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    assert differing == [], "run: python -m bench.report"


def test_figure_without_a_result_says_so() -> None:
    assert figures({}).keys() == FIGURES.keys()
    assert figures({})["produce_cpu"] == "(not measured)"
    assert figures({})["tb_segments"] == "931"


def test_plot_has_a_mark_for_each_point_and_is_the_same_each_time() -> None:
    panels = {"memory <MB>": [(1.0, 10.0), (10.0, 20.0), (100.0, 400.0)], "files": [(1, 2), (9, 2)]}
    plot = small_multiples("partitions", panels)
    assert plot == small_multiples("partitions", panels)
    assert plot.count("<circle") == 5
    assert "memory &lt;MB&gt;" in plot


def test_exponent_is_the_slope_of_the_last_half() -> None:
    assert exponent([(1, 7), (10, 7), (100, 5), (1000, 500)]) == pytest.approx(2.0)
    assert exponent([(1, 3), (10, 3)]) == pytest.approx(0.0)


def test_plot_over_time_begins_at_zero_and_ends_at_its_last_point() -> None:
    points = [(0.5, 0.0), (1.0, 100.0), (2.0, 50.0)]
    drawn = over_time("minutes", {"resident memory, MB": points})
    (line,) = re.findall(r'<polyline class="l" points="([^"]*)"', drawn)
    (x_first, y_first), (_, y_high), (x_last, y_last) = (
        tuple(map(float, part.split(","))) for part in line.split()
    )
    left, right = plot.LEFT, plot.PANEL_WIDTH - plot.RIGHT
    bottom = plot.PANEL_HEIGHT - plot.BOTTOM
    assert (x_first, x_last) == (left + (right - left) / 4, right)
    assert y_first == bottom
    # Half as high as the highest point.
    assert bottom - y_last == pytest.approx((bottom - y_high) / 2, abs=0.2)


def test_soak_compares_the_second_quarter_with_the_last() -> None:
    """The first quarter, in which caches fill, does not count."""
    grown = [100.0, 200.0, 300.0, 300.0, 310.0, 320.0, 330.0, 330.0]
    samples = [
        soak.Sample(float(second), value, 100.0, 50.0, 50, 8, 0.0)
        for second, value in enumerate(grown)
    ]
    found = soak.quarters(samples)
    assert found["resident_mb"] == {"second": 300.0, "last": 330.0, "times": 1.1}
    assert found["descriptors"]["times"] == 1.0
