"""Frees request memory that is used up: lets frames end that soon do, and ends connections whose
frames do not.

`request_memory` has the rules, and says why. Event loop thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Generic, Protocol, TypeVar

from isotherm.broker.server.net.request_memory import (
    Held,
    RequestMemory,
    connections_to_end,
    frames_to_finish,
)

# While request memory is used up, frames that hold it are looked at so often. A frame whose client
# has sent nothing for the second time ends. If memory is used up for the third, frames of the
# heaviest client end.
RELIEF_INTERVAL_S = 0.1
SILENT_S = 1.0
EXHAUSTED_S_MAX = 1.0


class Sender(Hashable, Protocol):
    """The part of a connection that counts. `active_at` is the loop time of the last byte."""

    may_finish: bool

    @property
    def request_memory(self) -> RequestMemory: ...
    @property
    def active_at(self) -> float: ...
    @property
    def client(self) -> Hashable: ...

    @property
    def unfinished_size(self) -> int:
        """Bytes of requests that have arrived and, by the client's doing, are not worked on."""

    @property
    def missing_size(self) -> int:
        """Bytes that a frame which has arrived in part lacks; 0 without one."""

    def update_reading(self) -> None: ...


S = TypeVar("S", bound=Sender)


class MemoryRelief(Generic[S]):
    """`changed` is the `on_change` of each memory. `connections` are all of a server. `end` ends
    some.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        connections: Iterable[S],
        end: Callable[[Sequence[S]], None],
    ) -> None:
        self._loop = loop
        self._connections = connections
        self._end = end
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopped = False
        # By memory that is used up: since when.
        self._exhausted_s: dict[RequestMemory, float] = {}

    def stop(self) -> None:
        """Memory may still become used up or free; connections are ended no more."""
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def changed(self, memory: RequestMemory) -> None:
        """`memory` has become exhausted, or free again."""
        if memory.is_exhausted:
            self._exhausted_s[memory] = self._loop.time()
            self._let_finish(memory)
            if self._timer is None and not self._is_stopped:
                self._timer = self._loop.call_later(RELIEF_INTERVAL_S, self._relieve)
        else:
            self._exhausted_s.pop(memory, None)
        for connection in self._connections:
            connection.update_reading()

    def _let_finish(self, memory: RequestMemory) -> None:
        """Choose the frames that are read on although `memory` is used up."""
        unfinished = [
            (connection, connection.missing_size)
            for connection in self._connections
            if connection.request_memory is memory and connection.missing_size
        ]
        chosen = frames_to_finish(unfinished, memory.overrun_max)
        for connection, _ in unfinished:
            connection.may_finish = connection in chosen

    def _relieve(self) -> None:
        self._timer = None
        for memory, exhausted_s in tuple(self._exhausted_s.items()):
            self._end_stalled_frames(memory, exhausted_s)
            self._let_finish(memory)
        for connection in self._connections:
            connection.update_reading()
        if self._exhausted_s:
            self._timer = self._loop.call_later(RELIEF_INTERVAL_S, self._relieve)

    def _end_stalled_frames(self, memory: RequestMemory, exhausted_s: float) -> None:
        now_s = self._loop.time()
        has_lasted = now_s - exhausted_s >= EXHAUSTED_S_MAX
        held = [
            Held(connection, connection.client, connection.unfinished_size)
            for connection in self._connections
            if connection.request_memory is memory
            and connection.unfinished_size
            and (has_lasted or now_s - connection.active_at >= SILENT_S)
        ]
        self._end(connections_to_end(held, memory.excess))
