"""A short correctness run with a new seed each time; `make soak` is the long one."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from isotherm.clock import SystemClock
from tests.support.correctness.profile import Profile
from tests.support.correctness.run import run

FAULTS = 4
ENDED = {f"{kind}:ok" for kind in ("assign", "poll", "send", "subscribe", "txn")}


@pytest.mark.slow
def test_clients_see_no_anomaly_while_the_broker_is_killed_and_paused_and_records_are_erased(
    tmp_path: Path,
) -> None:
    seed = time.time_ns()
    report = run(
        seed=seed,
        seconds=None,
        faults=FAULTS,
        profiles=[Profile(faults_max=FAULTS, erases=True)],
        directory=tmp_path,
        clock=SystemClock(),
        say=print,
    )
    summary = "\n".join([f"seed={seed} directory={tmp_path}", *report.lines()])
    assert report.anomalies == [], summary
    assert report.kills_and_pauses >= FAULTS, summary
    assert report.operations.keys() >= ENDED, summary
    assert min(report.records_sent, report.records_read) > 500, summary
    assert report.partitions_in_both_tiers >= 2, summary
    assert min(report.erasures, report.records_erased) > 0, summary
