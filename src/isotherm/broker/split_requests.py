"""Requests about thousands of things, taken apart: each part is answered in a turn of the event loop
of its own, and the answers are put together. Pure, but for `next_turn`.

An API is split where it answers for each of its things by itself: a topic's partitions, groups,
resources. What stands beside the array in a response is that of the first part; a part that is
refused as a whole is the answer to all.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Awaitable, Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from kio.schema.errors import ErrorCode

from isotherm.protocol.api_versions import ApiKey

# A handler takes up to some tens of microseconds for each.
PART_SIZE = 200


class Split(NamedTuple):
    """The arrays within arrays of a request, outermost first, and those of its response."""

    request: tuple[str, ...]
    response: tuple[str, ...]


_PARTITIONS = Split(("topics", "partitions"), ("topics", "partitions"))
_SHARE_STATE = Split(("topics", "partitions"), ("results", "partitions"))

# The first whose outermost array a version has is its own.
_SPLITS: Mapping[int, Sequence[Split]] = {
    ApiKey.PRODUCE: [_PARTITIONS],
    ApiKey.LIST_OFFSETS: [_PARTITIONS],
    ApiKey.METADATA: [Split(("topics",), ("topics",))],
    ApiKey.OFFSET_COMMIT: [_PARTITIONS],
    ApiKey.OFFSET_FETCH: [
        Split(("groups", "topics", "partition_indexes"), ("groups", "topics", "partitions")),
        Split(("topics", "partition_indexes"), ("topics", "partitions")),
    ],
    ApiKey.FIND_COORDINATOR: [Split(("coordinator_keys",), ("coordinators",))],
    ApiKey.LEAVE_GROUP: [Split(("members",), ("members",))],
    ApiKey.DESCRIBE_GROUPS: [Split(("groups",), ("groups",))],
    ApiKey.DELETE_TOPICS: [
        Split(("topics",), ("responses",)),
        Split(("topic_names",), ("responses",)),
    ],
    ApiKey.DELETE_RECORDS: [_PARTITIONS],
    ApiKey.OFFSET_FOR_LEADER_EPOCH: [_PARTITIONS],
    ApiKey.ADD_PARTITIONS_TO_TXN: [Split(("transactions",), ("results_by_transaction",))],
    ApiKey.WRITE_TXN_MARKERS: [
        Split(("markers", "topics", "partition_indexes"), ("markers", "topics", "partitions"))
    ],
    ApiKey.TXN_OFFSET_COMMIT: [_PARTITIONS],
    ApiKey.DESCRIBE_CONFIGS: [Split(("resources",), ("results",))],
    ApiKey.ALTER_CONFIGS: [Split(("resources",), ("responses",))],
    ApiKey.CREATE_PARTITIONS: [Split(("topics",), ("results",))],
    ApiKey.DELETE_GROUPS: [Split(("groups_names",), ("results",))],
    ApiKey.ELECT_LEADERS: [
        Split(("topic_partitions", "partitions"), ("replica_election_results", "partition_result"))
    ],
    ApiKey.INCREMENTAL_ALTER_CONFIGS: [Split(("resources",), ("responses",))],
    ApiKey.OFFSET_DELETE: [_PARTITIONS],
    ApiKey.ALTER_CLIENT_QUOTAS: [Split(("entries",), ("entries",))],
    ApiKey.CONSUMER_GROUP_DESCRIBE: [Split(("group_ids",), ("groups",))],
    ApiKey.DESCRIBE_PRODUCERS: [
        Split(("topics", "partition_indexes"), ("topics", "partitions")),
    ],
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: [
        Split(("topics", "partitions"), ("responses", "partitions"))
    ],
    ApiKey.DESCRIBE_QUORUM: [_PARTITIONS],
    ApiKey.SHARE_GROUP_DESCRIBE: [Split(("group_ids",), ("groups",))],
    ApiKey.STREAMS_GROUP_DESCRIBE: [Split(("group_ids",), ("groups",))],
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: [Split(("groups",), ("groups",))],
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: [_SHARE_STATE],
    ApiKey.READ_SHARE_GROUP_STATE: [_SHARE_STATE],
    ApiKey.WRITE_SHARE_GROUP_STATE: [_SHARE_STATE],
    ApiKey.DELETE_SHARE_GROUP_STATE: [_SHARE_STATE],
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: [_SHARE_STATE],
    ApiKey.DESCRIBE_TRANSACTIONS: [Split(("transactional_ids",), ("transaction_states",))],
}

# Of one thing: itself, behind the items of the arrays that it is within.
_Chain: TypeAlias = "tuple[Any, ...]"


class Part(NamedTuple):
    """`continued` says at how many levels this part begins within the item that the last ended in."""

    request: Any
    continued: int


def is_long_produce(api_key: int, request: Any) -> bool:
    """Whether a Produce request, whose size says nothing of it, is for many partitions."""
    return api_key == ApiKey.PRODUCE and (
        sum(len(topic.partitions) for topic in request.topics) > PART_SIZE
    )


def find_split(api_key: int, request: Any) -> Split | None:
    """How to take a request apart; None when it has to stay whole, or asks for nothing."""
    for split in _SPLITS.get(api_key, ()):
        if getattr(request, split.request[0], None):
            return split
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
