"""Simulations of the remote tier from a seed: no record is lost, and the same seed gives the same
run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.s3_stub import S3Stub
from tests.support.tier_simulation import simulated

SEEDS = range(4)


@pytest.mark.parametrize("seed", SEEDS)
def test_any_schedule_of_the_managers_work_loses_and_leaks_nothing(
    tmp_path: Path, seed: int
) -> None:
    simulation = simulated(tmp_path / "p", seed)
    for partition in simulation.partitions:
        log = partition.log
        assert log.log_end_offset == len(partition.values)
    assert simulation.reads_checked > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_faults_on_the_wire_lose_and_leak_nothing(tmp_path: Path, seed: int) -> None:
    with S3Stub() as stub:
        simulation = simulated(tmp_path / "p", seed, stub)
    assert simulation.reads_checked > 0
    assert sum(simulation.faults().values()) > 0


def test_same_seed_gives_the_same_schedule_and_the_same_calls(tmp_path: Path) -> None:
    first, again, other = (
        simulated(tmp_path / run, seed).trace() for run, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert first == again
    assert first[0] != other[0]
    names = {name for _, name in first[0]}  # type: ignore[attr-defined]
    assert names >= {"remote-log-copy", "remote-log-expiration", "remote-log-reader", "metadata"}
