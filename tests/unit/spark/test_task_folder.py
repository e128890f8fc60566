"""The folder for a task's temporary files."""

from __future__ import annotations

from pathlib import Path

import pytest

from isotherm.spark.task_folder import task_folder


def test_folder_is_where_spark_has_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "blockmgr-1"
    own.mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{own},{tmp_path / 'blockmgr-2'}")
    with task_folder("isotherm-test-") as folder:
        assert folder.parent == own
        (folder / "file").write_bytes(b"x")
    assert list(own.iterdir()) == []


@pytest.mark.parametrize("dirs", [None, "", "/no/such/folder"])
def test_elsewhere_it_is_a_temporary_one(dirs: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPARK_LOCAL_DIRS", raising=False)
    if dirs is not None:
        monkeypatch.setenv("SPARK_LOCAL_DIRS", dirs)
    with task_folder("isotherm-test-") as folder:
        assert folder.name.startswith("isotherm-test-")
    assert not folder.exists()
