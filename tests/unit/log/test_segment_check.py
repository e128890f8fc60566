"""What the check of a flushed segment finds at its end: damage of its log, or of its indexes
alone."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from isotherm.errors import CorruptLogError
from isotherm.log import batch_scan
from isotherm.log.file_cache import FileCache
from isotherm.log.fs import OsFileSystem
from isotherm.log.log_segment import LogSegment
from isotherm.log.segment_check import CheckedSegment, check_segment
from isotherm.record.batch import build_batch
from tests.support.filled_log import BATCH_SIZE, T0, fill

FS = OsFileSystem()
OFFSET_ENTRY, TIME_ENTRY = 8, 12


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A log whose first segment has offsets 0 to 4, and index entries of 2 and 4."""
    fill(tmp_path / "topic-0").close()
    return tmp_path / "topic-0"


def checked(
    directory: Path, following: int | None = 5, known_end: int | None = 5
) -> CheckedSegment:
    segment = LogSegment(FileCache(FS), directory, 0, now_ms=0)
    return check_segment(FS, segment, following, known_end)


def path(directory: Path, suffix: str) -> Path:
    return directory / f"{0:020d}.{suffix}"


def change(directory: Path, suffix: str, change: Callable[[bytes], bytes]) -> None:
    file = path(directory, suffix)
    file.write_bytes(change(file.read_bytes()))


def test_indexes_are_as_the_test_thinks(directory: Path) -> None:
    assert path(directory, "index").read_bytes() == struct.pack(
        ">iiii", 2, 2 * BATCH_SIZE, 4, 4 * BATCH_SIZE
    )
    assert path(directory, "timeindex").read_bytes() == struct.pack(">qiqi", T0 + 2, 2, T0 + 4, 4)


@pytest.mark.parametrize("following", [5, 6, None])
def test_segment_as_it_was_written_has_no_fault(directory: Path, following: int | None) -> None:
    assert checked(directory, following) == (5, "")
    assert checked(directory, following, None) == (5, "")


def test_log_that_overlaps_the_next_segment_is_damaged(directory: Path) -> None:
    with pytest.raises(CorruptLogError, match="next_offset=5 following_base_offset=4"):
        checked(directory, 4)


def retold(entry: int, size: int, *fields: int) -> Callable[[bytes], bytes]:
    """An index with the fields of another entry in place of the one with this number."""
    layout = ">ii" if size == OFFSET_ENTRY else ">qi"
    return lambda data: (
        data[: entry * size] + struct.pack(layout, *fields) + data[(entry + 1) * size :]
    )


@pytest.mark.parametrize(
    ("suffix", "change_of", "fault"),
    [
        ("index", lambda data: data[:-1], "ends within an entry"),
        ("timeindex", lambda data: data[:-1], "ends within an entry"),
        ("index", retold(1, OFFSET_ENTRY, 3, 4 * BATCH_SIZE), "another batch offset=3 found=4"),
        ("index", retold(1, OFFSET_ENTRY, 4, 5 * BATCH_SIZE + 1), "position beyond the log"),
        ("index", retold(1, OFFSET_ENTRY, 4, 5 * BATCH_SIZE), "last batch does not end"),
        ("index", retold(1, OFFSET_ENTRY, 4, -1), "position beyond the log"),
        ("timeindex", lambda data: data[:TIME_ENTRY], "ends too early"),
        ("timeindex", lambda data: b"", "ends too early"),
        ("timeindex", retold(1, TIME_ENTRY, T0 + 3, 4), "ends too early"),
        ("timeindex", retold(1, TIME_ENTRY, T0 + 4, -1), "offset=-1 next_offset=5"),
    ],
)
def test_index_that_does_not_fit_the_log_is_a_fault_of_the_index(
    directory: Path, suffix: str, change_of: Callable[[bytes], bytes], fault: str
) -> None:
    change(directory, suffix, change_of)
    for following, known_end in ((5, 5), (None, None)):
        found = checked(directory, following, known_end)
        assert found.next_offset == 5
        assert fault in found.index_fault


