"""The map of a repartition, from the offsets of the old topic to those of the new one, in ranges.

The records of one old partition that go into one new partition keep their order. So a range of old
offsets, of which some records are in a new partition, has a range of new offsets there. A task that
writes a history makes these ranges of the rows that it has sorted in any case: no record is sent
anywhere for the map.

A range ends where a group has committed: a group has seen either all of it or nothing. So what
`translated_offsets` answers is exact, and one number for each range is enough. Only ranges of an
earlier run, which did not have the group's offset, may be seen in part. They count as unseen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from isotherm.types import Offset, TopicIdPartition

if TYPE_CHECKING:
    from isotherm.record.batch_table import Int64Array

_MOVED: dict[str, pa.DataType] = {
    "old_partition": pa.int32(),
    "old_start_offset": pa.int64(),
    "old_end_offset": pa.int64(),
    "new_partition": pa.int32(),
    "new_start_offset": pa.int64(),
    "new_end_offset": pa.int64(),
    "records": pa.int64(),
}
MOVED = pa.schema(_MOVED)
"""Offsets are half-open ranges: `records` records of the old one are in the new one, which has
those of other old partitions too. A range without records has been copied, and had none."""


@dataclass(frozen=True, slots=True)
class MovedRules:
    """How ranges are made. A row's TIE is its old offset * `old_partitions` + its old partition.
    `committed` has the offsets of all groups by old partition, ascending. `range_bytes` of rows
    have one range for each old partition. Picklable."""

    old_partitions: int
    committed: Mapping[int, tuple[Offset, ...]]
    range_bytes: int


class TranslatedOffset(NamedTuple):
    """The offset of a group in a partition of the new topic. `repeated` is the number of records
    from there on that the group has seen; at most, if it has seen an earlier run's range in
    part."""

    group: str
    partition: int
    offset: Offset
    repeated: int


def moved_rules(
    old_partitions: int, committed: Mapping[str, Mapping[int, Offset]], range_bytes: int
) -> MovedRules:
    cuts: dict[int, set[Offset]] = {}
    for offsets in committed.values():
        for partition, offset in offsets.items():
            cuts.setdefault(partition, set()).add(offset)
    chosen = {partition: tuple(sorted(offsets)) for partition, offsets in cuts.items()}
    return MovedRules(old_partitions, chosen, range_bytes)


def moved_ranges(
    rows: pa.RecordBatch, new_partition: int, new_offset: Offset, rules: MovedRules
) -> pa.RecordBatch:
    """The ranges of rows that have the offsets from `new_offset` on, with the columns of MOVED."""
    step = max(1, len(rows) * rules.range_bytes // max(rows.nbytes, 1))
    ties: Any = rows["tie"]
    values = ties.to_numpy()
    ranges: list[tuple[int, ...]] = []
    for start in range(0, len(rows), step):
        part = values[start : start + step]
        ranges += _ranges(part, new_partition, new_offset + start, rules)
    columns = zip(*ranges, strict=True) if ranges else [()] * len(MOVED)
    return pa.RecordBatch.from_arrays(
        [pa.array(column, kind.type) for column, kind in zip(columns, MOVED, strict=True)],
        schema=MOVED,
    )


def _ranges(
    ties: Int64Array, new_partition: int, new_offset: Offset, rules: MovedRules
) -> Iterable[tuple[int, ...]]:
    partitions, offsets = ties % rules.old_partitions, ties // rules.old_partitions
    # Stable: the rows of one old partition stay in their order.
    order = np.argsort(partitions, kind="stable")
    bounds = np.flatnonzero(np.diff(partitions[order])) + 1
    for places in np.split(order, bounds):
        old_partition, old = int(partitions[places[0]]), offsets[places]
        cuts = np.searchsorted(old, rules.committed.get(old_partition, ())).tolist()
        for start, end in pairwise([0, *cuts, len(old)]):
            if start < end:
                yield (
                    old_partition,
                    int(old[start]),
                    int(old[end - 1]) + 1,
                    new_partition,
                    new_offset + int(places[start]),
                    new_offset + int(places[end - 1]) + 1,
                    end - start,
                )


def translated_offsets(
    moved: pa.Table,
    committed: Mapping[str, Mapping[int, Offset]],
    starts: Mapping[TopicIdPartition, Offset],
) -> list[TranslatedOffset]:
    """For each group and new partition the largest offset before which the group has seen
    everything.

    `starts` has the offset in each new partition where `moved` begins; the groups have seen what is
    before. A partition without a committed offset counts as unseen.
    """
    columns: dict[str, Any] = {name: moved[name].to_numpy() for name in MOVED.names}
    has_records = columns["records"] > 0
    columns = {name: column[has_records] for name, column in columns.items()}
    return [
        _translated(group, offsets, columns, owner.partition, start)
        for group, offsets in sorted(committed.items())
        for owner, start in starts.items()
    ]


def _translated(
    group: str,
    committed: Mapping[int, Offset],
    columns: Mapping[str, Int64Array],
    new_partition: int,
    start: Offset,
) -> TranslatedOffset:
    is_mine = columns["new_partition"] == new_partition
    mine = {name: column[is_mine] for name, column in columns.items()}
    ends = _committed_of(mine["old_partition"], committed)
    is_seen = mine["old_end_offset"] <= ends
    unseen = mine["new_start_offset"][~is_seen]
    if not len(unseen):
        return TranslatedOffset(group, new_partition, start + int(mine["records"].sum()), 0)
    first = int(unseen.min())
    # Everything before the first unseen record is seen.
    in_part = mine["old_start_offset"] < ends
    seen = int(mine["records"][in_part].sum()) - int((in_part & ~is_seen).sum())
    return TranslatedOffset(group, new_partition, first, max(0, seen - (first - start)))


def _committed_of(partitions: Int64Array, committed: Mapping[int, Offset]) -> Int64Array:
    """The committed offset of each of the partitions."""
    offsets: Sequence[Offset] = [
        committed.get(partition, 0) for partition in range(int(partitions.max(initial=-1)) + 1)
    ]
    return np.array(offsets, dtype=np.int64)[partitions]
