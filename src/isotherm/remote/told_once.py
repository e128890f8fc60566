"""Damage is logged once, however often its consumers try again."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict

_logger = logging.getLogger(__name__)

_REMEMBERED_MAX = 1024
"""Places that are not logged again."""


class ToldOnce:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told: OrderedDict[str, None] = OrderedDict()

    def tell(self, place: str, text: str) -> None:
        """One line at ERROR, unless one was written of that place."""
        with self._lock:
            is_told = place in self._told
            self._told[place] = None
            if len(self._told) > _REMEMBERED_MAX:
                self._told.popitem(last=False)
        if not is_told:
            _logger.error("remote read is refused: %s", text)
