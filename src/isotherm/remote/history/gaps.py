"""Whether offsets inside a segment may have no record (docs/decisions/0071)."""

from __future__ import annotations

import enum


class Gaps(enum.Enum):
    """Gaps are allowed nowhere, in segments whose batches show that they were cleaned, or
    anywhere."""

    REFUSED = enum.auto()
    WHERE_CLEANED = enum.auto()
    PERMITTED = enum.auto()
