"""Ends a Spark session at once when Ctrl+C interrupts its job.

PySpark's own handler cancels all jobs over the connection that waits for one of them. So Python and
Java print traces, and an orderly stop waits for tasks whose results nobody wants.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import Any

from isotherm.cli.output import error_console
from isotherm.clock import SystemClock

JAVA_QUIET_S_MAX = 0.8
JAVA_END_S_MAX = 1.5
"""Java's time to delete its temporary files before it is killed."""


SAY_S_MAX = 2.0
"""Time to print one line on a busy machine, where the first line loads the library for it."""
END_S_MAX = 2.7
"""Time after SIGINT in which a job ends in order. A library that swallows the interrupt, or a call
that does not return, must not keep the user waiting."""
_EXIT_SIGINT = 130
_PYSPARK = b"pyspark-shell"
"""The last argument of PySpark's Java."""
_ARGUMENTS_READS_MAX = 20
_ARGUMENTS_READS_INTERVAL_S = 0.01


class Interruption:
    """What an interrupted job says, once: by its main thread, or after END_S_MAX by another
    one, which then ends the process and Java."""

    def __init__(self, line: str) -> None:
        self._line = line
        self._beginning = threading.Lock()
        self._said = threading.Event()
        self._timer: threading.Timer | None = None

    def say(self) -> None:
        if self._beginning.acquire(blocking=False):
            error_console().print(self._line, soft_wrap=True)
            self._said.set()

    @property
    def has_begun(self) -> bool:
        return self._timer is not None

    def begin(self) -> None:
        if self._timer is None:
            self._timer = threading.Timer(END_S_MAX, self._end)
            self._timer.daemon = True
            self._timer.start()

    def _end(self) -> None:
        self.say()
        # The main thread may have begun to say it: its line must not be lost.
        self._said.wait(SAY_S_MAX)
        process = _java_process()
        if process is None:
            end_starting_java()
        else:
            process.kill()
        os._exit(_EXIT_SIGINT)


interruption: ContextVar[Interruption | None] = ContextVar("interruption", default=None)
"""That of the running job."""


def interrupt(number: int, frame: FrameType | None) -> None:
    """A handler of SIGINT. Until the process ends nothing is logged: py4j logs a trace of each call
    that is interrupted."""
    del number, frame
    logging.disable(logging.CRITICAL)
    running = interruption.get()
    if running is not None:
        running.begin()
    raise KeyboardInterrupt


@contextmanager
def own_sigint_handler() -> Iterator[None]:
    """Within the block SIGINT calls `interrupt`. In another thread than the main one nothing
    changes, because signals do not arrive there."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def end_spark() -> None:
    """End Java, and with it all tasks of this machine. Executors of a cluster end when their driver
    is gone. Nothing is printed."""
    from pyspark import SparkContext

    context: Any = SparkContext._active_spark_context
    # Its thread prints a trace when Java is gone.
    server = getattr(context, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = _ignored
    gateway: Any = SparkContext._gateway
    process = _java_process()
    if process is None:
        end_starting_java()
        return
    # The calls of this thread were interrupted, and another thread has a connection of its own.
    quiet = threading.Thread(target=_quiet_java, args=(gateway,), daemon=True)
    quiet.start()
    quiet.join(JAVA_QUIET_S_MAX)
    if not quiet.is_alive():
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(JAVA_END_S_MAX)
    # Java that does not even answer would print traces while it ends.
    process.kill()
    process.wait()


def end_starting_java() -> None:
    """End the Java that PySpark has started and not reached yet. It would stay for ever: the folder
    where it writes its port is gone, and its main thread fails before it looks for Python."""
    for children in Path("/proc/self/task").glob("*/children"):
        for pid in map(int, children.read_text().split()):
            # It may have ended meanwhile.
            with suppress(OSError):
                if _PYSPARK in _arguments(pid):
                    os.kill(pid, signal.SIGTERM)


def _arguments(pid: int) -> list[bytes]:
    """Of a process that exists. The kernel lets its parent go on a moment before a new process has
    its arguments; one that has ended never has any."""
    arguments, never, clock = b"", threading.Event(), SystemClock()
    for _ in range(_ARGUMENTS_READS_MAX):
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes()
        if arguments:
            break
        clock.wait(never, _ARGUMENTS_READS_INTERVAL_S)
    return arguments.split(b"\0")


def _java_process() -> subprocess.Popen[bytes] | None:
    if "pyspark" not in sys.modules:
        return None
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    return process


def _ignored(*_: object) -> None:
    """In place of socketserver's `handle_error`."""


def _quiet_java(gateway: Any) -> None:
    """Java's threads print the traces of tasks that were ended."""
    with suppress(Exception):
        java = gateway.jvm.java
        java.lang.System.setErr(java.io.PrintStream(java.io.OutputStream.nullOutputStream()))
