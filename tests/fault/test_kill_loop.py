"""A short kill loop with a new seed each time, at durable writes of a segment's life; `make soak`
has the long one, on both kinds of store and at both levels."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from isotherm.clock import SystemClock
from tests.support.correctness.crash_points import segment_life
from tests.support.correctness.profile import Fault, Store, kill_loop
from tests.support.correctness.run import run

FAULTS = 6
# A broker with producing clients reaches each of these points, however slow the machine is.
WRITES = segment_life(1)[:8]
PATIENCE_S = 300.0
# No pauses: one would take the place of a death, and chance would decide the number of deaths.
# tests/interop/test_correctness_run.py has pauses.
FAULT_WEIGHTS = {Fault.KILL: 1.0}


@pytest.mark.slow
def test_broker_that_dies_between_durable_writes_loses_nothing(tmp_path: Path) -> None:
    seed = time.time_ns()
    profile = kill_loop(
        level=1,
        store=Store.FOLDER,
        faults_max=FAULTS,
        precise=True,
        writes=WRITES,
        delays={"read audit": 0.2},
    )
    report = run(
        seed=seed,
        seconds=None,
        faults=FAULTS,
        profiles=[replace(profile, patience_s=PATIENCE_S, faults=FAULT_WEIGHTS)],
        directory=tmp_path,
        clock=SystemClock(),
        say=print,
    )
    summary = "\n".join([f"seed={seed} directory={tmp_path}", *report.lines()])
    assert report.anomalies == [], summary
    assert report.kills_and_pauses >= FAULTS, summary
    # After each killed process comes one with a crash point.
    assert report.faults[Fault.CRASH] == sum(report.hits.values()) >= FAULTS // 3, summary
    assert report.missed == [], summary
    assert report.segments_in_bucket > 0, summary
