"""Counts the appended bytes of a partition below its high watermark. Pure.

A waiting fetch compares two readings, and so learns how many bytes became visible without reading
the log. If the high watermark lies inside an append, the count is too low, and the fetch waits a
little longer.
"""

from __future__ import annotations

from collections import deque

from isotherm.types import Offset

APPENDS_KEPT_MAX = 1024
"""Above this number of uncommitted appends, the newest are merged, so they are counted in larger
steps.
"""


class UncommittedSizes:
    def __init__(self) -> None:
        # (end offset of an append, bytes appended until then), both rising.
        self._appends: deque[tuple[Offset, int]] = deque()

    def note_append(self, end_offset: Offset, appended_size: int) -> None:
        """The log has grown to `end_offset`.

        Entries at or above it were truncated since, and are dropped.
        """
        while self._appends and self._appends[-1][0] >= end_offset:
            self._appends.pop()
        if len(self._appends) == APPENDS_KEPT_MAX:
            self._appends.pop()
        self._appends.append((end_offset, appended_size))

    def committed_size(self, high_watermark: Offset) -> int | None:
        """`appended_size` of the last append that ends at or below `high_watermark`; None if no
        such append is left."""
        size = None
        while self._appends and self._appends[0][0] <= high_watermark:
            size = self._appends.popleft()[1]
        return size

    def clear(self) -> None:
        self._appends.clear()
