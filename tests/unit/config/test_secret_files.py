"""Warnings of files that other users can read, and of folders that they can change."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from isotherm.config.secret_files import warn_of_open_folder, warn_of_readers


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that other users may enter. pytest's own are closed to them."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


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
    assert (f"chmod 600 {path}" in caplog.text) == warns


@pytest.mark.parametrize(
    ("mode", "deed"),
    [(0o700, None), (0o770, None), (0o755, "read"), (0o771, "read"), (0o777, "changed")],
)
def test_folder_that_others_read_or_change(
    public: Path, caplog: pytest.LogCaptureFixture, mode: int, deed: str | None
) -> None:
    path = public / "data"
    path.mkdir()
    path.chmod(mode)
    warn_of_open_folder(path)
    if deed is None:
        assert caplog.records == []
    else:
        assert f"can be {deed} by others" in caplog.text
        assert f"chmod o-rwx {path}" in caplog.text


def test_folder_below_a_closed_one_is_closed(
    public: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = public / "closed" / "data"
    path.mkdir(parents=True)
    path.chmod(0o777)
    path.parent.chmod(0o700)
    warn_of_open_folder(path)
    assert caplog.records == []
    path.parent.chmod(0o711)
    warn_of_open_folder(path)
    assert "can be changed by others" in caplog.text


def test_path_that_is_not_there_is_no_matter_of_modes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_readers(tmp_path / "absent")
    warn_of_open_folder(tmp_path / "absent")
    assert caplog.records == []
