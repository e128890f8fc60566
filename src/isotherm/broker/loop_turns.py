"""Long work on the event loop is done in parts, with turns for other connections in between
(docs/decisions/0021)."""

from __future__ import annotations

from collections.abc import Awaitable, Generator, Iterator, Sequence
from typing import TypeVar

Item = TypeVar("Item")

# Items of one part. An item takes up to some tens of microseconds, so a part takes some
# milliseconds.
PART_SIZE = 200


class _NextTurn(Awaitable[None]):
    def __await__(self) -> Generator[None, None, None]:
        yield


def next_turn() -> Awaitable[None]:
    """Returns an awaitable that lets the event loop serve other connections first."""
    return _NextTurn()


class AnswerTurns:
    """Lets the event loop serve other connections after each `size` items. For responses that are
    longer than their requests, which are not split: about all topics, or all offsets of a group.
    """

    __slots__ = ("_left", "_size")

    def __init__(self, size: int = PART_SIZE) -> None:
        self._size = self._left = size

    async def take(self, count: int = 1) -> None:
        """Call it before `count` items, which are no more than `size`."""
        self._left -= count
        if self._left < 0:
            self._left = self._size - count
            await next_turn()

    def parts(self, items: Sequence[Item]) -> Iterator[Sequence[Item]]:
        """The items in parts for which `take` may be called."""
        for start in range(0, len(items), self._size):
            yield items[start : start + self._size]
