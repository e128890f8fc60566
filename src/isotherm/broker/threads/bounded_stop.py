"""Stops components whose stop may take long: a call to an object store can take minutes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial

logger = logging.getLogger(__name__)


def stop_within(timeout_s: float, name: str, stop: Callable[[], None]) -> bool:
    """Call `stop` in its own thread, and wait up to `timeout_s`. After that, log a warning and
    return False.

    Raises what `stop` raises. After the time-out, `stop` continues in its thread, where its error
    is logged. It must tolerate that the resources it uses are closed.
    """
    ended: Future[None] = Future()

    def run() -> None:
        try:
            stop()
        except BaseException as error:  # noqa: BLE001 - the caller raises it
            ended.set_exception(error)
        else:
            ended.set_result(None)

    threading.Thread(target=run, name=f"isotherm-stop-{name}", daemon=True).start()
    if not wait([ended], timeout_s).done:
        logger.warning(
            "stop takes too long, and the broker no longer waits for it work=%s timeout_s=%s",
            name,
            timeout_s,
        )
        ended.add_done_callback(partial(_log_late_error, name))
        return False
    ended.result()
    return True


def _log_late_error(name: str, ended: Future[None]) -> None:
    if (error := ended.exception()) is not None:
        logger.error("stop failed work=%s", name, exc_info=error)
