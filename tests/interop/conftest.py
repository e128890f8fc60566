"""Installs clients from npm for the tests of this folder."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / ".tools"
INSTALL_TIMEOUT_S = 300
RUN_TIMEOUT_S = 300


@pytest.fixture(scope="session")
def run_node() -> Callable[..., str]:
    """Runs a script, with a package of npm's that is installed into `.tools` the first time; what
    the script printed. The test is skipped if npm or the package is not available.
    """

    def run(package: str, script: Path, *arguments: str) -> str:
        ran = subprocess.run(
            ["node", str(script), *arguments],
            env={**os.environ, "NODE_PATH": str(node_modules(package))},
            capture_output=True,
            text=True,
            check=False,
            timeout=RUN_TIMEOUT_S,
        )
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    return run


def node_modules(package: str) -> Path:
    """A folder that has `package` (name@version) in it."""
    name, _, _ = package.rpartition("@")
    folder = TOOLS / package.replace("/", "+")
    if (folder / "node_modules" / name / "package.json").exists():
        return folder / "node_modules"
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    installed = subprocess.run(
        ["npm", "install", "--no-save", "--no-audit", "--no-fund", "--prefix", folder, package],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=INSTALL_TIMEOUT_S,
    )
    if installed.returncode != 0:
        pytest.skip(f"npm cannot install {package}: {installed.stderr[-500:]}")
    return folder / "node_modules"
