"""Rebuilds the producer state at an offset: from the latest snapshot and the log after it."""

from __future__ import annotations

from collections.abc import Sequence

from isotherm.log.log_segment import LogSegment
from isotherm.log.producer_snapshots import ProducerSnapshots
from isotherm.log.producer_state import ProducerStateManager
from isotherm.types import Offset, TimestampMs


def rebuild_producers(
    producers: ProducerStateManager,
    snapshots: ProducerSnapshots,
    segments: Sequence[LogSegment],
    end_offset: Offset,
    now_ms: TimestampMs,
) -> None:
    """Set `producers` to the state below `end_offset`."""
    snapshots.load_latest(producers, end_offset, now_ms)
    if producers.map_end_offset == end_offset:
        return
    for index, segment in enumerate(segments):
        following = index + 1
        is_covered = (
            following < len(segments)
            and segments[following].base_offset <= producers.map_end_offset
        )
        if not is_covered and segment.base_offset < end_offset:
            _replay(producers, segment, end_offset)
    producers.map_end_offset = end_offset


def _replay(producers: ProducerStateManager, segment: LogSegment, end_offset: Offset) -> None:
    for position, header in segment.read_headers(producers.map_end_offset):
        if header.base_offset >= end_offset:
            return
        if header.has_producer_id:
            batch = segment.read_batch(position, header) if header.is_control else b""
            producers.apply(header, batch, 0)
