"""A round of cleaning is stopped at each of its operations on the disk.

The surviving files must be a log of some moment of the round: the records from before, or with
some groups of segments cleaned. No group may be cleaned in half, and no record may be lost or come
back. The next round must then end with the result of an undisturbed one.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from isotherm.log.log_loader import LogCheckpoints
from isotherm.record.batch import Record
from isotherm.testing.sim_clock import SimClock
from isotherm.types import Offset
from tests.support.compacted_log import CONFIG, CompactedLog
from tests.support.crash_fs import CrashFileSystem, SimulatedCrash

SEEDS_PER_OPERATION = 2
GROUPED = replace(CONFIG, internal_segment_bytes=650, segment_index_bytes=1200)
PRODUCER = (7, 0)


def write(log: CompactedLog) -> None:
    """Write groups of one and of several segments; cleaning leaves nothing of some groups' last segments."""
    for step in range(14):
        key, other = "abc"[step % 3], "defghij"[step // 2]
        if step % 5 == 3:
            log.append((key, None), (other, None))
        elif step % 4 == 1:
            log.transact((key, f"{step}"), (other, "x"), producer=PRODUCER)
            log.abort(PRODUCER) if step % 8 == 1 else log.commit(PRODUCER)
        else:
            log.append((key, f"{step}"), (other, "y"))
        if step % 2:
            log.log.roll()
    log.append(*((key, "last") for key in "abcdefgh"))
    log.log.roll()


class Run:
    """The log of `template`, copied and cleaned with a disk that stops at `crash_at`."""

    def __init__(self, template: Path, path: Path, crash_at: int | None, **more: int) -> None:
        self.path = path / "topic-0"
        shutil.copytree(template, self.path)
        self.fs = CrashFileSystem.adopting(path, crash_at)
        self.log: CompactedLog
        self._more = more
        self._is_watched = crash_at is None
        self.moments: list[list[Record]] = []
        """In a run that does not stop: the records at each read and write of the cleaner."""

    def play(self) -> None:
        self.log = reopened(self.path, self.fs, **self._more)
        self._note_moment()
        self.log.clean(first_dirty_offset=0, throttle=lambda _: self._note_moment())
        self.log.log.delete_marked_files(self.log.clock.now_ms() + CONFIG.file_delete_delay_ms)
        self._note_moment()

    def _note_moment(self) -> None:
        if self._is_watched:
            self.moments.append(self.log.records())


def reopened(path: Path, fs: CrashFileSystem, **more: int) -> CompactedLog:
    end_offset = int((path / "end").read_text())
    clock = SimClock()
    clock.advance(CONFIG.delete_retention_ms)
    checkpoints = LogCheckpoints(end_offset, 0, end_offset)
    return CompactedLog(path, config=GROUPED, fs=fs, clock=clock, checkpoints=checkpoints, **more)


@pytest.fixture
def template(tmp_path: Path) -> Path:
    """A log that has been cleaned once, so that tombstones are about to go, and written on."""
    path = tmp_path / "template"
    log = CompactedLog(path, config=GROUPED)
    write(log)
    log.clean()
    write(log)
    end_offset: Offset = log.log.log_end_offset
    log.log.delete_marked_files(log.clock.now_ms() + CONFIG.file_delete_delay_ms)
    log.log.close()
    (path / "end").write_text(str(end_offset))
    return path


@pytest.mark.slow
# With small segments one group may become several: a horizon may make a batch longer.
@pytest.mark.parametrize("segment_size_max", [2**31 - 1, 150])
def test_crash_anywhere_leaves_a_log_of_some_moment(
    tmp_path: Path, template: Path, segment_size_max: int
) -> None:
    whole = Run(template, tmp_path / "whole", None, segment_size_max=segment_size_max)
    whole.play()
    first, last = whole.moments[0], whole.moments[-1]
    assert len({len(moment) for moment in whole.moments}) > 3, "several groups"
    count = whole.fs.operation_count
    assert count > 100
    recovered = set()
    for operation in range(1, count + 1):
        path = tmp_path / f"{operation}"
        run = Run(template, path, operation, segment_size_max=segment_size_max)
        with pytest.raises(SimulatedCrash):
            run.play()
        for seed in range(SEEDS_PER_OPERATION):
            survivor = tmp_path / f"{operation}-{seed}"
            run.fs.crash_clone(random.Random(1000 * operation + seed), path, survivor)
            (survivor / "topic-0" / "end").write_bytes((template / "end").read_bytes())
            records = check_survivor(survivor, whole.moments, segment_size_max)
            recovered.add(whole.moments.index(records))
            shutil.rmtree(survivor)
        shutil.rmtree(path)
    assert recovered >= {whole.moments.index(first), whole.moments.index(last)}


def check_survivor(path: Path, moments: list[list[Record]], segment_size_max: int) -> list[Record]:
    log = reopened(
        path / "topic-0", CrashFileSystem.adopting(path), segment_size_max=segment_size_max
    )
    names = [file.name for file in log.directory.iterdir()]
    assert not [name for name in names if name.endswith((".cleaned", ".swap", ".deleted"))]
    records = log.records()
    assert records in moments
    assert log.log.log_end_offset == int((log.directory / "end").read_text())
    bases = [segment.base_offset for segment in log.log.segments()]
    assert bases == sorted(set(bases))
    log.clean(first_dirty_offset=0)
    assert log.records() == moments[-1]
    log.append(("z", "1"), producer=PRODUCER, sequence=12)  # the producer is known as before
    return records


@pytest.mark.slow
def test_crash_while_a_crash_is_recovered_costs_nothing_either(
    tmp_path: Path, template: Path
) -> None:
    whole = Run(template, tmp_path / "whole", None)
    whole.play()
    for operation in range(30, whole.fs.operation_count, 7):
        path = tmp_path / f"{operation}"
        run = Run(template, path, operation)
        with pytest.raises(SimulatedCrash):
            run.play()
        for second in range(1, 12, 2):
            once = tmp_path / f"{operation}-{second}"
            run.fs.crash_clone(random.Random(operation), path, once)
            (once / "topic-0" / "end").write_bytes((template / "end").read_bytes())
            recovering = CrashFileSystem.adopting(once, crash_at=second)
            try:
                reopened(once / "topic-0", recovering)
            except SimulatedCrash:
                twice = tmp_path / f"{operation}-{second}-again"
                recovering.crash_clone(random.Random(second), once, twice)
                check_survivor(twice, whole.moments, 2**31 - 1)
