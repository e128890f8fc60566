"""The leader epoch cache of a log: look-ups, truncations, and what is stored when."""

from __future__ import annotations

from pathlib import Path

import pytest

from isotherm.errors import CorruptCheckpointError
from isotherm.log import leader_epoch_cache
from isotherm.log.fs import OsFileSystem
from isotherm.log.leader_epoch_cache import LeaderEpochCache
from isotherm.segment.leader_epoch_checkpoint import EpochEntry
from tests.support.faulty_fs import FaultyFileSystem

Entries = list[tuple[int, int]]
LOG_END = 1000


def cache_of(path: Path, entries: Entries) -> LeaderEpochCache:
    cache = LeaderEpochCache(OsFileSystem(), path / "leader-epoch-checkpoint")
    for epoch, start_offset in entries:
        cache.assign(epoch, start_offset)
    assert list(cache.entries) == entries
    cache.flush(LOG_END)
    return cache


def stored(path: Path) -> Entries:
    return list(LeaderEpochCache(OsFileSystem(), path / "leader-epoch-checkpoint").entries)


@pytest.mark.parametrize(
    ("assigned", "expected"),
    [
        ((3, 30), [(0, 0), (1, 10), (2, 20), (3, 30)]),
        ((2, 25), [(0, 0), (1, 10), (2, 20)]),
        ((2, 20), [(0, 0), (1, 10), (2, 20)]),
        ((2, 15), [(0, 0), (1, 10), (2, 15)]),
        ((3, 20), [(0, 0), (1, 10), (3, 20)]),
        ((3, 10), [(0, 0), (3, 10)]),
        ((1, 30), [(0, 0), (1, 30)]),
        ((3, 0), [(3, 0)]),
    ],
)
def test_assign_drops_entries_that_contradict(
    tmp_path: Path, assigned: tuple[int, int], expected: Entries
) -> None:
    cache = cache_of(tmp_path, [(0, 0), (1, 10), (2, 20)])
    cache.assign(*assigned)
    assert list(cache.entries) == expected
    cache.flush(LOG_END)
    assert stored(tmp_path) == expected


def test_epoch_is_stored_once_its_records_are_to_be_durable(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    cache = LeaderEpochCache(fs, tmp_path / "leader-epoch-checkpoint")
    cache.assign(0, 0)
    cache.assign(1, 10)
    assert stored(tmp_path) == []
    cache.flush(10)
    assert stored(tmp_path) == [(0, 0)]
    cache.flush(11)
    cache.assign(2, 11)
    cache.flush(11)
    assert stored(tmp_path) == [(0, 0), (1, 10)]
    assert fs.sync_counts == {tmp_path / "leader-epoch-checkpoint.tmp": 2, tmp_path: 2}


def test_checkpoint_file_is_kafkas_text(tmp_path: Path) -> None:
    cache_of(tmp_path, [(0, 0), (1, 4)])
    assert (tmp_path / "leader-epoch-checkpoint").read_bytes() == b"0\n2\n0 0\n1 4\n"


@pytest.mark.parametrize(
    ("offset", "epoch"), [(4, None), (5, 2), (9, 2), (10, 3), (19, 3), (20, 7), (10**9, 7)]
)
def test_epoch_for_offset_is_the_last_that_starts_at_or_below(
    tmp_path: Path, offset: int, epoch: int | None
) -> None:
    assert cache_of(tmp_path, [(2, 5), (3, 10), (7, 20)]).epoch_for_offset(offset) == epoch


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        (-1, (-1, -1)),
        (1, (1, 5)),
        (2, (2, 10)),
        (3, (3, 20)),
        (5, (3, 20)),
        (7, (7, 100)),
        (8, (-1, -1)),
    ],
)
def test_end_offset_for_an_epoch(tmp_path: Path, epoch: int, expected: tuple[int, int]) -> None:
    cache = cache_of(tmp_path, [(2, 5), (3, 10), (7, 20)])
    assert cache.end_offset_for(epoch, 100) == expected


def test_end_offset_of_an_empty_cache_is_undefined(tmp_path: Path) -> None:
    assert cache_of(tmp_path, []).end_offset_for(0, 100) == (-1, -1)


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (0, [(2, 5), (3, 10), (7, 20)]),
        (5, [(2, 5), (3, 10), (7, 20)]),
        (9, [(2, 9), (3, 10), (7, 20)]),
        (10, [(3, 10), (7, 20)]),
        (15, [(3, 15), (7, 20)]),
        (25, [(7, 25)]),
    ],
)
def test_truncation_from_the_start_keeps_the_epoch_it_cuts(
    tmp_path: Path, offset: int, expected: Entries
) -> None:
    cache = cache_of(tmp_path, [(2, 5), (3, 10), (7, 20)])
    cache.truncate_from_start(offset)
    assert list(cache.entries) == expected
    cache.flush(100)
    assert stored(tmp_path) == [(2, 5), (3, 10), (7, 20)]
    cache.forget_below(offset)
    cache.flush(100)
    assert stored(tmp_path) == expected


