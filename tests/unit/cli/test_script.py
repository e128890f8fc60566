"""The script `isotherm`: Ctrl+C while its modules are loaded."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

TIMEOUT_S = 300
# Stands for one of the packages that the command line imports, and takes as long as the test likes.
_SLOW_PACKAGE = """
import time
print("loading", flush=True)
while True:
    try:
        time.sleep(3600)
    except KeyboardInterrupt:
        raise ImportError("interrupted")
"""


def _interrupted_while_loading(folder: Path, *, handler: str) -> tuple[str, int]:
    """What the script says, and its status, after SIGINT while it loads its modules, and after
    SIGTERM if SIGINT is ignored."""
    (folder / "typer.py").write_text(_SLOW_PACKAGE)
    program = (
        f"import signal, sys; signal.signal(signal.SIGINT, {handler})\n"
        "from isotherm.__main__ import main\nmain()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(folder)!r})\n{program}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "loading\n"
        process.send_signal(signal.SIGINT)
        if handler == "signal.SIG_IGN":
            process.terminate()
        stderr = process.communicate(timeout=TIMEOUT_S)[1]
    return stderr, process.returncode


def test_interrupt_while_modules_are_loaded_is_one_line(tmp_path: Path) -> None:
    # A shell's background jobs ignore the signal, and so would this program.
    said = _interrupted_while_loading(tmp_path, handler="signal.default_int_handler")
    assert said == ("isotherm: interrupted\n", 130)


def test_ignored_interrupt_stays_ignored(tmp_path: Path) -> None:
    said = _interrupted_while_loading(tmp_path, handler="signal.SIG_IGN")
    assert said == ("", -signal.SIGTERM)


def test_script_runs_the_same_commands() -> None:
    program = [sys.executable, "-m", "isotherm", "--version"]
    done = subprocess.run(program, capture_output=True, text=True, check=True, timeout=TIMEOUT_S)
    assert done.stdout.startswith("isotherm ")
    refused = subprocess.run(
        [sys.executable, "-m", "isotherm", "no-such"],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
    )
    assert (refused.returncode, "No such command" in refused.stderr) == (2, True)
