"""Sends items to other brokers in batches, with one request in flight per broker.

Items that are submitted while a request is in flight are sent together with the next request. Each
broker has its own thread and connection, so a broker that does not answer delays no other.
Source: Kafka InterBrokerSendThread, as its TransactionMarkerChannelManager and
AddPartitionsToTxnManager use it.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from isotherm.broker.shared_futures import shared
from isotherm.broker.threads.step_thread import UNTIL_WOKEN_S, StepThread
from isotherm.client.node_address import NodeAddress
from isotherm.client.node_connection import NodeConnection
from isotherm.clock import Clock
from isotherm.errors import NotEnoughMemoryError, PeerDisconnectedError
from isotherm.types import BrokerId

STOP_TIMEOUT_S = 5.0

Item = TypeVar("Item")
Result = TypeVar("Result")


class _Destination(Generic[Item, Result]):
    """The queue, thread and connection of one broker."""

    def __init__(self, batches: PeerBatches[Item, Result], address: NodeAddress) -> None:
        self.address = address
        self._batches = batches
        self._connection = batches.connect(address)
        self._queue: deque[tuple[Item, asyncio.Future[Result]]] = deque()
        self._guard = threading.Lock()
        self._thread = StepThread(
            f"isotherm-{batches.name}-{address}",
            self._send_next,
            batches.clock,
            first_delay_s=UNTIL_WOKEN_S,
        )
        self._thread.start()

    def put(self, item: Item, answer: asyncio.Future[Result]) -> None:
        with self._guard:
            if len(self._queue) >= self._batches.queued_max:
                answer.set_exception(
                    NotEnoughMemoryError(
                        f"too many requests wait for a broker work={self._batches.name}"
                        f" peer={self.address} waiting={len(self._queue)}"
                    )
                )
                return
            self._queue.append((item, answer))
        self._thread.wake()

    def stop(self) -> None:
        """End the request in flight and all queued items with an error.

        Does not wait for the thread.
        """
        self._thread.begin_stop()
        self._connection.close()
        with self._guard:
            # After its `stop` a destination is out of reach, so nothing calls `put`.
            queued = list(self._queue)
            self._queue.clear()
        stopped = PeerDisconnectedError(f"the connection is closed peer={self.address}")
        self._batches.deliver([(answer, stopped) for _, answer in queued])

    def join(self) -> None:
        self._thread.join(STOP_TIMEOUT_S)

    def _send_next(self) -> float:
        with self._guard:
            count = min(len(self._queue), self._batches.batch_max)
            batch = [self._queue.popleft() for _ in range(count)]
        if not batch:
            return UNTIL_WOKEN_S
        items, answers = [item for item, _ in batch], [answer for _, answer in batch]
        outcomes: list[tuple[asyncio.Future[Result], Result | Exception]]
        try:
            results = self._batches.exchange(self._connection, items)
            outcomes = list(zip(answers, results, strict=True))
        # The boundary of the thread: the futures pass every error on.
        except Exception as error:  # noqa: BLE001
            outcomes = [(answer, error) for answer in answers]
        self._batches.deliver(outcomes)
        return 0


class PeerBatches(Generic[Item, Result]):
    """Event loop thread only, except `exchange` and `deliver`, which the threads of destinations
    call.
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[NodeAddress], NodeConnection],
        exchange: Callable[[NodeConnection, Sequence[Item]], Sequence[Result]],
        clock: Clock,
        *,
        queued_max: int,
        batch_max: int,
    ) -> None:
        """`exchange` sends items and returns a result for each, in order; it may raise. At most
        `queued_max` items wait per broker, and at most `batch_max` are in one request."""
        self.name = name
        self.connect = connect
        self.exchange = exchange
        self.clock = clock
        self.queued_max = queued_max
        self.batch_max = batch_max
        self._loop = asyncio.get_running_loop()
        self._destinations: dict[BrokerId, _Destination[Item, Result]] = {}

    def submit(
        self, broker_id: BrokerId, address: NodeAddress, item: Item
    ) -> asyncio.Future[Result]:
        """Queue an item. The future fails with PeerDisconnectedError, PeerTimeoutError,
        NotEnoughMemoryError if too many items wait for that broker, or an error of `exchange`."""
        answer: asyncio.Future[Result] = shared(self._loop.create_future())
        destination = self._destinations.get(broker_id)
        if destination is None or destination.address != address:
            if destination is not None:
                # The broker was restarted at another address.
                destination.stop()
            destination = self._destinations[broker_id] = _Destination(self, address)
        destination.put(item, answer)
        return answer

    def deliver(
        self, outcomes: Sequence[tuple[asyncio.Future[Result], Result | Exception]]
    ) -> None:
        """Complete futures. Any thread."""
        if outcomes and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_complete, outcomes)

    async def stop(self) -> None:
        destinations = tuple(self._destinations.values())
        self._destinations.clear()
        # All connections are closed before the first join, so that the threads end at the same
        # time.
        for destination in destinations:
            destination.stop()
        for destination in destinations:
            await self._loop.run_in_executor(None, destination.join)


def _complete(
    outcomes: Sequence[tuple[asyncio.Future[Result], Result | Exception]],
) -> None:
    for future, outcome in outcomes:
        if future.done():  # its request was cancelled
            continue
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
