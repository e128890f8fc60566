"""Installs Isotherm into an empty folder, does the README's tour, and prints the seconds of each
step.

Run: python bench/first_ten_minutes.py wheel|clone|image [--python PATH]

    wheel   the wheel into a new environment, with the extra `broker`
    clone   a clone of this repository, installed as the README says
    image   the steps of the Dockerfile's first stage, in a folder instead of a container; then its
            health check and its command, and SIGTERM

Packages come from an index or pip's cache; kernels are compiled. Nothing outside of the folder is
used.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TRIES = 600


class Way:
    """The timed steps of one way of installation, in an empty folder."""

    def __init__(self, folder: Path, python: str) -> None:
        self.folder = folder
        self.python = python
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"localhost:{probe.getsockname()[1]}"
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        self.environment = {
            **kept,
            "XDG_CACHE_HOME": str(folder / "cache"),  # no machine code from another run
            "PIP_CACHE_DIR": os.environ.get("PIP_CACHE_DIR") or os.path.expanduser("~/.cache/pip"),
            "KAFKA_LISTENERS": f"PLAINTEXT://{self.address}",
            "ISOTHERM_BOOTSTRAP_SERVER": self.address,
        }

    def step(self, name: str, act: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        result = act()
        print(f"| {name} | {time.perf_counter() - started:.0f} |", flush=True)
        return result

    def shell(self, text: str) -> str:
        return self.run(["bash", "-euo", "pipefail", "-c", text])

    def run(self, command: list[str]) -> str:
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return done.stdout

    def start(self, command: list[str]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, cwd=self.folder, env=self.environment)

    def until(self, command: str) -> None:
        """Repeat `command` until it ends with status 0; TRIES times at most."""
        for _ in range(TRIES):
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=self.folder,
                env=self.environment,
                capture_output=True,
                check=False,
            )
            if done.returncode == 0:
                return
        sys.exit(f"never done: {command}")


def by_wheel(way: Way) -> None:
    way.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", ".", str(ROOT)]
    )
    (wheel,) = way.folder.glob("*.whl")
    constraints = ROOT / "constraints.txt"
    way.step(
        "install",
        lambda: way.shell(
            f"{way.python} -m venv .venv && .venv/bin/pip install -q -c {constraints}"
            f" 'isotherm[broker] @ {wheel.as_uri()}'"
        ),
    )
    _tour(way)


def by_clone(way: Way) -> None:
    way.step("clone", lambda: way.shell(f"git clone -q {ROOT} checkout"))
    way.folder /= "checkout"
    readme = (way.folder / "README.md").read_text(encoding="utf-8")
    install = re.search(r"^python3 -m venv .*$", readme, re.MULTILINE)
    assert install is not None
    line = install[0].replace("python3", way.python, 1).replace("pip install", "pip install -q")
    way.step("install", lambda: way.shell(line))
    _tour(way)


def _tour(way: Way) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    serve, commands = re.findall(r"```sh\n(\.venv/bin/isotherm.*?)```", readme, re.DOTALL)
    faster = "-o remote.log.manager.task.interval.ms=500"
    broker = way.start([*shlex.split(serve), *faster.split()])
    try:
        way.step("first answer of the broker", lambda: way.until(".venv/bin/isotherm topics list"))
        shown = way.step("the README's commands", lambda: way.shell(commands))
        assert "0: 1\n1: 2\n2: 3\n" in shown, shown
        finished = ".venv/bin/isotherm remote segments events | grep -q COPY_SEGMENT_FINISHED"
        way.step("segments in the bucket", lambda: way.until(finished))
    finally:
        _end(broker)


def by_image(way: Way) -> None:
    """Run the Dockerfile's steps, with folders in place of /src, /opt and the volume."""
    text = re.sub(r"\\\n\s*", "", (ROOT / "packaging" / "Dockerfile").read_text(encoding="utf-8"))
    first, final = text.partition("\nFROM build")[0], text.rpartition("\nFROM ")[2]

    def here(words: str) -> str:
        for place in ("/src", "/opt", "/var/lib/isotherm"):
            words = re.sub(rf"(?<![\w/]){place}\b", str(way.folder) + place, words)
        return words

    for line in first.splitlines():
        name, _, rest = line.partition(" ")
        if name == "COPY":
            *sources, target = rest.split()
            way.shell(f"mkdir -p $(dirname {here(target)}x)")
            # A folder's content is copied, not the folder.
            is_folder = len(sources) == 1 and (ROOT / sources[0]).is_dir()
            copy = "cp -rT" if is_folder else "cp"
            way.shell(f"cd {ROOT} && {copy} {' '.join(sources)} {here(target)}")
        elif name == "RUN":
            command = here(rest).replace("python -m venv", f"{way.python} -m venv", 1)
            way.step("RUN of the first stage", lambda command=command: way.shell(command))
    for name, value in re.findall(
        r"([A-Z_]+)=(\S+)", re.search(r"^ENV (.*)$", final, re.MULTILINE)[1]
    ):  # type: ignore[index]
        if not name.startswith("KAFKA"):
            way.environment[name] = here(value).replace("$PATH", way.environment["PATH"])
    port = way.address.partition(":")[2]
    health = json.loads(re.search(r"CMD (\[\"python.*\])", final)[1])  # type: ignore[index]
    command = json.loads(re.search(r"^CMD (\[.*\])", final, re.MULTILINE)[1])  # type: ignore[index]
    way.shell(f"mkdir -p {here('/var/lib/isotherm')}")
    broker = way.start([here("/opt/isotherm/bin/isotherm"), *map(here, command)])
    try:
        check = shlex.join([argument.replace("9092", port) for argument in health])
        way.step("healthy", lambda: way.until(check))
        topic = "isotherm topics create made-inside"
        way.step("a topic", lambda: way.shell(topic))
    finally:
        way.step("SIGTERM", lambda: _end(broker))


def _end(broker: subprocess.Popen[bytes]) -> None:
    broker.send_signal(signal.SIGTERM)
    assert broker.wait(120) == 0


WAYS = {"wheel": by_wheel, "clone": by_clone, "image": by_image}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("--python", default=sys.executable)
    options = parser.parse_args()
    print(f"| {options.way} | s |\n|---|---:|")
    with tempfile.TemporaryDirectory() as folder:
        way = Way(Path(folder), options.python)
        way.step("in all", lambda: WAYS[options.way](way))
    version = subprocess.run(
        [options.python, "--version"], stdout=subprocess.PIPE, text=True, check=True
    )
    load = " ".join(f"{average:.1f}" for average in os.getloadavg())
    print(f"\n{version.stdout.strip()}, {os.cpu_count()} cores, load averages at the end {load}")


if __name__ == "__main__":
    main()
