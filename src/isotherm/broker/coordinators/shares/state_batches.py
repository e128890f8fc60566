"""Ranges of offsets of a share partition whose records have the same delivery state. Pure.

A later write of a range overlaps earlier ones. Where ranges overlap, the higher delivery count
wins, and at equal counts the higher state: both only grow while a record is delivered.

Source: Kafka PersisterStateBatchCombiner, PersisterStateBatch.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Self

from isotherm.types import Offset

NO_START_OFFSET: Offset = -1


class StateBatch(NamedTuple):
    """The order of the fields is that of sorted batches."""

    first_offset: Offset
    last_offset_inclusive: Offset
    delivery_count: int
    delivery_state: int

    @property
    def delivery(self) -> tuple[int, int]:
        """What has precedence where batches overlap."""
        return self.delivery_count, self.delivery_state

    @classmethod
    def of(cls, entry: Any) -> Self:
        """The batch of an entry of a request, a response or a record."""
        return cls(
            entry.first_offset, entry.last_offset, entry.delivery_count, entry.delivery_state
        )

    def fields(self) -> Mapping[str, int]:
        """The fields of such an entry."""
        return {
            "first_offset": self.first_offset,
            "last_offset": self.last_offset_inclusive,
            "delivery_state": self.delivery_state,
            "delivery_count": self.delivery_count,
        }


def combined_batches(
    current: Iterable[StateBatch], later: Iterable[StateBatch], start_offset: Offset
) -> tuple[StateBatch, ...]:
    """The batches from `start_offset` on, sorted and without overlaps. NO_START_OFFSET keeps all.

    Neighbours of the same state are one batch, except where Kafka leaves two: a batch that took
    another's place at its first offset is not joined to the batch before it.
    """
    batches = [
        batch if batch.first_offset >= start_offset else batch._replace(first_offset=start_offset)
        for batch in (*current, *later)
        if start_offset == NO_START_OFFSET or batch.last_offset_inclusive >= start_offset
    ]
    if len(batches) < 2:
        return tuple(batches)
    heapq.heapify(batches)
    settled: list[StateBatch] = []
    before = heapq.heappop(batches)
    while batches:
        batch = heapq.heappop(batches)
        if batch == before:
            continue
        if not _meet(before, batch):
            settled.append(before)
            before = batch
            continue
        for part in _parts(before, batch):
            heapq.heappush(batches, part)
        before = heapq.heappop(batches)
    settled.append(before)
    return tuple(settled)


def _meet(before: StateBatch, batch: StateBatch) -> bool:
    if batch.first_offset <= before.last_offset_inclusive:
        return True
    is_next = batch.first_offset == before.last_offset_inclusive + 1
    return is_next and batch.delivery == before.delivery


def _parts(before: StateBatch, batch: StateBatch) -> list[StateBatch]:
    """What two batches that meet become; `before` is the smaller one."""
    if batch.delivery == before.delivery:
        end = max(before.last_offset_inclusive, batch.last_offset_inclusive)
        return [before._replace(last_offset_inclusive=end)]
    if batch.delivery < before.delivery:
        rest = batch._replace(first_offset=before.last_offset_inclusive + 1)
        return [before, rest] if _is_range(rest) else [before]
    head = before._replace(last_offset_inclusive=batch.first_offset - 1)
    tail = before._replace(first_offset=batch.last_offset_inclusive + 1)
    return [part for part in (head, batch, tail) if _is_range(part)]


def _is_range(batch: StateBatch) -> bool:
    return batch.first_offset <= batch.last_offset_inclusive
