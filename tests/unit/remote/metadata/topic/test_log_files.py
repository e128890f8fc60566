"""The files of a metadata log, in a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from isotherm.record.batch import NewRecord, build_batch
from isotherm.remote.metadata.topic.log_files import LogFile, end_offset, read_log_files
from isotherm.remote.storage.inventory import open_for_reading
from isotherm.remote.storage.object_client import ObjectClient
from isotherm.remote.storage.settings import ObjectStoreSettings

NAME = f"{0:020}.log"


def batch(base_offset: int, value: bytes = b"v" * 100) -> bytes:
    return bytes(build_batch([NewRecord(1, b"k", value)], base_offset=base_offset))


BATCH_SIZE = len(batch(0))


def stored(folder: Path, content: bytes) -> tuple[ObjectClient, LogFile]:
    (folder / NAME).write_bytes(content)
    return open_for_reading(ObjectStoreSettings(url=folder.as_uri())), LogFile(
        0, NAME, len(content)
    )


@pytest.mark.parametrize("run_bytes", [1, 61, BATCH_SIZE + 1, 2 * BATCH_SIZE, 100 * BATCH_SIZE])
def test_runs_of_any_size_have_every_record_once(tmp_path: Path, run_bytes: int) -> None:
    client, file = stored(tmp_path, b"".join(batch(offset) for offset in range(9)))
    damage: list[tuple[int, str]] = []
    runs = read_log_files(
        [client], [file], (2, 7), lambda *args: damage.append(args), run_bytes=run_bytes
    )
    assert [offset for run in runs for offset in run.offset.tolist()] == [2, 3, 4, 5, 6]
    assert not damage
    assert end_offset(client, file) == 9


@pytest.mark.parametrize("missing", [1, BATCH_SIZE // 2, BATCH_SIZE - 30, BATCH_SIZE - 5])
def test_only_the_damaged_batch_is_lost_wherever_the_range_ends(
    tmp_path: Path, missing: int
) -> None:
    content = bytearray(b"".join(batch(offset) for offset in range(4)))
    content[2 * BATCH_SIZE - 1] ^= 0xFF
    client, file = stored(tmp_path, bytes(content))
    damage: list[tuple[int, str]] = []
    runs = read_log_files(
        [client],
        [file],
        (0, 10),
        lambda *args: damage.append(args),
        run_bytes=3 * BATCH_SIZE - missing,
    )
    assert [offset for run in runs for offset in run.offset.tolist()] == [0, 2, 3]
    assert [offset for offset, _ in damage] == [1]


@pytest.mark.parametrize("left", [0, 1, BATCH_SIZE, BATCH_SIZE + 30])
def test_file_that_becomes_shorter_is_told_even_if_it_is_the_last_one(
    tmp_path: Path, left: int
) -> None:
    client, file = stored(tmp_path, b"".join(batch(offset) for offset in range(4)))
    (tmp_path / NAME).write_bytes(b"".join(batch(offset) for offset in range(4))[:left])
    damage: list[tuple[int, str]] = []
    runs = list(read_log_files([client], [file], (0, 10), lambda *args: damage.append(args)))
    assert not runs
    [(offset, reason)] = damage
    assert offset == 0
    assert f"size={4 * BATCH_SIZE}" in reason
    assert "has become shorter since it was listed" in reason
