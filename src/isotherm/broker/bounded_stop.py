"""Stopping what may not end in time: a call to an object store can take minutes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

logger = logging.getLogger(__name__)


def stop_within(timeout_s: float, name: str, stop: Callable[[], None]) -> bool:
    """Call `stop` in a thread of its own; False, and a warning, when it takes longer.

    It goes on then, and must bear that whatever it works with is closed.
    """
    thread = threading.Thread(target=stop, name=f"isotherm-stop-{name}", daemon=True)
    thread.start()
    thread.join(timeout_s)
    if thread.is_alive():
        logger.warning("stop does not wait any longer work=%s timeout_s=%s", name, timeout_s)
        return False
    return True