def test_flush_halfway_through_a_cut_stores_each_epoch_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention flushes while another thread raises the log start."""
    cache = cache_of(tmp_path, [(2, 5), (3, 10), (7, 20)])
    cache.assign(8, 30)

    def flush_halfway(epoch: int, start_offset: int) -> EpochEntry:
        cache.flush()
        return EpochEntry(epoch, start_offset)

    monkeypatch.setattr(leader_epoch_cache, "EpochEntry", flush_halfway)
    cache.truncate_from_start(12)
    assert list(cache.entries) == [(3, 12), (7, 20), (8, 30)]
    monkeypatch.undo()
    assert stored(tmp_path) == [(2, 5), (3, 10), (7, 20), (8, 30)]


def test_epochs_are_stored_until_the_log_start_that_cut_them_is_durable(tmp_path: Path) -> None:
    """A crash takes the log start back to 6. The records from there on still need their epochs."""
    cache = cache_of(tmp_path, [(2, 5), (3, 10), (7, 20)])
    cache.truncate_from_start(6)
    cache.truncate_from_start(12)
    cache.assign(8, 30)
    cache.forget_below(6)
    cache.flush(100)
    assert stored(tmp_path) == [(2, 5), (3, 10), (7, 20), (8, 30)]
    cache.truncate_from_end(30)
    assert list(cache.entries) == [(3, 12), (7, 20)]
    assert stored(tmp_path) == [(2, 5), (3, 10), (7, 20)]
    cache.truncate_from_end(10)
    assert list(cache.entries) == []
    assert stored(tmp_path) == [(2, 5)]
    cache.clear()
    assert stored(tmp_path) == []


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        (5, []),
        (6, [(2, 5)]),
        (10, [(2, 5)]),
        (20, [(2, 5), (3, 10)]),
        (21, [(2, 5), (3, 10), (7, 20)]),
    ],
)
def test_truncation_from_the_end_drops_epochs_that_start_there(
    tmp_path: Path, offset: int, expected: Entries
) -> None:
    cache = cache_of(tmp_path, [(2, 5), (3, 10), (7, 20)])
    cache.truncate_from_end(offset)
    assert list(cache.entries) == stored(tmp_path) == expected


def test_earliest_and_latest(tmp_path: Path) -> None:
    cache = cache_of(tmp_path, [(2, 5), (3, 10)])
    assert (cache.earliest, cache.latest) == ((2, 5), (3, 10))
    cache.clear()
    assert (cache.earliest, cache.latest, stored(tmp_path)) == (None, None, [])


def test_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n")
    with pytest.raises(CorruptCheckpointError):
        LeaderEpochCache(OsFileSystem(), tmp_path / "leader-epoch-checkpoint")


def test_epochs_below_a_durable_log_start_are_forgotten_though_it_has_moved_on(
    tmp_path: Path,
) -> None:
    cache = cache_of(tmp_path, [(2, 5), (3, 10), (7, 20)])
    cache.truncate_from_start(12)
    cache.forget_below(11)
    cache.flush(100)
    assert stored(tmp_path) == [(2, 5), (3, 10), (7, 20)]
    cache.forget_below(15)
    cache.flush(100)
    assert stored(tmp_path) == [(3, 12), (7, 20)]


def test_truncation_that_cannot_be_stored_does_not_take_effect(tmp_path: Path) -> None:
    """A crash would bring back the epochs that the log no longer has."""
    fs = FaultyFileSystem()
    cache = LeaderEpochCache(fs, tmp_path / "leader-epoch-checkpoint")
    for epoch, start_offset in ((2, 5), (3, 10)):
        cache.assign(epoch, start_offset)
    cache.flush(LOG_END)
    fs.fail(tmp_path)
    with pytest.raises(OSError, match="disk"):
        cache.truncate_from_end(10)
    assert list(cache.entries) == [(2, 5), (3, 10)]
    fs.heal()
    cache.truncate_from_end(10)
    assert list(cache.entries) == stored(tmp_path) == [(2, 5)]


def test_truncation_that_changes_nothing_writes_nothing(tmp_path: Path) -> None:
    fs = FaultyFileSystem()
    cache = LeaderEpochCache(fs, tmp_path / "leader-epoch-checkpoint")
    cache.assign(2, 5)
    cache.flush(LOG_END)
    writes = fs.sync_counts.total()
    cache.truncate_from_end(6)
    cache.flush(LOG_END)
    assert fs.sync_counts.total() == writes


def test_restored_epochs_are_stored_at_once(tmp_path: Path) -> None:
    cache = cache_of(tmp_path, [(2, 5)])
    cache.restore([EpochEntry(0, 0), EpochEntry(4, 9)])
    assert list(cache.entries) == stored(tmp_path) == [(0, 0), (4, 9)]


def test_restored_epochs_that_the_cache_has_already_are_stored_too(tmp_path: Path) -> None:
    """The file has epochs of durable records only. An epoch of the remote tier must not wait."""
    cache = cache_of(tmp_path, [(0, 0)])
    cache.assign(4, 9)
    cache.restore([EpochEntry(0, 0), EpochEntry(4, 9)])
    assert stored(tmp_path) == [(0, 0), (4, 9)]


def test_epochs_that_do_not_rise_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    for text in ("0\n2\n1 0\n0 5\n", "0\n2\n0 5\n1 4\n"):
        path.write_text(text)
        with pytest.raises(CorruptCheckpointError, match="do not rise"):
            LeaderEpochCache(OsFileSystem(), path)


def test_discarded_checkpoint_is_replaced_by_the_first_flush(tmp_path: Path) -> None:
    path = tmp_path / "leader-epoch-checkpoint"
    path.write_text("rubbish")
    cache = LeaderEpochCache(OsFileSystem(), path, discard=True)
    cache.flush(LOG_END)
    assert stored(tmp_path) == []
