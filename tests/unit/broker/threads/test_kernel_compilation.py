"""A broker without compiled kernels starts a process that compiles them."""

from __future__ import annotations

import logging
import sys
import threading
from pathlib import Path

import pytest

from isotherm.broker.threads.kernel_warm_up import COMPILE_ALL, KernelCompilation

# Ends a test that hangs. No assertion depends on it.
GUARD_S = 300


def python(script: str) -> tuple[str, ...]:
    return sys.executable, "-c", script


def test_all_kernels_are_compiled_by_a_process_of_its_own_where_there_are_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    made = tmp_path / "made"
    compilation = KernelCompilation(
        python(f"import pathlib; pathlib.Path({str(made)!r}).touch()"), lambda: False
    )
    compilation.start()
    compilation.join(GUARD_S)
    assert made.exists()
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert COMPILE_ALL[1:3] == ("-m", "isotherm.kernels")
    compilation.stop()


def test_nothing_is_done_where_there_is_machine_code(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    made = tmp_path / "made"
    compilation = KernelCompilation(
        python(f"import pathlib; pathlib.Path({str(made)!r}).touch()"), lambda: True
    )
    compilation.start()
    compilation.join(GUARD_S)
    compilation.stop()
    assert not made.exists()
    assert caplog.records == []


@pytest.mark.parametrize("is_early", [True, False])
def test_stop_ends_the_compilation(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_early: bool
) -> None:
    asked, may_begin = threading.Event(), threading.Event()

    def is_kept() -> bool:
        asked.set()
        may_begin.wait(GUARD_S)
        return False

    pipe = tmp_path / "pipe"
    script = f"open({str(pipe)!r}, 'w').write('x'); import threading; threading.Event().wait()"
    compilation = KernelCompilation(python(script), is_kept)
    compilation.start()
    asked.wait(GUARD_S)
    if is_early:
        stopping = threading.Thread(target=compilation.stop)
        stopping.start()
        may_begin.set()
        stopping.join()
    else:
        may_begin.set()
        while not pipe.exists():
            assert compilation.is_running
        compilation.stop()
    compilation.join(GUARD_S)
    assert not compilation.is_running
    assert all(record.levelname == "INFO" for record in caplog.records)


@pytest.mark.parametrize(
    ("command", "cause"),
    [
        (python("raise SystemExit('no room left')"), "no room left"),
        (("/nonexistent/python",), "No such file or directory"),
    ],
)
def test_compilation_that_fails_is_one_line_of_log(
    command: tuple[str, ...], cause: str, caplog: pytest.LogCaptureFixture
) -> None:
    compilation = KernelCompilation(command, lambda: False)
    compilation.start()
    compilation.join(GUARD_S)
    (warning,) = (record for record in caplog.records if record.levelname == "WARNING")
    assert cause in warning.getMessage()
    compilation.stop()
