"""Share groups of both clients keep their promises while brokers and consumers are killed.

`python -m tests.support.share_runs.run` is a run of any length.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from tests.support.share_runs.run import (
    GROUPS,
    Brokers,
    ClusterOfBrokers,
    Fault,
    ShareReport,
    SingleBroker,
    run,
)

pytestmark = [pytest.mark.slow, pytest.mark.oracle, pytest.mark.timeout(1800)]

EVERY_ACKNOWLEDGEMENT = {"ACCEPT", "RELEASE", "REJECT"}
IN_TURN = [
    Fault.LEADER,
    Fault.JAVA,
    Fault.SHARE_COORDINATOR,
    Fault.PYTHON,
    Fault.GROUP_COORDINATOR,
    Fault.EVERYTHING,
]


def check(brokers: Brokers, directory: Path, faults: list[Fault]) -> ShareReport:
    with contextlib.closing(brokers):
        report = run(brokers, directory / "workers", faults, print)
    summary = "\n".join([f"directory={directory}", *report.lines()])
    assert report.anomalies == [], summary
    assert report.groups["explicit"].acknowledgements.keys() == EVERY_ACKNOWLEDGEMENT, summary
    assert all(report.groups[group].acknowledgements["ACCEPT"] > 100 for group in GROUPS), summary
    assert report.archived > 0, summary
    return report


def test_share_groups_survive_kills_of_the_broker_and_of_consumers(
    kafka_tools: Path, tmp_path: Path
) -> None:
    faults = [Fault.EVERYTHING, Fault.LEADER]
    check(SingleBroker(tmp_path / "broker"), tmp_path, faults)


@pytest.mark.nightly
def test_share_groups_survive_many_kills(kafka_tools: Path, tmp_path: Path) -> None:
    report = check(SingleBroker(tmp_path / "broker"), tmp_path, IN_TURN * 4)
    # Locks have ended while their members worked.
    assert report.groups["explicit"].errors


def test_kafka_and_isotherm_take_turns_as_leaders_and_coordinators(
    kafka_tools: Path, tmp_path: Path
) -> None:
    """The second broker is Kafka's. When it is killed, Isotherm knows from it what is done."""
    faults = [Fault.MOVE, Fault.EVERYTHING]
    check(ClusterOfBrokers(tmp_path / "brokers", "IK"), tmp_path, faults)


@pytest.mark.nightly
@pytest.mark.parametrize("kinds", ["III", "IKI"])
def test_share_groups_survive_kills_of_leaders_and_coordinators(
    kafka_tools: Path, tmp_path: Path, kinds: str
) -> None:
    check(ClusterOfBrokers(tmp_path / "brokers", kinds), tmp_path, [Fault.MOVE, *IN_TURN] * 2)
