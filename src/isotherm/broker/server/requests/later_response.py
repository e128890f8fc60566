"""The return value of a handler whose response waits for another event."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import Any


class LaterResponse(Awaitable[Any]):
    """A response that `respond` makes once `future` is done. `respond` may return an awaitable of
    it.

    It costs a hot path less than a coroutine, which needs a task. `is_done_but_for_answer` says
    that the request has had its effects, so the next request of its connection begins before this
    one is answered. If the client disconnects, `future` is cancelled.
    """

    __slots__ = ("future", "is_done_but_for_answer", "respond")

    def __init__(
        self,
        future: asyncio.Future[Any],
        respond: Callable[[], Any],
        *,
        is_done_but_for_answer: bool = False,
    ) -> None:
        self.future = future
        self.respond = respond
        self.is_done_but_for_answer = is_done_but_for_answer

    def __await__(self) -> Generator[Any, Any, Any]:
        yield from self.future.__await__()
        response = self.respond()
        if isinstance(response, Awaitable):
            response = yield from response.__await__()
        return response
