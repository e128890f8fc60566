"""What building the suites of other projects needs."""

from __future__ import annotations

import subprocess
from pathlib import Path

TOOLS = Path(__file__).parents[1] / ".tools"
STEP_TIMEOUT_S = 840


def run_step(command: list[str], folder: Path, error: type[Exception] = AssertionError) -> str:
    """What the command prints; `error` when it fails."""
    ran = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=STEP_TIMEOUT_S,
    )
    if ran.returncode != 0:
        raise error(f"{' '.join(command)} failed: {ran.stdout[-2000:]}{ran.stderr[-2000:]}")
    return ran.stdout
