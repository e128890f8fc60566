"""Warnings of files that other users can read, and of folders that they can change."""

from __future__ import annotations

from pathlib import Path

import pytest

from isotherm.config.secret_files import warn_of_readers, warn_of_writers


@pytest.mark.parametrize(
    ("mode", "warns"), [(0o600, False), (0o640, True), (0o604, True), (0o644, True)]
)
def test_file_that_others_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, warns: bool
) -> None:
    path = tmp_path / "secret"
    path.touch()
    path.chmod(mode)
    warn_of_readers(path)
    assert ("can be read by others" in caplog.text) == warns


@pytest.mark.parametrize(
    ("mode", "warns"), [(0o700, False), (0o755, False), (0o775, False), (0o777, True)]
)
def test_folder_that_others_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: int, warns: bool
) -> None:
    path = tmp_path / "data"
    path.mkdir()
    path.chmod(mode)
    warn_of_writers(path)
    assert ("can be changed by others" in caplog.text) == warns


def test_path_that_is_not_there_is_no_matter_of_modes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_readers(tmp_path / "absent")
    warn_of_writers(tmp_path / "absent")
    assert caplog.records == []
