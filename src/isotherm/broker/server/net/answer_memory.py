"""Bounds the memory of the answers that clients have not taken yet: `queued.max.response.bytes`.

An answer is in memory until its client has read it. `connection.write.buffer.max.bytes` bounds
those of one connection, and this the sum over all. While the sum reaches the limit, fetches return
less: one batch, so that a consumer goes on. Connections that take nothing meanwhile are ended, the
heaviest client's first (`request_memory.connections_to_end`).

Kafka sends records from files, and holds none. Event loop thread only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from isotherm.broker.server.net.request_memory import Held, connections_to_end

# Connections that have taken nothing for this time end when memory is used up.
STALLED_S = 1.0
# If memory is used up for this time, the heaviest end too, although they take a byte now and then.
EXHAUSTED_S_MAX = 10.0

# The true sizes are summed up when the answers sent since the last time may have reached this share
# of the limit, and at most so often.
CHECK_SHARE = 1 / 2
CHECK_INTERVAL_S = 0.1


class Reader(Hashable, Protocol):
    """The part of a connection that counts."""

    @property
    def answer_size(self) -> int:
        """Bytes of its answers that its socket has not taken."""

    @property
    def answered_size(self) -> int:
        """Bytes of all its answers."""

    @property
    def client(self) -> Hashable: ...


R = TypeVar("R", bound=Reader)


class _Taken(NamedTuple):
    """How many bytes a client had taken at a check, and since when it has taken no more."""

    size: int
    since_s: float


class AnswerMemory(Generic[R]):
    """Whoever sends an answer adds its size to `used`, and calls `check` once that reaches `limit`.

    A limit of -1 means no limit. `connections` are all of a server. `end` ends some.
    """

    def __init__(
        self,
        limit: int,
        connections: Iterable[R],
        now_s: Callable[[], float],
        end: Callable[[Sequence[R]], None],
    ) -> None:
        self.limit = limit if limit >= 0 else math.inf
        # While `used` and an answer stay below it, nobody needs to ask for `room`.
        self.plenty = self.limit * CHECK_SHARE
        self._connections = connections
        self._now_s = now_s
        self._end = end
        # An upper bound: what clients have taken since the last check still counts.
        self.used = 0
        self._taken: dict[R, _Taken] = {}
        self._checked_s = -math.inf
        self._exhausted_s: float | None = None

    def room(self, size: int) -> int:
        """How many of `size` bytes an answer may have; 0 if memory is used up."""
        if self.used + size <= self.plenty:
            return size
        self.check()
        return max(0, min(size, int(self.limit) - self.used))

    def check(self) -> None:
        """Sum up what is true. Ends connections if that reaches the limit."""
        now_s = self._now_s()
        if now_s - self._checked_s < CHECK_INTERVAL_S:
            return
        self._checked_s = now_s
        sizes = {
            connection: size for connection in self._connections if (size := connection.answer_size)
        }
        self.used = sum(sizes.values())
        before, self._taken = self._taken, {}
        for connection, size in sizes.items():
            taken = connection.answered_size - size
            earlier = before.get(connection)
            if earlier is None or earlier.size != taken:
                earlier = _Taken(taken, now_s)
            self._taken[connection] = earlier
        if self.used < self.limit:
            self._exhausted_s = None
            return
        if self._exhausted_s is None:
            self._exhausted_s = now_s
        has_lasted = now_s - self._exhausted_s >= EXHAUSTED_S_MAX
        held = [
            Held(connection, connection.client, size)
            for connection, size in sizes.items()
            if has_lasted or now_s - self._taken[connection].since_s >= STALLED_S
        ]
        self._end(connections_to_end(held, int(self.used - self.plenty)))
