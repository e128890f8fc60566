from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import isotherm

LOAD = "from isotherm.kernels.kernel_cache import settle_kernel_cache\nsettle_kernel_cache()\n"
LOAD += "import os\nimport isotherm.kernels.columns\nprint(os.environ.get('XDG_CACHE_HOME'))"


def kernels_loaded_from(package: Path, home: Path, working: Path) -> str:
    environment = {"PYTHONPATH": str(package), "HOME": str(home), "PATH": os.environ["PATH"]}
    python = [sys.executable, "-c", LOAD]
    run = subprocess.run(
        python, cwd=working, env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    return run.stdout.strip()


@pytest.fixture
def zipped(tmp_path: Path) -> Path:
    """The package in a zip: nothing can be written beside its source."""
    root = Path(isotherm.__file__).parents[1]
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(root / "isotherm", tmp_path / "src" / "isotherm", ignore=ignore)
    return Path(shutil.make_archive(str(tmp_path / "isotherm"), "zip", tmp_path / "src"))


def test_kernels_of_a_user_without_a_home_are_kept_in_the_working_folder(
    zipped: Path, tmp_path: Path
) -> None:
    working = tmp_path / "work"
    working.mkdir()
    # No folder can be made below a file.
    settled = kernels_loaded_from(zipped, tmp_path / "isotherm.zip", working)
    assert settled.startswith(f"{working}/isotherm-cache-")
    assert list(Path(settled).glob("numba/*/*.nbi"))


def test_kernels_are_kept_where_numba_keeps_them_when_it_can(zipped: Path, tmp_path: Path) -> None:
    assert kernels_loaded_from(zipped, tmp_path, tmp_path) == "None"
