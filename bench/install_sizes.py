"""Installs the wheel with each extra into an environment of its own, and prints megabytes and
seconds.

Run: python bench/install_sizes.py [EXTRA ...]

The first row is the wheel alone. Seconds are pip's CPU time, for unpacking and for compiling to
bytecode. It depends little on the machine's other work, and not on the network. Megabytes are those
of all files of the environment, without pip itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXTRAS = ("", "tier", "broker", "console", "spark", "broker,spark", "iceberg", "registry")


def main() -> None:
    print("| installed | packages | MB | CPU s |\n|---|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as folder:
        wheel = _wheel(Path(folder))
        for extras in sys.argv[1:] or EXTRAS:
            _print_row(wheel, extras, Path(folder) / (extras or "alone"))
    load = " ".join(f"{average:.1f}" for average in os.getloadavg())
    print(
        f"\nPython {sys.version.split()[0]}, {os.cpu_count()} cores, load averages at the end"
        f" {load}"
    )


def _wheel(folder: Path) -> Path:
    _run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    return next(folder.glob("*.whl"))


def _print_row(wheel: Path, extras: str, environment: Path) -> None:
    _run(sys.executable, "-m", "venv", "--without-pip", str(environment))
    pip = (sys.executable, "-m", "pip", "--python", str(environment / "bin" / "python"))
    what = f"isotherm[{extras}] @ {wheel.as_uri()}"
    before = os.times()
    _run(*pip, "install", "-c", str(ROOT / "constraints.txt"), what)
    after = os.times()
    seconds = sum(after[2:4]) - sum(before[2:4])
    size = sum(path.lstat().st_size for path in environment.rglob("*") if not path.is_dir())
    count = sum(1 for _ in environment.glob("lib/python*/site-packages/*.dist-info"))
    name = f"`isotherm[{extras}]`" if extras else "`isotherm`"
    print(f"| {name} | {count} | {size / 1e6:.0f} | {seconds:.0f} |", flush=True)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
