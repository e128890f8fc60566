"""Loads the compiled kernels that validate produced records, and compiles them if needed.

Loading takes milliseconds if their machine code is kept. Otherwise it takes seconds, and more
memory than the rest of an idle broker. So the start does not wait for it, and a broker without
producers never loads them. The first produce request starts the loading but does not wait for it:
small requests are validated without kernels (`isotherm.record.few_records`). Requests with more
records wait here, without blocking the event loop.

If no machine code is cached, another process compiles all kernels, so that compiling takes neither
time nor memory of this process.
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

from isotherm.broker.shared_futures import shared, shared_result
from isotherm.kernels.machine_code import is_anything_kept

logger = logging.getLogger(__name__)

# The response to the request that starts the loading is sent first.
LOAD_DELAY_S = 0.01
STOP_TIMEOUT_S = 5.0

COMPILE_ALL = (sys.executable, "-m", "isotherm.kernels", "--in-background")


def _load_kernels() -> None:
    # The kernel that validates records, and the one that locates invalid ones.
    importlib.import_module("isotherm.kernels.produced")
    importlib.import_module("isotherm.kernels.places")


class KernelWarmUp:
    """Loads the kernels on demand. Event loop thread only. The loading thread is a daemon: a stop
    does not wait for it.

    `is_ready` is True once requests need not wait any more.
    """

    def __init__(self, load: Callable[[], object] = _load_kernels) -> None:
        self._load = load
        self._loaded: Future[None] | None = None
        self.is_ready = False

    def begin_soon(self) -> None:
        """Load the kernels after a short delay."""
        if self._loaded is None:
            asyncio.get_running_loop().call_later(LOAD_DELAY_S, self._begin)

    async def wait(self) -> None:
        """Return when the kernels are loaded.

        The first call starts the loading. Raises its error.
        """
        # A request whose client disconnects must not cancel the loading that others wait for.
        await shared_result(shared(asyncio.wrap_future(self._begin())))

    def _begin(self) -> Future[None]:
        if self._loaded is None:
            self._loaded = Future()
            threading.Thread(
                target=self._run, args=(self._loaded,), name="isotherm-warm-up", daemon=True
            ).start()
        return self._loaded

    def _run(self, loaded: Future[None]) -> None:
        failure: BaseException | None = None
        try:
            self._load()
        except BaseException as error:  # noqa: BLE001 - raised again by waiting requests
            failure = error
        # Before the waiting requests are woken, so that they do not wait again. Also after an
        # error: requests then import the kernels themselves and raise it.
        self.is_ready = True
        if failure is None:
            loaded.set_result(None)
        else:
            loaded.set_exception(failure)


class KernelCompilation:
    """Compiles all kernels once in another process, unless some are cached already."""

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
        """Wait until the compilation ends by itself, or until the timeout."""
        self._thread.join(timeout_s)

    def stop(self) -> None:
        """End the compilation. Kernels compiled so far stay in the cache."""
        self._is_stopped.set()
        if self._process is not None:
            self._process.terminate()
        self.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        if self._is_kept() or self._is_stopped.is_set():
            return
        logger.info("kernels are being compiled in the background, once")
        try:
            self._process = subprocess.Popen(  # noqa: S603 - this interpreter
                self._command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
            )
        except OSError as error:
            logger.warning("kernels are compiled at their first use: %s", error)
            return
        if self._is_stopped.is_set():  # `stop` may have run before the process existed
            self._process.terminate()
        _, errors = self._process.communicate()
        if self._process.returncode and not self._is_stopped.is_set():
            last = errors.strip().rpartition("\n")[2]
            logger.warning("kernels are compiled at their first use: %s", last)
