"""A run of `isotherm pipeline table` is killed at a durable write and started again: table and dead
letters are those of one undisturbed run.

The short form ends runs by an exception at some writes of the driver. The long form kills the
process with SIGKILL before and after every kind of write of driver and executors.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyarrow import dataset

from isotherm.record.batch import NewRecord, build_batch
from tests.spark.conftest import Tier
from tests.spark.test_table import OTHER, OWNER
from tests.support.crashing_table import SIDES, Killed, Point, install, raising
from tests.support.topic_tables import load_table, run_table

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 900
# The short form takes every seventh point. Delta's commits have fewer, so it takes every third of
# these.
SHORT_STEPS = {"iceberg": 7, "latest": 7, "parquet": 7, "delta": 3}
KINDS: dict[str, tuple[str, ...]] = {
    "iceberg": ("--to", "iceberg"),
    "latest": ("--to", "iceberg", "--mode", "latest"),
    "parquet": ("--to", "parquet"),
    "delta": ("--to", "delta"),
}
OF_EXECUTORS = {
    "iceberg": ("write rows", "write dead letters"),
    "latest": ("write rows", "write dead letters", "write tombstones", "write rewritten rows"),
    "parquet": ("stage rows", "stage dead letters"),
    "delta": ("stage rows", "stage dead letters"),
}
State = tuple[list[Any], list[Any]]
KilledRun = Callable[[Point], None]


def put(tier: Tier, fields: str) -> None:
    """Add values with these fields, tombstones and dead letters, of keys that recur."""
    for owner in (OWNER, OTHER):
        start = sum(partition == owner.partition for _, partition, _ in tier.records)
        records = [_record(start + number, fields) for number in range(30)]
        batches = [build_batch(records[at : at + 10], base_offset=start + at) for at in (0, 10, 20)]
        tier.maker.tier(owner, batches)
        for offset, record in enumerate(records, start):
            tier.records[owner.topic, owner.partition, offset] = record


def _record(offset: int, fields: str) -> NewRecord:
    value: bytes | None = json.dumps(dict.fromkeys(fields, offset)).encode()
    if offset % 7 == 3:
        value = None if offset % 2 else b"{"
    return NewRecord(1_700_000_000_000 + offset, b"key-%d" % (offset % 11), value)


class Table:
    """A topic's table, with a kept state that `set_back` restores."""

    def __init__(self, kind: str, tier: Tier, folder: Path) -> None:
        self.kind = kind
        self.tier = tier
        self.lake = folder / "lake"
        self.options = (*KINDS[kind], "--value", "json", "--warehouse", str(self.lake))
        self._kept = folder / "kept"

    def keep(self) -> None:
        shutil.copytree(self.lake, self._kept)

    def set_back(self) -> None:
        shutil.rmtree(self.lake, ignore_errors=True)
        if self._kept.exists():
            shutil.copytree(self._kept, self.lake)

    def run(self) -> State:
        run_table("prices", self.tier.folder, *self.options)
        return self.state()

    def state(self) -> State:
        """The rows and the dead letters."""
        rows, dead = (self._rows(end) for end in ("", "_dead_letters"))
        return rows, dead

    def _rows(self, suffix: str) -> list[Any]:
        if self.kind == "parquet":
            files = (self.lake / f"prices{suffix}").glob("*.parquet")
            found = [row for file in files for row in dataset.dataset(file).to_table().to_pylist()]
        elif self.kind == "delta":
            found = DeltaTable(self.lake / f"prices{suffix}").to_pyarrow_table().to_pylist()
        else:
            table = load_table(self.lake, f"kafka.prices{suffix}")
            found = table.scan().to_arrow().to_pylist()
        # Files in a folder have the columns of their run.
        texts = [json.dumps(_without_nulls(row), default=str, sort_keys=True) for row in found]
        return sorted(texts)


def _without_nulls(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {name: _without_nulls(each) for name, each in value.items() if each is not None}


def check_kills(
    table: Table, points: Callable[[Counter[str]], Sequence[Point]], kill: KilledRun
) -> int:
    """Kill a run that makes the table, then one that adds to it, at each point; return the
    number of kills.
    """
    kills = 0
    for stage in ("xy", "yz"):
        put(table.tier, stage)
        watch = raising(None)
        with pytest.MonkeyPatch.context() as patched:
            install(watch, patched.setattr)
            expected = table.run()
        for point in points(watch.counts):
            table.set_back()
            kill(point)
            assert table.run() == expected, point
            kills += 1
        table.set_back()
        assert table.run() == expected
        if stage == "xy":
            table.keep()
    return kills


@pytest.mark.slow
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.nightly if kind in ("latest", "delta") else ())
        for kind in KINDS
    ],
)
def test_run_that_ends_at_a_write_of_the_driver(kind: str, tier: Tier, tmp_path: Path) -> None:
    table = Table(kind, tier, tmp_path)

    def kill(point: Point) -> None:
        with pytest.MonkeyPatch.context() as patched:
            install(raising(point), patched.setattr)
            with pytest.raises(Killed):
                run_table("prices", tier.folder, *table.options)

    def some(counts: Counter[str]) -> list[Point]:
        return every(counts)[len(kind) % 3 :: SHORT_STEPS[kind]]

    assert check_kills(table, some, kill) > 3


def every(counts: Counter[str]) -> list[Point]:
    """The points before and after the first and the last write of each name."""
    return [
        Point(name, side, number)
        for name, count in sorted(counts.items())
        for number in sorted({1, count})
        for side in SIDES
    ]


@pytest.mark.soak
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("kind", KINDS)
def test_process_killed_at_every_write(kind: str, tier: Tier, tmp_path: Path) -> None:
    table = Table(kind, tier, tmp_path)
    points: list[Point] = []

    def kill(point: Point) -> None:
        points.append(point)
        arguments = ["pipeline", "table", "prices", "--path", str(tier.folder), *table.options]
        done = subprocess.run(
            [sys.executable, "-m", "tests.support.crashing_table", *map(str, point), *arguments],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT), "SPARK_LOCAL_IP": "127.0.0.1"},
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == -signal.SIGKILL, (point, done.stderr[-2000:])

    def all_of(counts: Counter[str]) -> list[Point]:
        own = [Point(name, side) for name in OF_EXECUTORS[kind] for side in SIDES]
        return own + every(counts)

    kills = check_kills(table, all_of, kill)
    sys.stderr.write(f"{kind}: {kills} kills at {len({each.name for each in points})} writes\n")
