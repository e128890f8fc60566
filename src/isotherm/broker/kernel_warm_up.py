"""The compiled kernels that check produced records, loaded when the first of them come.

It takes half a second, and a few where nothing is cached; and it takes more memory than all the rest
of a broker that is idle. So a start does not wait for it, and a broker that nobody writes to does
without. Whose records come meanwhile waits here, and not in the event loop.
"""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import Callable
from concurrent.futures import Future


def _load_kernels() -> None:
    importlib.import_module("isotherm.kernels.produced")


class KernelWarmUp:
    """Event loop thread only. The one that loads is a daemon: a stop does not wait for it.

    `is_ready` tells that nobody has to wait any more.
    """

    def __init__(self, load: Callable[[], object] = _load_kernels) -> None:
        self._load = load
        self._loaded: Future[None] | None = None
        self.is_ready = False

    async def wait(self) -> None:
        """Returns when the kernels are loaded, which the first call begins; raises what loading
        them raised."""
        if self._loaded is None:
            self._loaded = Future()
            threading.Thread(
                target=self._run, args=(self._loaded,), name="isotherm-warm-up", daemon=True
            ).start()
        await asyncio.shield(asyncio.wrap_future(self._loaded))

    def _run(self, loaded: Future[None]) -> None:
        try:
            self._load()
        except BaseException as error:  # noqa: BLE001 - raised by those who wait
            loaded.set_exception(error)
        else:
            loaded.set_result(None)
        self.is_ready = True
