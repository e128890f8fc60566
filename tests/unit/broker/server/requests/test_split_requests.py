"""Splitting a request and joining the answers: each item is asked for once and in order."""

from __future__ import annotations

import dataclasses
import datetime
import typing
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from isotherm.broker.apis.api_register import APIS, SERVED
from isotherm.broker.server.requests.split_requests import (
    JoinedResponse,
    Split,
    find_split,
    split_request,
)
from isotherm.protocol.api_keys import ApiKey, request_class, response_class
from isotherm.protocol.produce import ProducePartition, ProduceRequest, ProduceTopic

SPLIT = Split(("groups", "topics", "partitions"), ("groups", "topics", "partitions"))
FLAT = Split(("groups",), ("groups",))


@dataclasses.dataclass(frozen=True)
class Topic:
    name: int
    partitions: tuple[int, ...] | None


@dataclasses.dataclass(frozen=True)
class Group:
    name: int
    topics: tuple[Topic, ...] | None


@dataclasses.dataclass(frozen=True)
class Message:
    """A request. As a response it lists the groups that were asked for."""

    groups: tuple[Any, ...]
    error_code: ErrorCode = ErrorCode.none


NUMBERS = st.integers(0, 3)
TOPICS = st.builds(Topic, NUMBERS, st.none() | st.lists(NUMBERS, max_size=5).map(tuple))
GROUPS = st.builds(Group, NUMBERS, st.none() | st.lists(TOPICS, max_size=4).map(tuple))


def size_of(message: Message) -> int:
    return sum(
        len(topic.partitions or (0,)) for group in message.groups for topic in group.topics or ()
    ) + sum(1 for group in message.groups if not group.topics)


@settings(max_examples=100)
@given(st.lists(GROUPS, min_size=1, max_size=5).map(tuple), st.integers(1, 7))
def test_answers_to_the_parts_join_to_the_answer_to_the_whole(
    groups: tuple[Group, ...], size_max: int
) -> None:
    request = Message(groups)
    joined = JoinedResponse(SPLIT)
    parts = list(split_request(request, SPLIT, size_max))
    for part in parts:
        assert size_of(part.request) <= size_max
        assert joined.add(part.request, part.continued)
    assert joined.response == request
    assert len(parts) == -(-size_of(request) // size_max)


def test_equal_things_beside_each_other_stay_two() -> None:
    request = Message(("g", "g", "g"))
    parts = list(split_request(request, FLAT, 2))
    assert [part.request.groups for part in parts] == [("g", "g"), ("g",)]


def test_repeated_things_are_asked_for_once_where_the_api_says_so() -> None:
    split = SPLIT._replace(answered_once=True)
    topics = (Topic(1, (1, 1)), Topic(1, (1,)))
    groups = (Group(1, None), Group(1, topics), Group(1, None), Group(2, None), Group(1, topics))
    (part,) = split_request(Message(groups), split)
    assert part.request.groups == (groups[0], groups[1], groups[3], groups[4])


def test_part_that_is_refused_as_a_whole_is_the_answer() -> None:
    joined = JoinedResponse(FLAT)
    assert joined.add(Message(("a",)), 0)
    refusal = Message((), ErrorCode.invalid_group_id)
    assert not joined.add(refusal, 0)
    assert joined.response == refusal


@pytest.mark.parametrize("refused_part", [0, 1])
def test_group_that_one_part_refuses_is_refused_without_the_answers_of_the_others(
    refused_part: int,
) -> None:
    """A group whose error is lost would seem to have no offsets for some of its partitions, and a
    consumer would begin at the end or the beginning of these."""
    response_type = response_class(ApiKey.OFFSET_FETCH, 8)
    group_type = item_type(response_type, ("groups",))
    topic_type = item_type(response_type, ("groups", "topics"))
    moved = group_type(group_id="g", topics=(), error_code=ErrorCode.not_coordinator)
    topics = (topic_type(name="t", partitions=()),)
    answered = group_type(group_id="g", topics=topics, error_code=ErrorCode.none)
    other = group_type(group_id="h", topics=topics, error_code=ErrorCode.none)
    answers = [answered, answered]
    answers[refused_part] = moved
    joined = JoinedResponse(SPLIT)
    for place, of_part in enumerate(((answers[0],), (answers[1], other))):
        response = response_type(throttle_time=datetime.timedelta(), groups=of_part)
        assert joined.add(response, place * 2)
    assert joined.response.groups == (moved, other)


def test_produce_request_is_split_by_its_partitions_and_acks_0_gets_no_answer() -> None:
    topics = [
        ProduceTopic(name, None, [ProducePartition.of(index, None) for index in range(3)])
        for name in ("a", "b")
    ]
    request = ProduceRequest(None, 0, 0, topics)
    split = find_split(APIS[ApiKey.PRODUCE].items, request)
    assert split is not None
    joined = JoinedResponse(split)
    parts = list(split_request(request, split, 4))
    shapes = [
        [(topic.name, len(topic.partitions)) for topic in part.request.topics] for part in parts
    ]
    assert shapes == [[("a", 3), ("b", 1)], [("b", 2)]]
    assert all(joined.add(None, part.continued) for part in parts)
    assert joined.response is None


def item_type(message: Any, path: tuple[str, ...]) -> Any:
    """The element type of the array at the end of `path`. Fails if the message has no such
    array."""
    for name in path:
        annotation = typing.get_type_hints(message)[name]
        arms = [annotation, *typing.get_args(annotation)]
        (array,) = [arm for arm in arms if typing.get_origin(arm) is tuple]
        message = typing.get_args(array)[0]
    return message


SPLIT_APIS = [
    key
    for key, api in APIS.items()
    if key != ApiKey.PRODUCE and any(item.split_depth != 0 for item in api.items)
]


@pytest.mark.parametrize("key", SPLIT_APIS)
def test_splits_name_arrays_that_the_messages_have(key: int) -> None:
    low, high = SERVED[key]
    found = set()
    for version in range(low, high + 1):
        request, response = request_class(key, version), response_class(key, version)
        names = {field.name for field in dataclasses.fields(request)}
        asked = SimpleNamespace(**dict.fromkeys(names, (1,)))
        split = find_split(APIS[key].items, asked)
        if split is not None:
            found.add(split)
            item_type(request, split.request)
            item_type(response, split.response)
    assert len(found) == len(APIS[key].items)
