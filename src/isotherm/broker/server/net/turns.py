"""Shares the loop's time among the clients whose requests wait.

A read may bring thousands of small requests, and each loop iteration many reads. So requests have
ROUND_S of an iteration together. Once it is spent, connections with a request wait here for their
turn, each client's one after the other: a client with a thousand connections gets no more than one
with a single one. A turn is one request, or more while many connections do not wait. Between two
rounds the loop reads from all sockets.

In Kafka a connection has one request at a time in a queue that many threads serve, and a client
with more connections gets more. Event loop thread only.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar

logger = logging.getLogger(__name__)

# Far below the 50 ms of a single step (docs/decisions/0021): a healthy client waits for the
# requests of one round, and for the longest of them.
ROUND_S = 0.01


class Waiter(Hashable, Protocol):
    """The part of a connection that takes turns."""

    @property
    def client(self) -> Hashable: ...

    def take_turn(self) -> None:
        """Work on requests, one at the least, until `left_s` is spent. If others are left, `wait`
        again."""

    def abort(self) -> None:
        """End the connection: a turn has failed."""


W = TypeVar("W", bound=Waiter)


class Turns(Generic[W]):
    """Whoever works on a request subtracts its duration in seconds from `left_s`. At 0 or less it
    begins no other, and calls `wait`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.left_s = ROUND_S
        self._loop = loop
        # Both in the order of their turns. A connection is there at most once for each client.
        self._clients: OrderedDict[Hashable, OrderedDict[W, None]] = OrderedDict()
        self._count = 0
        self._next_round: asyncio.Handle | None = None

    def wait(self, connection: W) -> None:
        """Give the connection a turn later. It may have no requests then."""
        waiting = self._clients.setdefault(connection.client, OrderedDict())
        if connection not in waiting:
            waiting[connection] = None
            self._count += 1
        if self._next_round is None:
            self._next_round = self._loop.call_soon(self._begin_round)

    def _begin_round(self) -> None:
        self._next_round = None
        left_s = ROUND_S
        while self._clients and left_s > 0:
            client, waiting = self._clients.popitem(last=False)
            connection, _ = waiting.popitem(last=False)
            turn_s = min(left_s, ROUND_S / self._count)
            self._count -= 1
            # Behind the others, before the connection waits again.
            if waiting:
                self._clients[client] = waiting
            self.left_s = turn_s
            try:
                connection.take_turn()
            except Exception:
                # A defect. Whoever waits behind this client must not wait forever.
                logger.exception("a connection is closed, its turn has failed")
                connection.abort()
            left_s -= turn_s - self.left_s
        self.left_s = left_s
        if self._clients and self._next_round is None:
            self._next_round = self._loop.call_soon(self._begin_round)
