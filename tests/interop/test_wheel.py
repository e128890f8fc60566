"""The wheel is the same bytes wherever and whenever it is built: who doubts a release can build it again."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("src", "pyproject.toml", "README.md", "LICENSE")
BUILD_TIMEOUT_S = 300


def built(sources: Path) -> Path:
    target = sources / "built"
    command = ["wheel", "--quiet", "--no-deps", "--no-cache-dir", "--wheel-dir", str(target)]
    subprocess.run(
        [sys.executable, "-m", "pip", *command, str(sources)], check=True, timeout=BUILD_TIMEOUT_S
    )
    (wheel,) = target.glob("*.whl")
    return wheel


def copy_of_sources(folder: Path, *, modified_s: int, mode: int) -> Path:
    """With these times and rights of all files, and what a run of the tests leaves behind."""
    for name in SOURCES:
        place = ROOT / name
        copy = shutil.copytree if place.is_dir() else shutil.copy
        copy(place, folder / name)  # type: ignore[operator]
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(mode)
            os.utime(path, (modified_s, modified_s))
    return folder


@pytest.mark.slow
def test_wheel_is_the_same_bytes_again(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "a longer way to the second"
    for folder in (first, second):
        folder.mkdir()
    copy_of_sources(first, modified_s=1_600_000_000, mode=0o644)
    copy_of_sources(second, modified_s=1_750_000_000, mode=0o600)
    wheels = [built(first), built(second)]
    assert wheels[0].name == wheels[1].name
    listed = [zipfile.ZipFile(wheel).infolist() for wheel in wheels]
    names = [[each.filename for each in names] for names in listed]
    assert names[0] == names[1]
    assert not [name for name in names[0] if "__pycache__" in name]
    digests = {hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels}
    assert len(digests) == 1
