"""A short correctness run over a cluster with a new seed each time: random records are erased while
leaders move and brokers are killed. `make soak` has the long one."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from isotherm.clock import SystemClock
from tests.support.cluster.nemesis import ClusterFault
from tests.support.cluster.run import run

WORK_S = 60.0


@pytest.mark.oracle
@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.timeout(1800)
def test_erased_records_are_nowhere_in_a_cluster_whose_leaders_move(
    kafka_tools: Path, tmp_path: Path
) -> None:
    seed = time.time_ns()
    report, faults, hangs = run(
        seed=seed,
        seconds=WORK_S,
        kinds=("III",),
        directory=tmp_path,
        clock=SystemClock(),
        say=print,
        weights={ClusterFault.MOVE: 3, ClusterFault.KILL: 1},
    )
    summary = "\n".join([f"seed={seed} directory={tmp_path}", *report.lines()])
    assert report.anomalies == [], summary
    if not hangs:
        assert faults[ClusterFault.MOVE] > 0, summary
        assert min(report.erasures, report.records_erased) > 0, summary
