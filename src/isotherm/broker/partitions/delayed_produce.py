"""Produce requests with acks=all that wait for the in-sync replicas.

Source: Kafka DelayedProduce.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from kio.schema.errors import ErrorCode

from isotherm.broker.partitions.partition import Partition
from isotherm.types import Offset, TopicPartition


class AwaitedAppend(NamedTuple):
    """Appended records up to `end_offset` (exclusive). `term` is the partition's at the append."""

    partition: Partition
    end_offset: Offset
    term: int


class DelayedProduce:
    """Completes when every append is on all in-sync replicas or has failed.

    `outcomes` has the results.
    """

    def __init__(self, awaited: Sequence[AwaitedAppend], loop: asyncio.AbstractEventLoop) -> None:
        self.future: asyncio.Future[object] = loop.create_future()
        self._awaited = awaited
        self._outcomes: dict[int, ErrorCode] = {}

    @property
    def keys(self) -> list[TopicPartition]:
        return [append.partition.topic_partition for append in self._awaited]

    @property
    def outcomes(self) -> list[ErrorCode]:
        """The error code of each append, once `future` is done. REQUEST_TIMED_OUT for an append
        that was not decided in time."""
        return [
            self._outcomes.get(index, ErrorCode.request_timed_out)
            for index in range(len(self._awaited))
        ]

    def try_complete(self, key: Hashable | None) -> bool:
        """Check the appends to the partition `key`, or all appends if `key` is None."""
        for index, (partition, end_offset, term) in enumerate(self._awaited):
            # Decided once: a later loss of the leadership does not take an acknowledgement back.
            if index in self._outcomes or key not in (None, partition.topic_partition):
                continue
            outcome = partition.acks_outcome(end_offset, term)
            if outcome is not None:
                self._outcomes[index] = outcome
        if len(self._outcomes) == len(self._awaited):
            self.expire()
        return self.future.done()

    def expire(self) -> None:
        self.future.set_result(None)
