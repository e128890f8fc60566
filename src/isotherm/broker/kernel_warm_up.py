"""The compiled kernels that check produced records, loaded while the broker starts.

It takes half a second, and a few where nothing is cached. Who needs them before waits here, and
not in the event loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future


def _load_kernels() -> None:
    # Here, so that the imports happen in the thread as well.
    from isotherm.record.batch_table import load_kernels

    load_kernels()


class KernelWarmUp:
    """Starts to load when it is made. The thread is a daemon: a stop does not wait for it."""

    def __init__(self, load: Callable[[], object] = _load_kernels) -> None:
        self._load = load
        self._loaded: Future[None] = Future()
        threading.Thread(target=self._run, name="isotherm-warm-up", daemon=True).start()

    @property
    def is_ready(self) -> bool:
        return self._loaded.done()

    async def wait(self) -> None:
        """Returns when the kernels are loaded; raises what loading them raised."""
        await asyncio.shield(asyncio.wrap_future(self._loaded))

    def _run(self) -> None:
        try:
            self._load()
        except BaseException as error:  # noqa: BLE001 - raised by those who wait
            self._loaded.set_exception(error)
        else:
            self._loaded.set_result(None)
