"""The image's settings at work without a container engine, and its unit for systemd.

Bubblewrap gives a broker what the Dockerfile and compose.yaml promise: the image's user,
environment and command, a read-only root file system, one volume that can be written to, no
capabilities.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_DOCKERFILE = _ROOT / "packaging" / "Dockerfile"
_VOLUME = "/var/lib/isotherm"
# Kernels are compiled into the volume if the installation has none for this processor.
_TIMEOUT_S = 600

_SCRIPT = """
"$@" & broker=$!
until sh -c "$HEALTH" 2>/tmp/health; do
  kill -0 $broker || exit 70
  sleep 0.5
done
isotherm topics create made-inside >/dev/null || exit 71
kill -TERM $broker
wait $broker
"""


def _instructions() -> dict[str, list[str]]:
    """Instruction -> its texts in the Dockerfile's final stage, with continued lines joined."""
    text = re.sub(r"\\\n\s*", "", _DOCKERFILE.read_text())
    found: dict[str, list[str]] = {}
    for line in text.rpartition("\nFROM ")[2].splitlines()[1:]:
        name, _, rest = line.partition(" ")
        if name.isupper():
            found.setdefault(name, []).append(rest.strip())
    return found


def test_broker_runs_as_the_image_says(tmp_path: Path) -> None:
    bwrap = shutil.which("bwrap")
    if bwrap is None:
        pytest.skip("bubblewrap is not installed: apt-get install bubblewrap")
    image = _instructions()
    variables = dict(part.split("=", 1) for text in image["ENV"] for part in text.split())
    variables["PATH"] = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    health = image["HEALTHCHECK"][0].partition("CMD ")[2]
    command = json.loads(image["ENTRYPOINT"][0]) + json.loads(image["CMD"][0])
    (user,) = image["USER"]
    assert image["VOLUME"] == image["WORKDIR"] == [_VOLUME]

    quoted = " ".join("'{}'".format(word.replace("'", "'\\''")) for word in json.loads(health))
    variables["HEALTH"] = quoted
    settings = [text for name, value in variables.items() for text in ("--setenv", name, value)]
    volume = tmp_path / "volume"
    volume.mkdir()
    run = subprocess.run(
        [bwrap, "--unshare-all", "--uid", user, "--gid", user, "--cap-drop", "ALL",
         "--die-with-parent", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc",
         "--tmpfs", "/tmp", "--ro-bind", str(_ROOT), str(_ROOT),
         "--tmpfs", "/var/lib", "--bind", str(volume), _VOLUME, "--chdir", _VOLUME,
         "--clearenv", *settings, "sh", "-c", _SCRIPT, "image", *command],
        capture_output=True, text=True, timeout=_TIMEOUT_S, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert (volume / "log" / "made-inside-0").is_dir()
    assert (volume / "log" / ".kafka_cleanshutdown").exists()


@pytest.mark.parametrize("name", ["isotherm.service", "isotherm-replica.service"])
def test_unit_is_valid_and_hardened(name: str) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    unit = str(_ROOT / "packaging" / name)

    def ask(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [analyze, *arguments, unit], capture_output=True, text=True, check=False
        )

    complaints = [
        line
        for line in ask("verify").stderr.splitlines()
        if name in line and "is not executable" not in line
    ]
    assert complaints == []
    assert ask("security", "--offline=yes", "--threshold=20").returncode == 0


def test_dockerfile_has_no_findings() -> None:
    hadolint = Path(sys.executable).parent / "hadolint"
    linted = subprocess.run([hadolint, _DOCKERFILE], capture_output=True, text=True, check=False)
    assert (linted.returncode, linted.stdout) == (0, "")


def test_compose_file_is_valid_and_each_container_is_confined() -> None:
    compose = shutil.which("docker-compose")
    if compose is None:
        pytest.skip("docker-compose is not installed: apt-get install docker-compose")
    file = str(_ROOT / "packaging" / "compose.yaml")
    shown = subprocess.run(
        [compose, "-f", file, "--profile", "spark", "--profile", "replica", "config", "--services"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert shown.returncode == 0, shown.stderr
    assert set(shown.stdout.split()) == {"s3", "bucket", "broker", "console", "replica", "spark"}
    text = (_ROOT / "packaging" / "compose.yaml").read_text(encoding="utf-8")
    built = text.count("dockerfile: packaging/Dockerfile")
    assert text.count("read_only: true") == text.count("cap_drop: [ALL]") == built
