"""`isotherm`, with its event loop watched: the longest steps go to the file in LOOP_STEPS_FILE.

A step's duration is the CPU time of the loop's thread, so the load of the machine is not in it.
That of a request is known by its API. The other steps are whole iterations of the loop, which are
due once a millisecond.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import runpy
import sys
import threading
import time
from pathlib import Path
from typing import Any

from isotherm.broker.server.net.connection import Connection
from isotherm.broker.server.net.loop_watch import LoopWatch
from isotherm.protocol.api_keys import ApiKey, api_name

LOOP_STEPS_FILE = "LOOP_STEPS_FILE"
PROGRAM = (__file__,)
"""The arguments of the interpreter that come before those of `isotherm`."""

BEAT_S = 0.001
ITERATION = "all of an iteration"
# A shorter step is not written.
STEP_MS_MIN = 5.0


class LongestSteps:
    """The longest step of each API. Event loop thread only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._longest_ms: dict[str, float] = {}
        self._beat_s: float | None = None

    def note(self, duration_s: float, request: str, **more: Any) -> None:
        duration_ms = duration_s * 1000
        if duration_ms > max(STEP_MS_MIN, self._longest_ms.get(request, 0.0)):
            self._longest_ms[request] = duration_ms
            line = json.dumps({"ms": round(duration_ms, 1), "request": request, **more})
            with self._path.open("a", encoding="utf-8") as out:
                out.write(line + "\n")

    def beat(self, loop: asyncio.AbstractEventLoop) -> None:
        now_s = time.thread_time()
        if self._beat_s is not None:
            self.note(now_s - self._beat_s, ITERATION)
        # Without the time of the note.
        self._beat_s = time.thread_time()
        loop.call_later(BEAT_S, self.beat, loop)


def read_steps(path: Path) -> dict[str, dict[str, Any]]:
    """The longest step of each API so far."""
    longest: dict[str, dict[str, Any]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        step = json.loads(line)
        longest[step["request"]] = step
    return longest


def _watch(steps: LongestSteps) -> None:
    proceed, answer_in_order, start = (
        Connection._proceed,
        Connection._answer_in_order,
        LoopWatch.start,
    )

    def timed_proceed(self: Connection, frame: memoryview) -> None:
        began_s = time.thread_time()
        proceed(self, frame)
        duration_s = time.thread_time() - began_s
        if duration_s * 1000 > STEP_MS_MIN:
            key, version = (int.from_bytes(frame[at : at + 2], "big") for at in (0, 2))
            name = api_name(key) if key in ApiKey.__members__.values() else "other"
            steps.note(duration_s, name, version=version, size=len(frame))

    def timed_answer(self: Connection) -> None:
        began_s = time.thread_time()
        answer_in_order(self)
        steps.note(time.thread_time() - began_s, "an answer after a wait")

    began_s = 0.0

    def collected(phase: str, info: dict[str, int]) -> None:
        nonlocal began_s
        if phase == "start":
            began_s = time.thread_time()
        elif threading.get_ident() == loop_thread:
            steps.note(
                time.thread_time() - began_s, f"collection of generation {info['generation']}"
            )

    loop_thread = 0

    def start_and_beat(self: LoopWatch) -> None:
        nonlocal loop_thread
        loop_thread = threading.get_ident()
        start(self)
        steps.beat(asyncio.get_running_loop())

    Connection._proceed = timed_proceed  # type: ignore[method-assign]
    Connection._answer_in_order = timed_answer  # type: ignore[method-assign]
    gc.callbacks.append(collected)
    LoopWatch.start = start_and_beat  # type: ignore[method-assign]


if __name__ == "__main__":
    _watch(LongestSteps(Path(os.environ[LOOP_STEPS_FILE])))
    sys.argv[0] = "isotherm"
    runpy.run_module("isotherm.cli.main", run_name="__main__")
