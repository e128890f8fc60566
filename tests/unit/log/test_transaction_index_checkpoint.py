"""The checkpoint of transaction indexes: what is stored, and which index differs from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import google_crc32c
import pytest

from isotherm.log.fs import OsFileSystem
from isotherm.log.log_segment import LogSegment
from isotherm.log.transaction_index_checkpoint import TransactionIndexCheckpoint
from isotherm.segment.file_names import TRANSACTION_INDEX_CHECKPOINT_NAME
from isotherm.segment.offset_index import Buffer


class Segment:
    """A closed segment that counts the reads of its index."""

    def __init__(self, base_offset: int, index: bytes = b"") -> None:
        self.base_offset = base_offset
        self.index = index
        self.read_count = 0

    @property
    def transaction_index(self) -> bytes:
        self.read_count += 1
        return self.index


class CountingFileSystem(OsFileSystem):
    def __init__(self) -> None:
        self.written = 0

    def write_atomically(self, path: Path, data: Buffer) -> None:
        self.written += 1
        super().write_atomically(path, data)


def closed(*segments: Segment) -> list[LogSegment]:
    return [cast("LogSegment", segment) for segment in segments]


def lines(directory: Path) -> list[str]:
    return (directory / TRANSACTION_INDEX_CHECKPOINT_NAME).read_text().splitlines()


def line(segment: Segment) -> str:
    return f"{segment.base_offset} {len(segment.index)} {google_crc32c.value(segment.index)}"


def opened(directory: Path, fs: OsFileSystem | None = None) -> TransactionIndexCheckpoint:
    return TransactionIndexCheckpoint(fs or OsFileSystem(), directory)


def test_stored_are_the_indexes_with_entries_by_base_offset(tmp_path: Path) -> None:
    first, without, last = Segment(5, b"first"), Segment(50), Segment(500, b"last")
    checkpoint = opened(tmp_path)
    checkpoint.follow(closed(last, without, first))
    checkpoint.store()
    assert lines(tmp_path) == ["0", "2", line(first), line(last)]
    again = opened(tmp_path)
    assert again.fault(5, b"first") == again.fault(500, b"last") == again.fault(50, b"any") == ""


@pytest.mark.parametrize(("found", "size"), [(b"firs", 4), (b"", 0), (b"First", 5), (b"first!", 6)])
def test_index_that_differs_from_the_stored_one_is_described(
    tmp_path: Path, found: bytes, size: int
) -> None:
    segment = Segment(5, b"first")
    checkpoint = opened(tmp_path)
    checkpoint.follow(closed(segment))
    checkpoint.store()
    fault = opened(tmp_path).fault(5, found)
    crc = google_crc32c.value(found) if found else 0
    assert f"size={size} expected_size=5 crc={crc} " in fault
    assert fault.endswith(f"expected_crc={google_crc32c.value(b'first')}")


def test_what_is_stored_counts_and_not_what_is_followed(tmp_path: Path) -> None:
    segment = Segment(5, b"first")
    checkpoint = opened(tmp_path)
    checkpoint.follow(closed(segment))
    assert checkpoint.fault(5, b"other") == ""
    checkpoint.store()
    assert checkpoint.fault(5, b"other") != ""


def test_index_of_a_known_segment_is_read_once(tmp_path: Path) -> None:
    known, new = Segment(5, b"first"), Segment(50, b"new")
    checkpoint = opened(tmp_path)
    for _ in range(3):
        checkpoint.follow(closed(known))
    known.index = b"rebuilt"
    checkpoint.follow(closed(known, new))
    assert (known.read_count, new.read_count) == (1, 1)
    checkpoint.read_again(closed(known)[0])
    checkpoint.store()
    assert lines(tmp_path)[2:] == [line(known), line(new)]
    assert (known.read_count, new.read_count) == (2, 1)


def test_segments_of_a_loaded_log_are_read_if_they_have_an_index(tmp_path: Path) -> None:
    with_index, without = Segment(5, b"first"), Segment(50, b"not looked at")
    checkpoint = opened(tmp_path)
    checkpoint.begin(closed(with_index, without), [5])
    checkpoint.store()
    assert lines(tmp_path)[2:] == [line(with_index)]
    assert without.read_count == 0


def test_file_is_written_when_its_content_has_changed(tmp_path: Path) -> None:
    fs = CountingFileSystem()
    checkpoint = opened(tmp_path, fs)
    checkpoint.follow(closed(Segment(0)))
    checkpoint.store()
    assert fs.written == 0, "no index has entries"
    first, second = Segment(5, b"first"), Segment(50, b"second")
    for segments in ([first], [first], [first, second], [second], [second], []):
        checkpoint.follow(closed(*segments))
        checkpoint.store()
    assert fs.written == 4
    assert lines(tmp_path) == ["0", "0"]
    again = opened(tmp_path, fs)
    again.store()
    assert fs.written == 4


@pytest.mark.parametrize("damage", [b"", b"0\n1\n5 5", b"0\n1\n5 5 7 9\n", b"0\n2\n5 5 7\n", b"x"])
def test_damaged_file_counts_as_lost(
    tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / TRANSACTION_INDEX_CHECKPOINT_NAME).write_bytes(damage)
    checkpoint = opened(tmp_path)
    assert checkpoint.fault(5, b"any") == ""
    records: list[Any] = [record for record in caplog.records if record.levelname == "WARNING"]
    assert len(records) == 1
    assert TRANSACTION_INDEX_CHECKPOINT_NAME in records[0].getMessage()


def test_missing_file_is_no_damage(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert opened(tmp_path).fault(5, b"any") == ""
    assert not caplog.records
