"""A batch that is appended only where the log ends at a certain offset.

The condition is in the batch's base offset, which every leader overwrites, and which the CRC leaves
out: -1 - the offset at which the log must end. Other batches of producers have 0 there. A leader
that does not know of conditions, such as Apache Kafka's, refuses the batch (INVALID_RECORD) instead
of appending it without a look. Source: docs/decisions/0103; Kafka
UnifiedLog.analyzeAndValidateRecords.
"""

from __future__ import annotations

import struct

from isotherm.types import Offset

_BASE_OFFSET = struct.Struct(">q")


def set_condition(batch: bytearray, end_offset: Offset) -> None:
    """Let a leader append the batch only if its log ends at `end_offset`."""
    _BASE_OFFSET.pack_into(batch, 0, -1 - end_offset)


def take_condition(batch: bytearray | memoryview) -> Offset | None:
    """The offset at which the log must end; None for a batch without a condition.

    The batch, at least 8 bytes that may be written to, is without one afterwards.
    """
    (condition,) = _BASE_OFFSET.unpack_from(batch)
    if condition >= 0:
        return None
    # The checks of produced batches demand 0 there, as Kafka's do.
    _BASE_OFFSET.pack_into(batch, 0, 0)
    return -1 - int(condition)
