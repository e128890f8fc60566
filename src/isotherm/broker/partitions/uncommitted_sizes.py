"""Counts the appended bytes of a partition below its high watermark. Pure.

A waiting consumer compares two readings of it, and so learns how much became visible without reading
the log. Between two known batches it counts too little, and the consumer waits a little longer.
"""

from __future__ import annotations

from collections import deque

from isotherm.types import Offset

APPENDS_KEPT_MAX = 1024
"""More appends than this above the high watermark are counted in larger steps."""


class UncommittedSizes:
    def __init__(self) -> None:
        # (end offset of an append, bytes appended until then), both rising.
        self._appends: deque[tuple[Offset, int]] = deque()

    def note_append(self, end_offset: Offset, appended_size: int) -> None:
        """The log has grown to `end_offset`. Where it was truncated before, what was cut off counts no
        more."""
        while self._appends and self._appends[-1][0] >= end_offset:
            self._appends.pop()
        if len(self._appends) == APPENDS_KEPT_MAX:
            self._appends.pop()
        self._appends.append((end_offset, appended_size))

    def committed_size(self, high_watermark: Offset) -> int | None:
        """The bytes appended until the last append below `high_watermark`; None if that is known."""
        found = None
        while self._appends and self._appends[0][0] <= high_watermark:
            found = self._appends.popleft()[1]
        return found

    def clear(self) -> None:
        self._appends.clear()
