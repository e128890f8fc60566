"""Requests about thousands of things, taken apart: each part is answered in a turn of the event loop
of its own, and the answers are put together. Pure, but for `next_turn`.

An API is split where it answers for each of its things by itself, and its declaration says so
(`Items`): a topic's partitions, groups, resources. What stands beside the array in a response is that of the first part; a part that is
refused as a whole is the answer to all.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Awaitable, Generator, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from kio.schema.errors import ErrorCode

from isotherm.broker.refusals import Items

# A handler takes up to some tens of microseconds for each.
PART_SIZE = 200


class Split(NamedTuple):
    """The arrays within arrays of a request, outermost first, and those of its response."""

    request: tuple[str, ...]
    response: tuple[str, ...]


# Of one thing: itself, behind the items of the arrays that it is within.
_Chain: TypeAlias = "tuple[Any, ...]"


class Part(NamedTuple):
    """`continued` says at how many levels this part begins within the item that the last ended in."""

    request: Any
    continued: int


def has_many_partitions(request: Any) -> bool:
    """Of a request that carries records: their size does not say how long it is."""
    count = 0
    for topic in request.topics:
        count += len(topic.partitions)
    return count > PART_SIZE


def find_split(items: Sequence[Items], request: Any) -> Split | None:
    """How to take a request apart; None when it has to stay whole, or asks for nothing."""
    for each in items:
        depth = len(each.request) if each.split_depth is None else each.split_depth
        if depth and getattr(request, each.request[0], None):
            return Split(each.request[:depth], each.response[:depth])
    return None


def split_request(request: Any, split: Split, size_max: int = PART_SIZE) -> Iterator[Part]:
    """Requests that together ask for what `request` asks for, `size_max` things each."""
    outermost, *inner = split.request
    chains = _chains(getattr(request, outermost), inner)
    last: _Chain = ()
    while chunk := list(itertools.islice(chains, size_max)):
        items = tuple(_rebuilt(chunk, inner))
        yield Part(_with(request, outermost, items), _shared(last, chunk[0]))
        last = chunk[-1]


def _chains(items: Sequence[Any], inner: Sequence[str]) -> Iterator[_Chain]:
    for item in items:
        nested = getattr(item, inner[0]) if inner else None
        if nested:
            for chain in _chains(nested, inner[1:]):
                yield (item, *chain)
        else:
            yield (item,)


def _shared(last: _Chain, first: _Chain) -> int:
    """The number of items that two things are both within."""
    both = zip(last[:-1], first[:-1], strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] is pair[1], both))


def _rebuilt(chains: Sequence[_Chain], inner: Sequence[str]) -> Iterator[Any]:
    position = 0
    while position < len(chains):
        item, *rest = chains[position]
        end = position + 1
        if not rest:
            yield item
        else:
            while end < len(chains) and chains[end][0] is item:
                end += 1
            nested = [chain[1:] for chain in chains[position:end]]
            yield _with(item, inner[0], tuple(_rebuilt(nested, inner[1:])))
        position = end


class JoinedResponse:
    """Takes the answers to the parts in their order."""

    def __init__(self, split: Split) -> None:
        self._path = split.response
        self._first: Any = None
        self._items: list[Any] = []

    def add(self, response: Any, continued: int) -> bool:
        """False when it is the answer to the whole request: no other part need be asked."""
        if response is None:
            return True
        outermost, *inner = self._path
        if self._first is None or _is_refusal(response):
            self._first = response
            self._items = list(getattr(response, outermost))
        else:
            _join(self._items, getattr(response, outermost), inner, continued)
        return not _is_refusal(response)

    @property
    def response(self) -> Any:
        """None where the parts got none either: nobody waits for it."""
        if self._first is None:
            return None
        return _with(self._first, self._path[0], tuple(self._items))


def _with(message: Any, field: str, value: Any) -> Any:
    """Produce and Fetch are made of named tuples, all others of kio's dataclasses."""
    if isinstance(message, tuple):
        return message._replace(**{field: value})  # type: ignore[attr-defined]
    return dataclasses.replace(message, **{field: value})


def _is_refusal(response: Any) -> bool:
    return getattr(response, "error_code", ErrorCode.none) is not ErrorCode.none


def _join(items: list[Any], more: Sequence[Any], inner: Sequence[str], continued: int) -> None:
    if continued and items and more:
        nested = list(getattr(items[-1], inner[0]))
        _join(nested, getattr(more[0], inner[0]), inner[1:], continued - 1)
        items[-1] = _with(items[-1], inner[0], tuple(nested))
        more = more[1:]
    items.extend(more)


class _NextTurn(Awaitable[None]):
    def __await__(self) -> Generator[None, None, None]:
        yield


def next_turn() -> Awaitable[None]:
    """To be awaited where the event loop is to see to the others first."""
    return _NextTurn()
