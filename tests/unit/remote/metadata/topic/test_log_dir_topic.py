"""The metadata topic read from a log directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from isotherm.errors import CorruptLogError
from isotherm.record.batch import NewRecord, build_batch
from isotherm.remote.metadata.topic.log_dir_topic import LogDirMetadataTopic
from isotherm.types import REMOTE_LOG_METADATA_TOPIC

LARGE = b"v" * (3 * 1024 * 1024)


def batch(base_offset: int, value: bytes) -> bytes:
    return bytes(build_batch([NewRecord(1, b"k", value)], base_offset=base_offset))


def log_dir(root: Path, *segments: bytes) -> Path:
    """A log directory with these segments. Each has two offsets, so its base offset is twice its
    number."""
    partition = root / f"{REMOTE_LOG_METADATA_TOPIC}-0"
    partition.mkdir()
    for number, data in enumerate(segments):
        (partition / f"{2 * number:020}.log").write_bytes(data)
    return root


def read_all(root: Path) -> list[tuple[int, int]]:
    """The offset and the size of the value of each record."""
    topic = LogDirMetadataTopic([root])
    found: list[tuple[int, int]] = []
    start, end = topic.offsets(0)
    while records := topic.read(0, start, 1000):
        found += [(record.offset, len(record.value or b"")) for record in records]
        start = records[-1].offset + 1
    assert start == end
    return found


def test_batch_that_is_larger_than_a_read_is_read_whole(tmp_path: Path) -> None:
    closed = batch(0, b"a") + batch(1, LARGE)
    last = batch(2, LARGE) + batch(3, b"b")
    assert read_all(log_dir(tmp_path, closed, last)) == [
        (0, 1),
        (1, len(LARGE)),
        (2, len(LARGE)),
        (3, 1),
    ]


def test_last_segment_may_end_within_a_batch_and_others_may_not(tmp_path: Path) -> None:
    whole, cut = batch(0, b"a") + batch(1, b"b"), batch(2, b"c") + batch(3, LARGE)[:-1]
    assert read_all(log_dir(tmp_path, whole, cut)) == [(0, 1), (1, 1), (2, 1)]
    (tmp_path / f"{REMOTE_LOG_METADATA_TOPIC}-0" / f"{4:020}.log").write_bytes(batch(4, b"d"))
    with pytest.raises(CorruptLogError, match=r"00002\.log position=\d+"):
        read_all(tmp_path)


def test_damaged_batch_is_refused_and_its_file_named(tmp_path: Path) -> None:
    damaged = bytearray(batch(0, b"a") + batch(1, b"b"))
    damaged[-1] ^= 0xFF
    with pytest.raises(CorruptLogError, match=r"crc.* file=.*0000\.log"):
        read_all(log_dir(tmp_path, bytes(damaged)))
