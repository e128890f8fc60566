"""Rebuilds the producer state at an offset: from the latest snapshot and the log after it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from isotherm.log.batch_scan import SoundBatches
from isotherm.log.log_segment import LogSegment
from isotherm.log.producer_snapshots import ProducerSnapshots
from isotherm.log.producer_state import BATCHES_KEPT_MAX, ProducerStateManager
from isotherm.record.batch_header import CONTROL_FLAG, TRANSACTIONAL_FLAG
from isotherm.segment.transaction_index import AbortedTransaction
from isotherm.types import Offset, TimestampMs

if TYPE_CHECKING:
    from isotherm.record.batch_table import BatchTable, BoolArray, Int64Array


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
            # Only markers are read. Other batches change the state by their headers.
            batch = segment.read_batch(position, header) if header.is_control else b""
            producers.apply(header, batch, 0)


def apply_batches(
    producers: ProducerStateManager, sound: SoundBatches
) -> Iterator[AbortedTransaction]:
    """Apply batches that follow one another, and yield the transactions that they abort."""
    for row in deciding_rows(sound.batches).tolist():
        header = sound.header(row)
        position = int(sound.batches["position"][row])
        aborted = producers.apply(header, sound.data, position)
        if aborted is not None:
            yield aborted


def deciding_rows(batches: BatchTable) -> Int64Array:
    """The rows that give the same state as all rows, in their order.

    They are the markers and, of each producer's batches between two markers, the first one, the
    first of a transaction, and as many of the last as its state keeps.
    """
    is_chosen = batches["producer_id"] >= 0
    if is_chosen.sum() > BATCHES_KEPT_MAX:
        is_marker = is_chosen & (batches["attributes"] & CONTROL_FLAG != 0)
        # Markers of other producers divide, too. That chooses more rows than necessary, never
        # fewer.
        divisions = np.cumsum(is_marker)
        written = np.flatnonzero(is_chosen & ~is_marker)
        is_chosen = is_marker
        is_chosen[written[_deciding(batches[written], divisions[written])]] = True
    return np.flatnonzero(is_chosen)


def _deciding(batches: BatchTable, divisions: Int64Array) -> BoolArray:
    """Whether each of these batches is chosen; none is a marker. The batches of a producer within a
    division form a group."""
    count = len(batches)
    order = np.lexsort((divisions, batches["producer_id"]))
    ordered = batches[order]
    is_first = np.ones(count, np.bool_)
    is_first[1:] = np.diff(ordered["producer_id"]) != 0
    is_first[1:] |= np.diff(divisions[order]) != 0
    starts = np.flatnonzero(is_first)
    sizes = np.diff(starts, append=count)
    is_last = np.repeat(starts + sizes, sizes) - np.arange(count) <= BATCHES_KEPT_MAX
    is_chosen = is_first | is_last
    transactional = np.flatnonzero(ordered["attributes"] & TRANSACTIONAL_FLAG != 0)
    _, firsts = np.unique(np.cumsum(is_first)[transactional], return_index=True)
    is_chosen[transactional[firsts]] = True
    chosen = np.zeros(count, np.bool_)
    chosen[order] = is_chosen
    return chosen
