"""The tasks of the remote tier under schedules that preempt and crash them anywhere: nothing lost,
doubled or left over (docs/simulation.md)."""

from __future__ import annotations

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
    "untier-retain",
    "migrate-copy",
)
PROGRAM = [sys.executable, "-m", "isotherm.testing.schedules"]


def play(*arguments: str) -> str:
    """Played in a process of its own: the order of sets is part of a schedule."""
    done = subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def counts(output: str, kind: str) -> Counter[str]:
    found = re.findall(rf"^{kind} '(.*)' (\d+)$", output, re.MULTILINE)
    return Counter({what: int(count) for what, count in found})


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_random_schedules_lose_nothing_and_leave_nothing_over() -> None:
    output = play("--seeds", "0:2000")
    crashes = counts(output, "crashes")
    states = ("COPY_SEGMENT_STARTED", "COPY_SEGMENT_FINISHED", "DELETE_SEGMENT_STARTED")
    between = {f"append metadata {state}" for state in (*states, "DELETE_SEGMENT_FINISHED")}
    assert between <= crashes.keys(), "between the audit topic's event and the state"
    objects = {"put log", "put indexes", "put rsm-manifest", "delete log", "delete rsm-manifest"}
    assert objects <= crashes.keys()
    assert {"append metadata tombstone", "cluster metadata", "rename .log"} <= crashes.keys()
    assert crashes["append metadata COPY_SEGMENT_FINISHED"] > 20
    assert {f"{each} reply" for each in ("append metadata", "append audit", "put", "delete")} <= (
        counts(output, "faults").keys()
    )
    assert min(counts(output, "actions").values()) > 100
    (distinct,) = re.findall(r"distinct=(\d+)", output)
    assert int(distinct) > 1900


def test_a_seed_does_the_same_in_every_process() -> None:
    first, again = (re.sub(r"seconds=\d+", "", play("--seeds", "3:9", "--story")) for _ in range(2))
    assert first == again
    assert "CRASH" in first


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("scenario", SOUND)
def test_no_schedule_of_a_few_tasks_and_a_crash_loses_anything(scenario: str) -> None:
    assert "failed=0" in play("--scenario", scenario, "--limit", "400")


@pytest.mark.xfail(
    strict=True,
    reason="what lies below the log start counts against retention.bytes until it is deleted:"
    " a run that follows a failed one deletes more than is over the limit (choices: -)",
)
def test_retention_that_is_tried_again_takes_no_more() -> None:
    play("--scenario", "expire-again", "--choices", "-")


@pytest.mark.xfail(
    strict=True,
    reason="leader epochs are cut at a log start that a crash forgets: the segments between the two"
    " have no epoch, and copying stands still for ever (choices: 0,0,0,0,0,1)",
)
def test_a_log_start_that_a_crash_forgets_does_not_stop_the_copying() -> None:
    play("--scenario", "start-forgotten")


@pytest.mark.xfail(
    strict=True,
    reason="leader epochs are cut at a log start that a crash forgets: where that was the log's end,"
    " none are left, and the partition is offline after the crash",
)
def test_a_log_start_that_a_crash_forgets_takes_no_partition_offline() -> None:
    play("--scenario", "end-forgotten")


@pytest.mark.xfail(
    strict=True,
    reason="the finisher passes over a journal whose partition is deleted: what the run staged, what"
    " it superseded and the journal stay in the bucket (choices: -)",
)
def test_a_compaction_ends_with_its_partition() -> None:
    play("--scenario", "remove-staged", "--choices", "-")


@pytest.mark.soak
@pytest.mark.timeout(6 * 3600)
def test_very_many_random_schedules() -> None:
    play("--seeds", "1000000:1100000")


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_every_scenario_with_more_preemptions() -> None:
    for scenario in SOUND:
        play("--scenario", scenario, "--preemptions", "2", "--limit", "20000")