def test_time_index_beyond_the_log_counts_unless_the_log_is_known_to_end_there(
    directory: Path,
) -> None:
    change(directory, "timeindex", retold(1, TIME_ENTRY, T0 + 4, 5))
    found = checked(directory, 5, 5)
    assert found.next_offset == 5
    assert "offset=5 next_offset=5" in found.index_fault
    with pytest.raises(CorruptLogError, match="first_lost_offset=5 indexed_offset=5"):
        checked(directory, None, None)


@pytest.mark.parametrize(
    ("suffix", "kept"), [("index", OFFSET_ENTRY), ("index", 0), ("timeindex", None)]
)
def test_index_with_fewer_entries_leads_to_the_end_all_the_same(
    directory: Path, suffix: str, kept: int | None
) -> None:
    """The log is read from the last entry on. A time index may have a later entry of its own."""
    if kept is None:
        change(directory, suffix, lambda data: data[TIME_ENTRY:])
    else:
        change(directory, suffix, lambda data: data[:kept])
    assert checked(directory) == (5, "")


def test_index_that_is_missing_is_a_fault(directory: Path) -> None:
    for suffix in ("index", "timeindex"):
        data = path(directory, suffix).read_bytes()
        path(directory, suffix).unlink()
        found = checked(directory)
        assert (found.next_offset, "index is missing" in found.index_fault) == (5, True)
        path(directory, suffix).write_bytes(data)


@pytest.mark.parametrize("batches", [3, 4])
def test_log_that_ends_before_its_indexes_is_damaged(directory: Path, batches: int) -> None:
    """The cut is between two batches: nothing but an index shows it."""
    change(directory, "log", lambda data: data[: batches * BATCH_SIZE])
    for following, known_end in ((5, 5), (None, None), (5, batches + 1)):
        with pytest.raises(CorruptLogError, match=f"first_lost_offset={batches} indexed_offset=4"):
            checked(directory, following, known_end)
    path(directory, "index").unlink()
    with pytest.raises(CorruptLogError, match=f"first_lost_offset={batches} indexed_offset=4"):
        checked(directory)
    path(directory, "timeindex").unlink()
    assert checked(directory).next_offset == batches


def test_index_beyond_what_the_log_is_known_to_have_is_wrong_itself(directory: Path) -> None:
    change(directory, "log", lambda data: data[: 3 * BATCH_SIZE])
    assert checked(directory, 5, 3).next_offset == 3
    # Its entry of offset 4 cannot be of this segment.
    assert checked(directory, 4, None).next_offset == 3


@pytest.mark.parametrize("cut", [1, BATCH_SIZE - 1])
def test_log_that_ends_within_a_batch_is_damaged(directory: Path, cut: int) -> None:
    change(directory, "log", lambda data: data[:-cut])
    with pytest.raises(CorruptLogError, match=f"position={4 * BATCH_SIZE} first_lost_offset=4"):
        checked(directory)


def test_log_with_more_at_its_end_is_damaged(directory: Path) -> None:
    change(directory, "log", lambda data: data + b"\0")
    with pytest.raises(CorruptLogError, match=f"position={5 * BATCH_SIZE} first_lost_offset=5"):
        checked(directory)


def test_first_batch_of_several_records_needs_no_entry(tmp_path: Path) -> None:
    batch = build_batch([(T0, b"k", b"v", ())] * 3, base_offset=0)
    (tmp_path / f"{0:020d}.log").write_bytes(batch)
    (tmp_path / f"{0:020d}.index").write_bytes(b"")
    (tmp_path / f"{0:020d}.timeindex").write_bytes(struct.pack(">qi", T0, 2))
    assert checked(tmp_path, 3, 3) == (3, "")


def test_log_is_read_in_full_however_much_is_read_at_once(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_scan, "RECOVERY_READ_SIZE", 2 * BATCH_SIZE + 10)
    path(directory, "index").unlink()
    assert checked(directory).next_offset == 5
    change(
        directory, "log", lambda data: data[: 4 * BATCH_SIZE - 1] + b"!" + data[4 * BATCH_SIZE :]
    )
    with pytest.raises(CorruptLogError, match=f"file_position={3 * BATCH_SIZE}"):
        checked(directory)
