"""The walk over the files of a bucket that is a folder."""

from __future__ import annotations

import shutil
from pathlib import Path

from isotherm.testing.bucket_files import files_below


def test_files_at_any_depth(tmp_path: Path) -> None:
    for name in ("a", "topic/b", "topic/0/c"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    (tmp_path / "empty").mkdir()
    assert {str(path.relative_to(tmp_path)) for path in files_below(tmp_path)} == {
        "a",
        "topic/b",
        "topic/0/c",
    }


def test_directory_that_goes_during_the_walk_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "first").touch()
    (tmp_path / "topic" / "0").mkdir(parents=True)
    found = files_below(tmp_path)
    assert next(found) == tmp_path / "first"
    shutil.rmtree(tmp_path / "topic")
    assert list(found) == []


def test_folder_that_is_not_there_has_no_files(tmp_path: Path) -> None:
    assert list(files_below(tmp_path / "none")) == []
