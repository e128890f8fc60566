"""One shard of the transaction coordinator: the transactional ids of a partition of
`__transaction_state`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

from isotherm.broker.coordinators.coordinator_shards import CoordinatorShard
from isotherm.broker.coordinators.transactions.transaction_state import TransactionMetadata
from isotherm.types import TopicPartition


@dataclass(slots=True, eq=False)
class Ending:
    """A transaction that ends (`transaction_endings`).

    - `unmarked`: the partitions that are tried next.
    - `unanswered`: the number of markers whose outcome is awaited.
    - `again`: the partitions that are tried after a back-off.
    - `settled`: done once the end is complete or has to wait for another broker or replica. The
      client is then answered.
    """

    shard: TransactionShard
    metadata: TransactionMetadata
    unmarked: deque[TopicPartition]
    settled: asyncio.Future[None]
    unanswered: int = 0
    again: list[TopicPartition] = field(default_factory=list)
    is_fenced: bool = False
    logged_refusals: set[type[Exception]] = field(default_factory=set)
    attempts: int = 0
    timer: asyncio.TimerHandle | None = None

    def settle(self) -> None:
        if not self.settled.done():
            self.settled.set_result(None)


class TransactionShard(CoordinatorShard):
    """The metadata of each transactional id, with state that ends with this broker's leadership:
    timeouts of open transactions, and the endings in progress."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.by_id: dict[str, TransactionMetadata] = {}
        self.timeouts: dict[str, asyncio.TimerHandle] = {}
        self.endings: set[Ending] = set()

    def close(self) -> None:
        super().close()
        for timer in self.timeouts.values():
            timer.cancel()
        self.timeouts.clear()
        for ending in self.endings:
            if ending.timer is not None:
                ending.timer.cancel()
            ending.settle()
        self.endings.clear()
