"""A tiered partition that was compacted before: segments of two offsets, of which a pattern says
which have a record."""

from __future__ import annotations

import os
from pathlib import Path

from isotherm.record.batch import build_batch
from isotherm.types import Offset
from tests.support.tiered_partition import TieredPartition

PER_SEGMENT = 2
SEGMENT_BYTES = 150
"""Two batches of one record. So the cleaner never joins two segments."""

FULL, BEHIND, BEFORE, EMPTY = "oo", "o.", ".o", ".."
"""Which records the cleaner leaves in a segment."""

PATTERNS = [
    (EMPTY, FULL, FULL),
    (FULL, EMPTY, FULL),
    (FULL, FULL, EMPTY),
    (EMPTY, EMPTY, FULL, EMPTY, EMPTY, FULL, EMPTY, EMPTY),
    (EMPTY, EMPTY, EMPTY),
    (BEFORE, BEHIND, EMPTY, BEFORE, BEHIND),
    (EMPTY, BEFORE, EMPTY, BEHIND, EMPTY),
]


def open_compacted(
    directory: Path, pattern: tuple[str, ...], *, new_epoch_at: Offset | None = None
) -> TieredPartition:
    """A log whose closed segments have the records of `pattern`, and an active one with one
    record.
    """
    size = max(map(len, pattern))
    partition = TieredPartition(
        directory, internal_segment_bytes=SEGMENT_BYTES * size // PER_SEGMENT
    )
    offset = 0
    for marks in pattern:
        for mark in marks:
            partition.leader_epoch += offset == new_epoch_at
            append(partition, offset, b"v" if mark == "o" else None)
            offset += 1
        partition.log.roll()
    append(partition, offset, b"v")
    partition.compact()
    if pattern[-1] == EMPTY:
        lose_records(partition)
    for segment in partition.log.segments():
        os.utime(segment.log_path, (1, 1))  # as old as the records
    return partition


def lose_records(partition: TieredPartition) -> None:
    """Empty the last closed segment, as a power loss does.

    The cleaner keeps the last batch of a round.
    """
    segment = partition.log.segments()[-2]
    for path in (segment.log_path, segment.offset_index_path, segment.time_index_path):
        path.write_bytes(b"")
    partition.restart()


def append(partition: TieredPartition, offset: Offset, value: bytes | None) -> None:
    record = (1000 + offset, b"%03d" % offset, value, ())
    assert partition.append_batch(build_batch([record])) == offset


def offsets_of(pattern: tuple[str, ...]) -> list[Offset]:
    """The offsets that have a record."""
    text = "".join(pattern) + "o"
    return [offset for offset, mark in enumerate(text) if mark == "o"]


def copy_all(partition: TieredPartition) -> None:
    """Copy all closed segments and delete them locally; the active one stays."""
    partition.copy_task.run()
    partition.update_config(local_retention_bytes=1)
    partition.log.delete_old_segments(partition.clock.now_ms())
