"""Other projects' suites (`suites/`) against one `isotherm serve`.

`<suite>/passes.txt` names the cases that pass, `<suite>/kafka.txt` has every case with its outcome
on Apache Kafka, `<suite>/quick.txt` names the tests that continuous integration runs; `make soak`
runs all of them. `<suite>/FINDINGS.md` explains the rest. Decision 131 says why these
tests may run a second time.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from suites import librdkafka, librdkafka_kip848
from suites.__main__ import SUITES
from suites.results import (
    LISTS,
    Outcomes,
    SuiteUnavailableError,
    of_go_test,
    of_librdkafka,
    read_lines,
)

# Their quick tests take twenty seconds to a minute.
LONG_SUITES = ("kafka_go", "librdkafka_suite")
each_suite = pytest.mark.parametrize("name", sorted(SUITES))


def listed(name: str, file: str) -> list[str]:
    return (LISTS / name / file).read_text(encoding="utf-8").splitlines()


def top_level(case: str) -> str:
    """The test that a case is part of: Go's by name, librdkafka's by number."""
    return case[:4] if case[0].isdigit() else case.partition("/")[0]


@pytest.fixture
def run_suite(tmp_path: Path) -> Callable[..., Outcomes]:
    def run(name: str, tests: list[str] | None = None) -> Outcomes:
        suite = SUITES[name]
        try:
            prepared = suite.prepare()
            with suite.broker("isotherm", tmp_path / "broker") as address:
                outcomes = suite.run(prepared, address, tmp_path / "suite.log", tests)
        except SuiteUnavailableError as error:
            pytest.skip(str(error))
        return dict(outcomes)

    return run


def missing(cases: list[str], outcomes: Outcomes) -> dict[str, str | None]:
    return {case: outcomes.get(case) for case in cases if outcomes.get(case) != "PASS"}


@pytest.mark.slow
@pytest.mark.flaky(reruns=2)
@pytest.mark.timeout(900)  # the first time it builds the suite
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.nightly if name in LONG_SUITES else ())
        for name in sorted(SUITES)
    ],
)
def test_quick_tests_pass(name: str, run_suite: Callable[..., Outcomes], tmp_path: Path) -> None:
    tests = listed(name, "quick.txt")
    cases = [case for case in listed(name, "passes.txt") if top_level(case) in tests]
    assert missing(cases, run_suite(name, tests)) == {}, f"see {tmp_path}/suite.log"


@pytest.mark.soak
@pytest.mark.timeout(1800)
@each_suite
def test_listed_cases_pass(name: str, run_suite: Callable[..., Outcomes], tmp_path: Path) -> None:
    assert missing(listed(name, "passes.txt"), run_suite(name)) == {}, f"see {tmp_path}/suite.log"


@each_suite
def test_lists_are_of_one_suite(name: str) -> None:
    on_kafka = listed(name, "kafka.txt")
    cases = read_lines(on_kafka)
    assert on_kafka == [f"{outcome} {case}" for case, outcome in sorted(cases.items())]
    passes = listed(name, "passes.txt")
    assert set(passes) <= set(cases)
    quick = listed(name, "quick.txt")
    assert quick == sorted(quick)
    assert set(quick) <= set(map(top_level, passes))


@each_suite
def test_what_kafka_alone_passes_is_explained(name: str) -> None:
    findings = (LISTS / name / "FINDINGS.md").read_text(encoding="utf-8")
    passes = set(listed(name, "passes.txt"))
    cases = read_lines(listed(name, "kafka.txt"))
    alone = {case for case, outcome in cases.items() if outcome == "PASS"} - passes
    assert {case for case in alone if f"`{case}`" not in findings} == set()


def test_outcomes_of_go_are_found_behind_half_a_line() -> None:
    text = (
        "\x16=== RUN   TestA\nhalf a line\x16--- FAIL: TestA (0.10s)\n"
        "\x16--- PASS: TestB (0.00s)\n\x16    --- SKIP: TestB/a[1] (0.00s)\n"
        "    a_test.go:1: --- FAIL: TestC (is no outcome)\n"
    )
    assert of_go_test(text) == {"TestA": "FAIL", "TestB": "PASS", "TestB/a[1]": "SKIP"}


def test_a_failure_of_librdkafka_is_one_whatever_follows() -> None:
    text = (
        "\x1b[36m[0001_a / 0.1s] ======= Test 0001_a PASSED =======\x1b[0m\n"
        "\x1b[31m### Test "
        '"0002_b (do_test:10: case)" failed at b.c:10:do_test() at Sun: ###\n'
        "======= Test 0002_b PASSED =======\n======= Test 0003_c SKIPPED =======\n"
    )
    assert of_librdkafka(text) == {"0001_a": "PASS", "0002_b": "FAIL", "0003_c": "SKIP"}


@pytest.mark.parametrize(
    ("suite", "ran"),
    [
        (librdkafka, {"0001_classic": "PASS", "0002_classic": "PASS"}),
        (librdkafka_kip848, {"0002_consumer": "PASS"}),
    ],
)
def test_librdkafka_runs_the_numbers_of_a_group_protocol(
    suite: ModuleType, ran: Outcomes, tmp_path: Path
) -> None:
    runner = tmp_path / "test-runner"
    runner.write_text(
        '#!/bin/sh\necho "=== Test ${TESTS}_$TEST_CONSUMER_GROUP_PROTOCOL PASSED ==="\n',
        encoding="utf-8",
    )
    runner.chmod(0o755)
    (tmp_path / "0001-produce.c").touch()
    (tmp_path / "0002-consume.c").write_text("Consumer", encoding="utf-8")
    (tmp_path / "0170-share_consumer.c").write_text("Consumer", encoding="utf-8")
    assert suite.run(tmp_path, "127.0.0.1:1", tmp_path / "log") == ran
