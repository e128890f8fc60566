"""The list of pending deletions survives restarts."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from isotherm.errors import CorruptCheckpointError
from isotherm.log.fs import OsFileSystem
from isotherm.remote.tasks.pending_deletions import FILE_NAME, PendingDeletions
from isotherm.types import TopicIdPartition

A, B = (TopicIdPartition(uuid.UUID(int=n), f"topic-{n}", n) for n in (1, 2))


def test_pending_deletions_survive_a_restart_until_they_are_removed(tmp_path: Path) -> None:
    pending = PendingDeletions(tmp_path, OsFileSystem())
    pending.add([A, B])
    pending.add([A])
    assert PendingDeletions(tmp_path, OsFileSystem()).partitions() == [A, B]
    pending.remove(A)
    pending.remove(A)
    assert PendingDeletions(tmp_path, OsFileSystem()).partitions() == [B]
    assert (tmp_path / FILE_NAME).read_text() == "0\n1\nAAAAAAAAAAAAAAAAAAAAAg topic-2 2\n"


@pytest.mark.parametrize("text", ["", "0\n", "1\n0\n", "0\n2\nx t 0\n", "0\n1\nx t\n"])
def test_malformed_list_is_refused_naming_the_file(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text)
    with pytest.raises(CorruptCheckpointError, match=FILE_NAME):
        PendingDeletions(tmp_path, OsFileSystem())
