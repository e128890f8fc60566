"""The script that runs an S3 server, with a program that prints its arguments as the server."""

from __future__ import annotations

import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "scripts" / "s3-server.sh"


def test_relative_folder_is_served_by_its_whole_path(tmp_path: Path) -> None:
    ran = subprocess.run(
        [SCRIPT, "run", "buckets"],
        cwd=tmp_path,
        env={"VERSITYGW": "/bin/echo", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.splitlines()[-1].endswith(f" posix {tmp_path / 'buckets'}")
    assert (tmp_path / "buckets" / "isotherm").is_dir()
