"""The compiled kernels that check produced records: made when there are none, loaded when needed.

Loading takes 0.2 s of a processor, and more memory than all the rest of a broker that is idle. So a start
does not wait for it, and a broker that nobody writes to does without. The first produce request has
them loaded, and is not kept waiting either: few records are checked without (`isotherm.record.few_records`).
More of them wait here, and not in the event loop.

Where there is no machine code, a start has all of it made, by a process of its own: neither the time that
compiling takes nor its memory are this one's.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future

from isotherm.kernels.machine_code import is_anything_kept

logger = logging.getLogger(__name__)

# The answer to the request that has the kernels loaded leaves first.
LOAD_DELAY_S = 0.01
STOP_TIMEOUT_S = 5.0

COMPILE_ALL = (sys.executable, "-m", "isotherm.kernels", "--in-background")


def _load_kernels() -> None:
    # The one that accepts records, and the one that finds those at fault.
    importlib.import_module("isotherm.kernels.produced")
    importlib.import_module("isotherm.kernels.places")


class KernelWarmUp:
    """Event loop thread only. The one that loads is a daemon: a stop does not wait for it.

    `is_ready` tells that nobody has to wait any more.
    """

    def __init__(self, load: Callable[[], object] = _load_kernels) -> None:
        self._load = load
        self._loaded: Future[None] | None = None
        self.is_ready = False

    def begin_soon(self) -> None:
        """Load the kernels, from a moment later on."""
        if self._loaded is None:
            asyncio.get_running_loop().call_later(LOAD_DELAY_S, self._begin)

    async def wait(self) -> None:
        """Returns when the kernels are loaded, which the first call begins; raises what loading
        them raised."""
        await asyncio.shield(asyncio.wrap_future(self._begin()))

    def _begin(self) -> Future[None]:
        if self._loaded is None:
            self._loaded = Future()
            threading.Thread(
                target=self._run, args=(self._loaded,), name="isotherm-warm-up", daemon=True
            ).start()
        return self._loaded

    def _run(self, loaded: Future[None]) -> None:
        try:
            self._load()
        except BaseException as error:  # noqa: BLE001 - raised by those who wait
            loaded.set_exception(error)
        else:
            loaded.set_result(None)
        self.is_ready = True


class KernelCompilation:
    """Has all kernels compiled where nothing is kept of them, and is over by itself."""

    def __init__(
        self,
        command: tuple[str, ...] = COMPILE_ALL,
        is_kept: Callable[[], bool] = is_anything_kept,
    ) -> None:
        self._command = command
        self._is_kept = is_kept
        self._is_stopped = threading.Event()
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._run, name="isotherm-compile", daemon=True)

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def join(self, timeout_s: float) -> None:
        """Wait until it is over by itself."""
        self._thread.join(timeout_s)

    def stop(self) -> None:
        """What is compiled by now is kept."""
        self._is_stopped.set()
        if self._process is not None:
            self._process.terminate()
        self.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        if self._is_kept() or self._is_stopped.is_set():
            return
        logger.info("kernels are not compiled yet, and compiled in the background, once")
        try:
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter
                self._command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
            )
        except OSError as error:
            logger.warning("kernels are compiled when they are needed: %s", error)
            return
        if self._is_stopped.is_set():  # stop may have come before there was a process
            self._process.terminate()
        _, said = self._process.communicate()
        if self._process.returncode and not self._is_stopped.is_set():
            last = said.strip().rpartition("\n")[2]
            logger.warning("kernels are compiled when they are needed: %s", last)
