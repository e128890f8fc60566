"""Stops components whose stop may take long: a call to an object store can take minutes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)


def stop_within(timeout_s: float, name: str, stop: Callable[[], None]) -> bool:
    """Call `stop` in its own thread, and wait up to `timeout_s`. After that, log a warning and return False.

    `stop` continues in its thread, and must tolerate that the resources it uses are closed.
    """
    thread = threading.Thread(target=stop, name=f"isotherm-stop-{name}", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if thread.is_alive():
        logger.warning("stop is not waited for any longer work=%s timeout_s=%s", name, timeout_s)
        return False
    return True
