"""Whether offsets inside a segment may have no record (docs/decisions/0071)."""

from __future__ import annotations

import enum


class Gaps(enum.Enum):
    """Nowhere; beside batches that show that a cleaner has been there; or anywhere."""

    REFUSED = enum.auto()
    WHERE_CLEANED = enum.auto()
    PERMITTED = enum.auto()
