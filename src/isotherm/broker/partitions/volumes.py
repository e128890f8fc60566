"""Reads the sizes of log directories' volumes without holding the event loop: a disk that hangs
answers statvfs late, or never."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from functools import partial

from isotherm.broker.shared_futures import shared, shared_result
from isotherm.log.log_dir import LogDir, Volume


class Volumes:
    """Event loop thread only. A directory has one thread at most, however many callers wait for it.

    The threads are daemons and not those of an executor, which others use: a disk that hangs keeps
    its thread, and must keep neither other work nor the end of the process.
    """

    def __init__(self) -> None:
        self._running: dict[LogDir, asyncio.Future[Volume]] = {}

    async def read(self, log_dir: LogDir) -> Volume:
        """The sizes, of a read that may have begun before the call. Raises LogDirFailedError if the
        directory is offline or goes offline."""
        log_dir.check_online()
        running = self._running.get(log_dir)
        if running is None:
            loop = asyncio.get_running_loop()
            running = self._running[log_dir] = shared(loop.create_future())
            running.add_done_callback(lambda _: self._running.pop(log_dir, None))
            threading.Thread(
                target=_read, args=(log_dir, loop, running), name="isotherm-volume", daemon=True
            ).start()
        return await shared_result(running)


def _read(log_dir: LogDir, loop: asyncio.AbstractEventLoop, future: asyncio.Future[Volume]) -> None:
    finish: Callable[[], None]
    try:
        finish = partial(future.set_result, log_dir.volume())
    except Exception as error:  # noqa: BLE001 - the boundary of the thread; callers get it
        finish = partial(future.set_exception, error)
    with contextlib.suppress(RuntimeError):  # The loop is closed, and nobody waits.
        loop.call_soon_threadsafe(finish)
