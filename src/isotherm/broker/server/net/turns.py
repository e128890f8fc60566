"""Shares the loop's time among the clients whose requests wait.

A read may bring thousands of small requests, and each loop iteration many reads. So requests have
ROUND_S of an iteration together. Once it is spent, connections with a request wait here for their
turn. A turn is one request, or more while many connections do not wait. Between two rounds the
loop reads from all sockets.

First a client is chosen, then one of its connections: a client with a thousand connections gets no
more than one with a single one. Both are chosen by the same rule: the one that has used the least
time, and during a part of the time the one that has waited longest. By the first a login does not
wait for all that others of its address, or of many addresses, have sent before. By the second
nobody waits for ever, however many newcomers there are (docs/decisions/0253).

In Kafka a connection has one request at a time in a queue that many threads serve, and a client
with more connections gets more. Event loop thread only.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Generic, Protocol, TypeVar

from isotherm.clock import Clock

logger = logging.getLogger(__name__)

# Far below the 50 ms of a single step (docs/decisions/0021): a healthy client waits for the
# requests of one round, and for the longest of them.
ROUND_S = 0.01

# Of the time of this many turns of equal duration one is given to whoever has waited longest.
TURNS_PER_OLDEST = 4

# The least that a turn is taken to last, so that even by a coarse clock the oldest have their part.
TURN_S_MIN = 1e-6

# How far a newcomer is ahead of those that have used the least. A login takes a tenth of it.
CREDIT_S = 0.01

# Clients whose times are kept while any waits. Above it all begin anew.
CLIENTS_MAX = 10_000


class Waiter(Hashable, Protocol):
    """The part of a connection that takes turns.

    `turn_time` is for `Turns` alone, and (0, 0) at the beginning: the line in which it last had a
    turn, and the time in seconds that it has used there.
    """

    turn_time: tuple[int, float]

    @property
    def client(self) -> Hashable: ...

    def take_turn(self) -> None:
        """Work on requests, one at the least, until `left_s` is spent. If others are left, `wait`
        again."""

    def abort(self) -> None:
        """End the connection: a turn has failed."""


K = TypeVar("K", bound=Hashable)
W = TypeVar("W", bound=Waiter)


class _Line(Generic[K]):
    """Who waits, each with the time in seconds that it has used. `number` is that of the line."""

    __slots__ = (
        "_balance_s",
        "_by_use",
        "_level_s",
        "_numbers",
        "_took_oldest",
        "_waiting",
        "number",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self._numbers = count()
        # In the order in which they began to wait. The heap has some that wait no more.
        self._waiting: OrderedDict[K, tuple[float, int]] = OrderedDict()
        self._by_use: list[tuple[float, int, K]] = []
        self._took_oldest = False
        # What those that had used the least had above their part of the time.
        self._balance_s = 0.0
        # The time that those who use the least have used.
        self._level_s = 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: K, used_s: float) -> None:
        # Without a credit from long ago, which would let it go before others for as long.
        used_s, number = max(used_s, self._level_s - CREDIT_S), next(self._numbers)
        self._waiting[key] = used_s, number
        heappush(self._by_use, (used_s, number, key))
        if len(self._by_use) > 2 * len(self._waiting) + 8:
            self._by_use = [(*entry, key) for key, entry in self._waiting.items()]
            heapify(self._by_use)

    def take(self) -> tuple[K, float]:
        """Returns who is next, and the time that it has used. Only if anybody waits."""
        self._took_oldest = self._balance_s >= 0
        if self._took_oldest:
            key, (used_s, _) = self._waiting.popitem(last=False)
            return key, used_s
        while True:
            used_s, number, key = heappop(self._by_use)
            if self._waiting.get(key) == (used_s, number):
                del self._waiting[key]
                self._level_s = max(self._level_s, used_s)
                return key, used_s

    def spend(self, spent_s: float) -> None:
        """Count the turn of who was taken last."""
        self._balance_s += -(TURNS_PER_OLDEST - 1) * spent_s if self._took_oldest else spent_s


class Turns(Generic[W]):
    """Whoever works on a request subtracts its duration in seconds, by `now_s`, from `left_s`. At 0
    or less it begins no other, and calls `wait`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self.left_s = ROUND_S
        self.now_s = clock.monotonic_s
        self._loop = loop
        self._numbers = count(1)
        self._clients: _Line[Hashable] = _Line(0)
        # Of each client that waits.
        self._lines: dict[Hashable, _Line[W]] = {}
        self._waiting: set[W] = set()
        # Of each client that has had a turn since nobody waited.
        self._used_s: dict[Hashable, float] = {}
        self._at_turn: W | None = None
        self._waits_again = False
        self._next_round: asyncio.Handle | None = None

    def wait(self, connection: W) -> None:
        """Give the connection a turn later. It may have no requests then."""
        if connection is self._at_turn:
            # What it has used is known when the turn ends.
            self._waits_again = True
            return
        if connection not in self._waiting:
            self._waiting.add(connection)
            client = connection.client
            line = self._lines.get(client)
            if line is None:
                line = self._lines[client] = _Line(next(self._numbers))
                self._clients.add(client, self._used_s.get(client, 0.0))
            number, used_s = connection.turn_time
            line.add(connection, used_s if number == line.number else 0.0)
        if self._next_round is None:
            self._next_round = self._loop.call_soon(self._begin_round)

    def _begin_round(self) -> None:
        self._next_round = None
        left_s = ROUND_S
        while self._waiting and left_s > 0:
            left_s -= self._give_turn(left_s)
        self.left_s = left_s
        if not self._waiting:
            self._used_s.clear()
            self._clients = _Line(0)
        elif self._next_round is None:
            self._next_round = self._loop.call_soon(self._begin_round)

    def _give_turn(self, left_s: float) -> float:
        """Returns the seconds that it took."""
        client, client_used_s = self._clients.take()
        line = self._lines[client]
        connection, used_s = line.take()
        self.left_s = turn_s = min(left_s, ROUND_S / len(self._waiting))
        self._waiting.discard(connection)
        self._at_turn, self._waits_again = connection, False
        try:
            connection.take_turn()
        except Exception:
            # A defect. Whoever waits behind this client must not wait forever.
            logger.exception("a connection is closed, its turn has failed")
            connection.abort()
        self._at_turn = None
        took_s = turn_s - self.left_s
        spent_s = max(took_s, TURN_S_MIN)
        line.spend(spent_s)
        self._clients.spend(spent_s)
        connection.turn_time = line.number, used_s + spent_s
        if len(self._used_s) >= CLIENTS_MAX:
            self._used_s.clear()
        self._used_s[client] = client_used_s + spent_s
        if self._waits_again and connection.client == client:
            self._waiting.add(connection)
            line.add(connection, used_s + spent_s)
        elif self._waits_again:  # its login has ended
            self.wait(connection)
        if line:
            self._clients.add(client, client_used_s + spent_s)
        else:
            del self._lines[client]
        return took_s
