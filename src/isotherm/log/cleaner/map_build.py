"""The first pass over a log: finds the newest offset of each key in the dirty section.

Source: Kafka Cleaner.buildOffsetMap.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from isotherm.log.cleaner.chunk_reader import ChunkReader
from isotherm.log.cleaner.cleaned_log import CleanerStats
from isotherm.log.cleaner.offset_map import OffsetMap
from isotherm.log.log_read import aborted_transactions, floor_index
from isotherm.log.log_segment import LogSegment
from isotherm.record.batch_table import verify_crcs
from isotherm.record.filter import locate_records
from isotherm.segment.cleaning.chunk import Chunk
from isotherm.segment.cleaning.transactions import CleanedTransactions
from isotherm.types import Offset


def build_offset_map(
    offset_map: OffsetMap,
    segments: Sequence[LogSegment],
    end_offset: Offset,
    reader: ChunkReader,
    stats: CleanerStats,
) -> None:
    """Add the keys from the map's first offset to `end_offset`, a segment's base, or until the map
    is full.

    `latest_offset` is then the last offset that was added, which may be within a batch.
    `segments` are the log's, including the one at `end_offset`. Control batches, aborted
    transactions and records without a key are skipped. Raises CorruptRecordError for a batch that
    fails its CRC: a damaged key would delete records elsewhere.
    """
    start_offset = offset_map.first_offset
    first = max(0, floor_index(segments, start_offset))
    dirty = [segment for segment in segments[first:] if segment.base_offset < end_offset]
    transactions = CleanedTransactions()
    # From the start of the dirty section, not of its segment as in Kafka: the markers below are
    # not read, and what those producers committed later would count as aborted
    # (docs/decisions/0023).
    transactions.add_aborted(aborted_transactions(segments[first:], start_offset, end_offset))
    for index, segment in enumerate(dirty):
        first_batch = segment.find_batch(start_offset)
        position = segment.size_in_bytes if first_batch is None else first_batch.position
        for chunk in reader.chunks(segment, position):
            if not _add_chunk(offset_map, chunk, transactions, stats):
                return
        following = index + 1
        next_base = dirty[following].base_offset if following < len(dirty) else end_offset
        # Includes gaps at the end of the segment: the next record has the next base or more.
        offset_map.latest_offset = next_base - 1


def _add_chunk(
    offset_map: OffsetMap,
    chunk: Chunk,
    transactions: CleanedTransactions,
    stats: CleanerStats,
) -> bool:
    """Add the keys of a chunk. False if the map was full before its end."""
    batches = chunk.batches
    verify_crcs(chunk.data, batches)
    # Skipped records must not enter the map: they would remove records that readers still see.
    is_skipped = chunk.is_control
    for row, header in chunk.transactional_headers():
        if header.is_control:
            transactions.on_control_batch(header, chunk.control_record(row, header))
        else:
            is_skipped[row] = transactions.on_data_batch(header)
    batches["records_count"][is_skipped] = 0
    places = locate_records(chunk.data, chunk.unpacked, batches)
    hashes = offset_map.hash_keys(chunk.array, chunk.unpacked, batches, places)
    rejected = offset_map.put(places, hashes)
    last_offsets = chunk.last_offsets
    # The map is full within this chunk. Only the records before the rejected one are in it.
    if rejected >= 0:
        row = int(places["batch"][rejected])
        own = places[:rejected][places["batch"][:rejected] == row]
        is_taken = (own["key_size"] >= 0) & (own["offset"] >= offset_map.first_offset)
        taken = own["offset"][is_taken]
        stats.map_messages_read += int(chunk.records_count[:row].sum()) + len(own)
        _raise_latest_offset(offset_map, np.append(last_offsets[:row], taken))
        return False
    stats.map_messages_read += int(chunk.records_count.sum())
    stats.map_bytes_read += chunk.size
    _raise_latest_offset(offset_map, last_offsets)
    return True


def _raise_latest_offset(
    offset_map: OffsetMap, offsets: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> None:
    """Set it to the last of these ascending offsets, unless that is below the dirty section."""
    if len(offsets) and offsets[-1] >= offset_map.first_offset:
        offset_map.latest_offset = int(offsets[-1])
