"""Logs damage once. Its consumers retry, and each retry meets the same damage."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict

_logger = logging.getLogger(__name__)

_REMEMBERED_MAX = 1024
"""Most places that are remembered as logged."""


class DamageLog:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._logged: OrderedDict[str, None] = OrderedDict()

    def log_once(self, place: str, text: str) -> None:
        """Log one line at ERROR, unless one was logged for `place` before."""
        with self._lock:
            is_logged = place in self._logged
            self._logged[place] = None
            if len(self._logged) > _REMEMBERED_MAX:
                self._logged.popitem(last=False)
        if not is_logged:
            _logger.error("remote read is refused: %s", text)
