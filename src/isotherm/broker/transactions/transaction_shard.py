"""One shard of the transaction coordinator: the ids of a partition of `__transaction_state`."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

from isotherm.broker.coordinator_shards import CoordinatorShard
from isotherm.broker.transactions.transaction_state import TransactionMetadata
from isotherm.types import TopicPartition


@dataclass(slots=True, eq=False)
class Ending:
    """A transaction that is being ended (`transaction_endings`).

    Of its partitions, `unmarked` are tried next, `unanswered` is how many are waited for, and `again`
    are tried after a back-off. `settled` is done once nothing more happens without waiting for another
    broker or replica: then the client is answered.
    """

    shard: TransactionShard
    metadata: TransactionMetadata
    unmarked: deque[TopicPartition]
    settled: asyncio.Future[None]
    unanswered: int = 0
    again: list[TopicPartition] = field(default_factory=list)
    is_fenced: bool = False
    attempts: int = 0
    timer: asyncio.TimerHandle | None = None

    def tell(self) -> None:
        if not self.settled.done():
            self.settled.set_result(None)


class TransactionShard(CoordinatorShard):
    """The metadata of each id, and what ends with this broker's leadership: time-outs of open
    transactions, and the markers of those that are being ended."""

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
            ending.tell()
        self.endings.clear()
