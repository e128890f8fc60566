"""The wheel with one extra or none: each command works, or prints one line that names what to
install.
"""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.wheel_environment import build_wheel, install_wheel

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 300
NO_BROKER = (
    "isotherm: no broker is reachable at localhost:1: connection refused: nothing listens there"
)

# Every command of every group answers --help, in one process: a process for each would take a
# minute.
ALL_HELPS = """
import typer
from typer.testing import CliRunner
from isotherm.cli.main import app

def show(path, command, context):
    shown = CliRunner().invoke(app, [*path, "--help"], catch_exceptions=False)
    assert shown.exit_code == 0 and "Usage:" in shown.output, shown.output
    print(*path)
    if hasattr(command, "list_commands"):
        for name in command.list_commands(context):
            show([*path, name], command.get_command(context, name), context)

root = typer.main.get_command(app)
show([], root, typer.Context(root))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("wheel")
    wheel = build_wheel(ROOT, folder)

    @functools.cache
    def install(extra: str) -> Path:
        environment = folder / f"environment-{extra}"
        install_wheel(wheel, environment, frozenset({extra} - {""}))
        return environment / "bin"

    return install


def run(command: list[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip


def needs(module: str, extra: str) -> str:
    return (
        f"isotherm: this needs {module}, which is not installed:"
        f" run pip install 'isotherm[{extra}]'"
    )


def test_every_command_has_help(installed: Callable[[str], Path], tmp_path: Path) -> None:
    done = run([installed("") / "python", "-c", ALL_HELPS], tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    shown = done.stdout.splitlines()
    assert {"topics create", "consume", "pipeline audit", "serve", "doctor"} <= set(shown)
    # The extra's own commands have their dependencies.
    assert "remote" in shown
    assert "remote segments" not in shown


@pytest.mark.parametrize(
    ("extra", "command", "status", "message"),
    [
        ("", "topics list -b localhost:1", 1, NO_BROKER),
        ("", "consume numbers -b localhost:1", 1, NO_BROKER),
        ("", "serve", 2, needs("uvloop", "broker")),
        ("", "config docs", 2, needs("cramjam", "broker")),
        ("", "dump-log 0.log", 2, needs("cramjam", "tier")),
        ("", "remote segments numbers --json", 2, needs("numpy", "tier")),
        ("", "top", 2, needs("cramjam", "tier")),
        ("", "console", 2, needs("starlette", "console")),
        ("", "pipeline audit", 2, needs("numpy", "spark")),
        ("tier", "remote segments numbers -b localhost:1", 1, NO_BROKER),
        ("tier", "serve", 2, needs("uvloop", "broker")),
        ("tier", "pipeline audit", 2, needs("PySpark", "spark")),
    ],
)
def test_a_command_works_or_says_what_to_install(
    installed: Callable[[str], Path],
    extra: str,
    command: str,
    status: int,
    message: str,
    tmp_path: Path,
) -> None:
    done = run([installed(extra) / "isotherm", *command.split()], tmp_path)
    assert (done.returncode, done.stderr.splitlines()) == (status, [message])


def test_doctor_says_what_no_broker_and_no_job_can_do_without(
    installed: Callable[[str], Path], tmp_path: Path
) -> None:
    done = run(
        [installed("") / "isotherm", "doctor", "--override", "listeners=PLAINTEXT://:0"], tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "pip install 'isotherm[broker]'" in done.stdout
    assert "run pip install 'isotherm[spark]'" in done.stdout
