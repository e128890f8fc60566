"""What a round of cleaning did. Source: Kafka CleanerStats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from isotherm.types import Offset


@dataclass(slots=True)
class CleanerStats:
    """Counts of one round; the cleaner adds to them while it works.

    The first pass reads the dirty part and fills the offset map (`map_...`), the second reads and
    rewrites every segment that may change. Messages are records, control records among them;
    those of batches that are dropped unread are not counted. `invalid_messages_read` had no key.
    Times are of a monotonic clock.
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
    """`end_offset` is the first offset not cleaned, where the next round's dirty part begins; 0
    when there was nothing dirty."""

    end_offset: Offset
    stats: CleanerStats
