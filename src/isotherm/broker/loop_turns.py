"""Long work on the event loop is done in parts, with turns for other connections in between
(docs/decisions/0021)."""

from __future__ import annotations

from collections.abc import Awaitable, Generator

# Items of one part. An item takes up to some tens of microseconds, so a part takes some
# milliseconds.
PART_SIZE = 200


class _NextTurn(Awaitable[None]):
    def __await__(self) -> Generator[None, None, None]:
        yield


def next_turn() -> Awaitable[None]:
    """Returns an awaitable that lets the event loop serve other connections first."""
    return _NextTurn()
