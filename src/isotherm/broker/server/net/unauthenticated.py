"""Bounds the connections whose clients have not logged in, in number and time.

A connection is here from its acceptance to the end of its login, or of its TLS handshake on a
listener without SASL. Before the login any stranger may hold it, so the number is bounded apart
from that of the others. Above `count_max` the connection ends that has been silent longest. A
client that logs in sends its next message within a round trip, so among many it is not the one,
while a silent stranger is.

Kafka has connections.max.idle.ms alone, which a byte in nine minutes prolongs. Event loop thread
only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Generic, Protocol, TypeVar

# Checks per timeout. So a connection is closed at most a quarter of it too late.
CHECKS_PER_TIMEOUT = 4


class Client(Hashable, Protocol):
    """The part of a connection that counts. `active_at` is the loop time of the last byte."""

    @property
    def active_at(self) -> float: ...


C = TypeVar("C", bound=Client)


class Unauthenticated(Generic[C]):
    """`end` closes a connection for a reason.

    It is called for connections that are no longer here.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        count_max: int,
        timeout_s: float,
        end: Callable[[C, str], None],
    ) -> None:
        self._loop = loop
        self._count_max = count_max
        self._timeout_s = timeout_s
        self._end = end
        # In the order of their beginning, which is the value.
        self._began_s: dict[C, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, connection: C) -> None:
        if len(self._began_s) >= self._count_max:
            silent = min(self._began_s, key=lambda waiting: waiting.active_at)
            del self._began_s[silent]
            self._end(silent, "too many connections before their login")
        self._began_s[connection] = self._loop.time()
        if self._timer is None:
            self._check_later()

    def remove(self, connection: C) -> None:
        """The client has logged in, or has gone. Does nothing for a connection that is not here."""
        self._began_s.pop(connection, None)
        if not self._began_s and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_later(self) -> None:
        self._timer = self._loop.call_later(self._timeout_s / CHECKS_PER_TIMEOUT, self._check)

    def _check(self) -> None:
        self._timer = None
        began_before_s = self._loop.time() - self._timeout_s
        for connection, began_s in tuple(self._began_s.items()):
            if began_s > began_before_s:
                break
            del self._began_s[connection]
            self._end(connection, "no login in time")
        if self._began_s:
            self._check_later()
