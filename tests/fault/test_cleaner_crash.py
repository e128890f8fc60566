"""A round of cleaning is stopped at each of its operations on the disk.

The surviving files must be a log of some moment of the round: the records from before, or with
some groups of segments cleaned. No group may be cleaned in half, and no record may be lost or come
back. The next round must then end with the result of an undisturbed one.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from isotherm.log.log_loader import LogCheckpoints
from isotherm.record.batch import Record
from isotherm.testing.sim_clock import SimClock
from isotherm.types import Offset
from tests.support.compacted_log import CONFIG, CompactedLog
from tests.support.crash_fs import CrashFileSystem, Files, write_files
from tests.support.memory_folder import memory_folder

SEEDS_PER_OPERATION = 2
GROUPED = replace(CONFIG, internal_segment_bytes=650, segment_index_bytes=1200)
PRODUCER = (7, 0)


def write(log: CompactedLog) -> None:
    """Write groups of one and of several segments; cleaning leaves nothing of some groups' last
    segments.
    """
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
    """The log of `template`, copied and cleaned. At each operation on the disk the machine could
    stop: `on_operation` may take what the disk would show then."""

    def __init__(
        self,
        template: Path,
        path: Path,
        on_operation: Callable[[Run, int], None] = lambda run, number: None,
        **more: int,
    ) -> None:
        self._path = path
        self._directory = path / "topic-0"
        self._more = more
        shutil.copytree(template, self._directory)
        self.fs = CrashFileSystem.adopting(
            path, on_operation=lambda number: on_operation(self, number)
        )
        self.log: CompactedLog
        self.moments: list[list[Record]] = []
        """The records at each read and write of the cleaner, where they differ from the last
        ones.
        """

    def play(self) -> None:
        self.log = reopened(self._directory, self.fs, **self._more)
        self._note_moment()
        self.log.clean(first_dirty_offset=0, throttle=lambda _: self._note_moment())
        self.log.log.delete_marked_files(self.log.clock.now_ms() + CONFIG.file_delete_delay_ms)
        self._note_moment()

    def survivors(self, seed: int) -> Files:
        return self.fs.survivors(random.Random(seed), self._path)

    def _note_moment(self) -> None:
        records = self.log.records()
        if not self.moments or records != self.moments[-1]:
            self.moments.append(records)


def reopened(path: Path, fs: CrashFileSystem, **more: int) -> CompactedLog:
    end_offset = int((path / "end").read_text())
    clock = SimClock()
    clock.advance(CONFIG.delete_retention_ms)
    checkpoints = LogCheckpoints(end_offset, 0, end_offset)
    return CompactedLog(path, config=GROUPED, fs=fs, clock=clock, checkpoints=checkpoints, **more)


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """In memory: `CrashFileSystem` decides what a disk would keep."""
    with memory_folder() as folder:
        yield folder


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
    disks: dict[Files, int] = {}
    """What a disk shows after a crash, once each, and the operation that was interrupted first."""

    def stop(run: Run, operation: int) -> None:
        for seed in range(SEEDS_PER_OPERATION):
            disks.setdefault(run.survivors(1000 * operation + seed), operation)

    whole = Run(template, tmp_path / "whole", stop, segment_size_max=segment_size_max)
    whole.play()
    assert len({len(moment) for moment in whole.moments}) > 3, "several groups"
    assert whole.fs.operation_count > 100
    recovered = []
    for number, (files, operation) in enumerate(disks.items()):
        survivor = tmp_path / f"{operation}-{number}"
        write_survivor(files, survivor, template)
        recovered.append(check_survivor(survivor, whole.moments, segment_size_max))
        shutil.rmtree(survivor)
    assert whole.moments[0] in recovered
    assert whole.moments[-1] in recovered


def write_survivor(files: Files, path: Path, template: Path) -> None:
    write_files(files, path)
    (path / "topic-0" / "end").write_bytes((template / "end").read_bytes())


def check_survivor(path: Path, moments: list[list[Record]], segment_size_max: int) -> list[Record]:
    """Recover the log, and return its records."""
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
    disks: dict[Files, int] = {}

    def stop(run: Run, operation: int) -> None:
        if operation in range(30, 10_000, 7):
            disks.setdefault(run.survivors(operation), operation)

    whole = Run(template, tmp_path / "whole", stop)
    whole.play()
    again: dict[Files, None] = {}
    for files, operation in disks.items():
        once = tmp_path / f"{operation}"
        write_survivor(files, once, template)
        again.update(dict.fromkeys(disks_after_a_stopped_recovery(once)))
    assert len(again) > 10
    for number, files in enumerate(again):
        twice = tmp_path / f"again-{number}"
        write_survivor(files, twice, template)
        check_survivor(twice, whole.moments, 2**31 - 1)


def disks_after_a_stopped_recovery(path: Path) -> list[Files]:
    """What the disk may show when the machine stops again while the log in `path` is recovered."""
    found: list[Files] = []

    def stop(operation: int) -> None:
        if operation in range(1, 12, 2):
            found.append(fs.survivors(random.Random(operation), path))

    fs = CrashFileSystem.adopting(path, on_operation=stop)
    reopened(path / "topic-0", fs)
    return found
