"""The tasks of the remote tier under schedules that preempt and crash them at any step: no record
is lost, no segment doubled, no object left over (docs/simulation.md)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter

import pytest

SOUND = (
    "cut-event",
    "copy-crash",
    "copy-crash-level-0",
    "expire-copy",
    "cleanup-copy",
    "finish-expire",
    "finish-deposed",
    "finish-deposed-again",
    "untier-retain",
    "migrate-copy",
    "expire-again",
    "start-forgotten",
    "end-forgotten",
    "gap-forgotten",
    "remove-staged",
)
PROGRAM = [sys.executable, "-m", "tests.support.schedules"]


def played(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the program of schedules in a process of its own: the order of sets is part of a
    schedule, so the hash seed must be fixed."""
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    return subprocess.run(
        [*PROGRAM, *arguments], capture_output=True, text=True, check=False, env=environment
    )


def play(*arguments: str) -> str:
    done = played(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module", params=[25, pytest.param(400, marks=pytest.mark.nightly)])
def explored(request: pytest.FixtureRequest) -> str:
    """The output for all scenarios in one process: its start takes as long as a hundred
    schedules."""
    done = played("--scenario", *SOUND, "--limit", str(request.param))
    return done.stdout + done.stderr


def counts(output: str, kind: str) -> Counter[str]:
    found = re.findall(rf"^{kind} '(.*)' (\d+)$", output, re.MULTILINE)
    return Counter({what: int(count) for what, count in found})


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_random_schedules_lose_nothing_and_leave_nothing_over() -> None:
    output = play("--seeds", "0:250")
    assert counts(output, "crashes").total() > 50
    assert min(counts(output, "actions").values()) > 10
    (emptied,) = re.findall(r"emptied=(\d+)", output)
    assert int(emptied) > 10, "the cleaner leaves segments without a record in the tier"


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_more_random_schedules_crash_at_each_kind_of_step() -> None:
    output = play("--seeds", "0:2000")
    crashes = counts(output, "crashes")
    states = ("COPY_SEGMENT_STARTED", "COPY_SEGMENT_FINISHED", "DELETE_SEGMENT_STARTED")
    between = {f"append metadata {state}" for state in (*states, "DELETE_SEGMENT_FINISHED")}
    assert between <= crashes.keys(), "between the audit topic's event and the state"
    objects = {"put log", "put indexes", "put rsm-manifest", "delete log", "delete rsm-manifest"}
    assert objects <= crashes.keys()
    assert {"cluster metadata", "rename .log"} <= crashes.keys()
    assert crashes["append metadata COPY_SEGMENT_FINISHED"] > 20
    assert {f"{each} reply" for each in ("append metadata", "append audit", "put", "delete")} <= (
        counts(output, "faults").keys()
    )
    assert min(counts(output, "actions").values()) > 100
    (distinct,) = re.findall(r"distinct=(\d+)", output)
    assert int(distinct) > 1900


def test_a_seed_does_the_same_in_every_process() -> None:
    first, again = (
        re.sub(r"seconds=\d+", "", play("--seeds", "20:26", "--story")) for _ in range(2)
    )
    assert first == again
    assert "CRASH" in first


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("scenario", SOUND)
def test_no_schedule_of_a_few_tasks_and_a_crash_loses_anything(
    scenario: str, explored: str
) -> None:
    assert re.search(rf"^scenario={scenario} .* failed=0 ", explored, re.MULTILINE), explored


@pytest.mark.soak
@pytest.mark.timeout(6 * 3600)
def test_very_many_random_schedules() -> None:
    play("--seeds", "1000000:1100000")


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_every_scenario_with_more_preemptions() -> None:
    for scenario in SOUND:
        play("--scenario", scenario, "--preemptions", "2", "--limit", "20000")
