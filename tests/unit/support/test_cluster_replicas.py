"""The checks of a cluster at rest: which differences are anomalies."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path

import pytest

from isotherm.record.batch import build_batch
from isotherm.testing.sim_clock import SimClock
from isotherm.types import TopicPartition
from tests.support.cluster.replicas import (
    LocalLog,
    differences,
    read_log,
    settled_logs,
    vanished_reads,
)
from tests.support.correctness.history import Kind, Operation, Outcome, Poll, Read

PLACE = TopicPartition("events", 0)
FINAL = 9


def poll(process: int, *values: int) -> Operation:
    """A poll that read these values from offset 0 on."""
    reads = tuple(Read(PLACE, offset, value) for offset, value in enumerate(values))
    return Operation(process, Kind.POLL, Outcome.OK, (Poll(reads),))


def name(base_offset: int) -> str:
    return f"{base_offset:020d}.log"


def log(*segments: Iterable[int], start: int, value: bytes = b"v") -> LocalLog:
    """A log whose segments have one batch for each offset, with one record. An empty segment begins
    at `start`."""
    files = {}
    for offsets in segments:
        batches = [
            bytes(build_batch([(0, None, value, ())], base_offset=offset)) for offset in offsets
        ]
        files[name(min(offsets, default=start))] = b"".join(batches)
    return LocalLog(files)


def test_replicas_are_equal_from_the_later_start_on() -> None:
    whole = log(range(4), range(4, 6), start=0)
    later = log(range(4, 6), start=4)
    assert list(differences({1: whole, 2: later, 3: whole})) == []
    # Only the active segment is left, and it has no batches yet.
    empty = log(range(0), start=6)
    assert empty.start == 6
    assert list(differences({1: whole, 2: empty})) == []


def test_replicas_that_differ_or_end_at_other_offsets() -> None:
    whole = log(range(6), start=0)
    size = len(whole.batches[0])
    shorter, other = log(range(5), start=0), log(range(6), start=0, value=b"V")
    assert list(differences({1: whole, 2: shorter, 3: other})) == [
        f"offset=5 brokers=1,2 bytes=[{size}, 0] from=0",
        f"offset=0 brokers=1,3 bytes=[{size}, {size}] from=0",
    ]
    # An empty log that ends earlier does not count as one that begins later.
    assert len([*differences({1: whole, 2: log(range(0), start=3)})]) == 1


def write(folder: Path, content: LocalLog) -> Path:
    folder.mkdir()
    for each, data in content.files.items():
        (folder / each).write_bytes(data)
    return folder


def test_log_is_read_again_when_a_segment_vanishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "t-0", log([0, 1], [2, 3], [4, 5], start=0))
    read_bytes = Path.read_bytes

    def read_and_remove(path: Path) -> bytes:
        content = read_bytes(path)
        if path.name == name(0):  # retention removes the first two while the first is read
            path.unlink()
            (folder / name(2)).unlink()
        return content

    monkeypatch.setattr(Path, "read_bytes", read_and_remove)
    found = read_log(folder)
    assert (found.start, sorted(found.batches)) == (4, [4, 5])


class Looking(SimClock):
    """A clock that replaces the files of a folder at each wait."""

    def __init__(self, folder: Path, *later: LocalLog) -> None:
        super().__init__()
        self._folder = folder
        self._later = list(later)
        self.waits = 0

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        self.waits += 1
        if self._later:
            for path in self._folder.iterdir():
                path.unlink()
            for each_name, data in self._later.pop(0).files.items():
                (self._folder / each_name).write_bytes(data)
        self.advance(1000)
        return False


def test_difference_that_passes_is_none(tmp_path: Path) -> None:
    whole = log([0, 1], [2, 3], start=0)
    folders = {1: write(tmp_path / "1", whole), 2: write(tmp_path / "2", log([0, 1], start=0))}
    clock = Looking(folders[2], log([0, 1], [2], start=0), log([2, 3], start=2))
    logs, found = settled_logs(folders, clock, timeout_s=60)
    assert (found, clock.waits) == ([], 2)
    assert {each: logs[each].start for each in logs} == {1: 0, 2: 2}


def test_difference_that_stays_is_reported(tmp_path: Path) -> None:
    whole = log([0, 1], [2, 3], start=0)
    other = log([2, 3], start=2, value=b"V")
    folders = {1: write(tmp_path / "1", whole), 2: write(tmp_path / "2", other)}
    # Retention continues in the other replica meanwhile.
    clock = Looking(folders[1], whole, log([2, 3], start=2))
    _, found = settled_logs(folders, clock, timeout_s=60)
    assert [each.partition(" ")[0] for each in found] == ["offset=2"]
    assert clock.waits < 60, "it did not wait for the end"


def test_record_that_was_read_stays() -> None:
    assert list(vanished_reads([poll(1, 4, 5), poll(FINAL, 4, 5, 6)], FINAL)) == []
    gone = list(vanished_reads([poll(1, 4, 5), poll(2, 4, 7), poll(FINAL, 4)], FINAL))
    assert [(each.name, each.detail) for each in gone] == [
        ("vanished-read", "events-0@1 value=5 process=1 now=None"),
        ("vanished-read", "events-0@1 value=7 process=2 now=None"),
    ]
