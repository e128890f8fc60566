"""Splits requests with thousands of items. Each part is handled in its own iteration of the event
loop, and the responses are joined. Pure.

A request is split if the declaration of its API has `Items`, which means that the API answers each
item (partition, group, resource) separately. Fields beside the array in the response are those of
the first part. If a part is refused as a whole, its response is the response to the whole request.
The same holds for an item that two parts share, such as a group in OffsetFetch.
Reasons: docs/decisions/0021.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

from kio.schema.errors import ErrorCode

from isotherm.broker.loop_turns import PART_SIZE
from isotherm.broker.server.requests.refusals import Items


class Split(NamedTuple):
    """The path of nested arrays in a request, outermost first, and the path of those in its
    response.
    """

    request: tuple[str, ...]
    response: tuple[str, ...]
    answered_once: bool = False


# An item, preceded by the items that contain it.
_Chain: TypeAlias = "tuple[Any, ...]"


class Part(NamedTuple):
    """`continued` is the number of levels at which this part continues the last item of the part
    before it.
    """

    request: Any
    continued: int


def has_many_partitions(request: Any) -> bool:
    """Whether a request with records has many partitions. Its size does not indicate that."""
    count = 0
    for topic in request.topics:
        count += len(topic.partitions)
    return count > PART_SIZE


def find_split(items: Sequence[Items], request: Any) -> Split | None:
    """The way to split a request; None if it must not be split or is empty."""
    for item in items:
        depth = len(item.request) if item.split_depth is None else item.split_depth
        if depth and getattr(request, item.request[0], None):
            return Split(item.request[:depth], item.response[:depth], item.answered_once)
    return None


def split_request(request: Any, split: Split, size_max: int = PART_SIZE) -> Iterator[Part]:
    """The parts of `request`, with at most `size_max` items each."""
    outermost, *inner = split.request
    chains = _chains(getattr(request, outermost), inner)
    if split.answered_once:
        chains = _without_repeats(chains)
    last: _Chain = ()
    while chunk := list(itertools.islice(chains, size_max)):
        items = tuple(_rebuilt(chunk, inner))
        yield Part(with_field(request, outermost, items), _shared(last, chunk[0]))
        last = chunk[-1]


def _chains(items: Sequence[Any], inner: Sequence[str]) -> Iterator[_Chain]:
    for item in items:
        nested = getattr(item, inner[0]) if inner else None
        if nested:
            for chain in _chains(nested, inner[1:]):
                yield (item, *chain)
        else:
            yield (item,)


def _without_repeats(chains: Iterator[_Chain]) -> Iterator[_Chain]:
    seen: set[Any] = set()
    for chain in chains:
        if len(chain) > 1:
            yield chain
        elif chain[0] not in seen:
            seen.add(chain[0])
            yield chain


def _shared(last: _Chain, first: _Chain) -> int:
    """The number of items that contain both of two consecutive items."""
    # By identity: a topic that a request names twice is two items.
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
            yield with_field(item, inner[0], tuple(_rebuilt(nested, inner[1:])))
        position = end


class JoinedResponse:
    """Joins the responses to the parts, in order."""

    def __init__(self, split: Split) -> None:
        self._path = split.response
        self._first: Any = None
        self._items: list[Any] = []

    def add(self, response: Any, continued: int) -> bool:
        """Add a response.

        Returns False if it refuses the whole request, so that no other part is handled.
        """
        if response is None:
            return True
        outermost, *inner = self._path
        if self._first is None or is_refusal(response):
            self._first = response
            self._items = list(getattr(response, outermost))
        else:
            _join(self._items, getattr(response, outermost), inner, continued)
        return not is_refusal(response)

    @property
    def response(self) -> Any:
        """The joined response; None if the client expects none."""
        if self._first is None:
            return None
        return with_field(self._first, self._path[0], tuple(self._items))


def with_field(message: Any, field: str, value: Any) -> Any:
    """A copy of `message` with another value of `field`. Produce and Fetch messages are named
    tuples, all others kio's dataclasses."""
    if isinstance(message, tuple):
        return message._replace(**{field: value})  # type: ignore[attr-defined]
    return dataclasses.replace(message, **{field: value})


def is_refusal(response: Any) -> bool:
    return getattr(response, "error_code", ErrorCode.none) is not ErrorCode.none


def _join(items: list[Any], more: Sequence[Any], inner: Sequence[str], continued: int) -> None:
    if continued and items and more:
        items[-1] = _joined_item(items[-1], more[0], inner, continued)
        more = more[1:]
    items.extend(more)


def _joined_item(item: Any, more: Any, inner: Sequence[str], continued: int) -> Any:
    """The answer for an item that both parts have. One that is refused as a whole, in any part,
    is refused: the other part's answer lacks what the client asked for."""
    if is_refusal(item):
        return item
    if is_refusal(more):
        return more
    nested = list(getattr(item, inner[0]))
    _join(nested, getattr(more, inner[0]), inner[1:], continued - 1)
    return with_field(item, inner[0], tuple(nested))
