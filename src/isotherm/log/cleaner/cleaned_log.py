"""The result of a round of cleaning. Source: Kafka CleanerStats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from isotherm.types import Offset


@dataclass(slots=True)
class CleanerStats:
    """Counts of one round. The cleaner updates them while it works.

    The first pass reads the dirty section and fills the offset map (`map_...`). The second reads
    and rewrites every segment that may change. Messages are records, including control records.
    Records of batches that are dropped without decoding do not count. `invalid_messages_read` had
    no key. Times are of a monotonic clock.
    """

    start_s: float
    map_bytes_read: int = 0
    map_messages_read: int = 0
    bytes_read: int = 0
    messages_read: int = 0
    invalid_messages_read: int = 0
    bytes_written: int = 0
    messages_written: int = 0
    buffer_utilization: float = 0.0
    map_complete_s: float = -1.0
    end_s: float = -1.0

    @property
    def elapsed_s(self) -> float:
        return self.end_s - self.start_s

    @property
    def elapsed_map_s(self) -> float:
        return self.map_complete_s - self.start_s


class CleanedLog(NamedTuple):
    """`end_offset` is the first offset that was not cleaned, where the next round's dirty section
    begins; 0 if nothing was dirty."""

    end_offset: Offset
    stats: CleanerStats
