"""Bounds the memory of the requests that a server reads: `queued.max.request.bytes`.

What has arrived counts, not what a client announces: the size field of a frame costs nothing. A
frame counts until its answer is handed over for sending. While the bytes reach the limit:

- No connection begins a frame. Of the frames that have arrived in part, those nearest to their end
  are read on (`frames_to_finish`), the others are not. So the bytes exceed the limit by at most one
  request of the largest size, and no request is too large to be accepted at all.
- A connection that holds nothing is read all the same, and a frame up to `share` to its end: those
  who keep the memory used up must not keep others from logging in, and small requests are answered
  at once. So the bytes exceed the limit by READ_SIZE_WITHOUT_MEMORY and `share` more for each such
  connection, until these come to `shared_max`; before the login the number of connections is the
  bound (`unauthenticated`).
- Frames whose clients have gone silent, and frames of the heaviest client if nothing helps within a
  second, end with their connections (`connections_to_end`). A client that announces much and sends
  little, or sends much and does not end, cannot keep the others from being read.

Kafka counts a frame when its size is known, and waits for its bytes as long as the connection lives
(SimpleMemoryPool); without a limit, its default, it runs out of memory. Event loop thread only.
"""

from __future__ import annotations

import collections
import heapq
import math
from collections.abc import Callable, Hashable, Iterable
from typing import Generic, NamedTuple, TypeVar

# The bytes have to fall to this share of the limit before reading resumes. Otherwise all
# connections would be paused and resumed for each request.
RESUME_SHARE = 7 / 8

NO_LIMIT = -1

Conn = TypeVar("Conn", bound=Hashable)


class RequestMemory:
    """`on_change` is called when `is_exhausted` changes, to pause or resume reading.

    A `limit` of NO_LIMIT means none. `overrun_max` is how many bytes more frames may bring that
    have arrived in part, unless one alone is larger. `share` is the largest frame in bytes that a
    connection which holds nothing may send without memory, `shared_max` how many bytes more than
    `limit` and `overrun_max` such frames may bring.
    """

    def __init__(
        self,
        limit: int,
        overrun_max: int,
        on_change: Callable[[RequestMemory], None],
        *,
        share: int,
        shared_max: float = math.inf,
    ) -> None:
        self.overrun_max = overrun_max
        self.limit = limit if limit >= 0 else math.inf
        self._share = share
        self._share_below = self.limit + overrun_max + shared_max
        self._resume_below = self.limit * RESUME_SHARE
        self._on_change = on_change
        # Whoever adds calls `exhaust` once the limit is reached.
        self.used = 0
        self.is_exhausted = self.limit <= 0

    @property
    def excess(self) -> int:
        """The bytes that have to be released before reading resumes."""
        return 0 if math.isinf(self.limit) else self.used - math.ceil(self._resume_below) + 1

    @property
    def share(self) -> int:
        """The largest frame in bytes that a connection which holds nothing may send now."""
        return self._share if self.used < self._share_below else 0

    def exhaust(self) -> None:
        if not self.is_exhausted:
            self._turn(is_exhausted=True)

    def release(self, size: int) -> None:
        assert size <= self.used
        self.used -= size
        if self.is_exhausted and self.used < self._resume_below:
            self._turn(is_exhausted=False)

    def _turn(self, *, is_exhausted: bool) -> None:
        self.is_exhausted = is_exhausted
        self._on_change(self)


def frames_to_finish(remaining: Iterable[tuple[Conn, int]], size_max: int) -> set[Conn]:
    """The connections that are read although memory is used up, because they soon free some.

    `remaining` has the bytes that each unfinished frame lacks. Those that lack least are chosen, at
    least one, while they lack at most `size_max` together.
    """
    chosen: set[Conn] = set()
    for connection, size in sorted(remaining, key=lambda entry: entry[1]):
        if chosen and size > size_max:
            break
        chosen.add(connection)
        size_max -= size
    return chosen


class Held(NamedTuple, Generic[Conn]):
    """Memory that a connection holds by its own fault: its client could end it by sending or by
    reading.
    """

    connection: Conn
    owner: Hashable
    size: int


def connections_to_end(held: Iterable[Held[Conn]], size: int) -> list[Conn]:
    """The connections whose end frees at least `size` bytes, if all of `held` do.

    The owner that holds most gives first, and of an owner's connections the one that holds most. So
    many small connections of one owner protect it as little as one large one, and an owner that
    holds little is ended last.
    """
    of_owners: dict[Hashable, list[Held[Conn]]] = collections.defaultdict(list)
    for memory in held:
        of_owners[memory.owner].append(memory)
    for of_owner in of_owners.values():
        of_owner.sort(key=lambda memory: memory.size)
    # A number breaks ties, since owners have no order.
    heap = [
        (-sum(memory.size for memory in of_owner), number, of_owner)
        for number, of_owner in enumerate(of_owners.values())
    ]
    heapq.heapify(heap)
    ended = []
    while size > 0 and heap:
        total, number, of_owner = heap[0]
        largest = of_owner.pop()
        ended.append(largest.connection)
        size -= largest.size
        if of_owner:
            heapq.heapreplace(heap, (total + largest.size, number, of_owner))
        else:
            heapq.heappop(heap)
    return ended
