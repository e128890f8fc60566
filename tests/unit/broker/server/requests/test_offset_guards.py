"""OffsetFetch of all topics: only the offsets of the group bound their number."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.schema.offset_fetch.v7.request import OffsetFetchRequest as RequestOfOne
from kio.schema.offset_fetch.v7.response import OffsetFetchResponse as ResponseOfOne
from kio.schema.offset_fetch.v9.request import OffsetFetchRequest, OffsetFetchRequestGroup
from kio.schema.offset_fetch.v9.response import OffsetFetchResponse, OffsetFetchResponseGroup
from kio.schema.types import GroupId

from isotherm.broker.apis.offset_fetch import API
from isotherm.broker.loop_turns import PART_SIZE
from isotherm.broker.metadata.access.acls import ResourceType
from isotherm.broker.server.requests.guarding import guard_of
from isotherm.protocol.api_keys import ApiKey
from isotherm.protocol.framing import RequestHeader

NAMES = [str(number) for number in range(2 * PART_SIZE + 1)]
NO_TIME = cast("Any", datetime.timedelta(0))


class Authorizer:
    """Allows every group and every other topic. Counts the topics of each check."""

    def __init__(self) -> None:
        self.checked: list[int] = []

    def allowed(
        self, context: Any, operation: Any, kind: Any, names: Collection[str], **_: Any
    ) -> set[str]:
        if kind is ResourceType.GROUP:
            return set(names)
        if names:
            self.checked.append(len(names))
        return {name for name in names if is_visible(name)}


def is_visible(name: str) -> bool:
    return int(name) % 2 == 0


class Topic(SimpleNamespace):
    """A comparison of two topics compares all of their partitions."""

    __hash__ = None

    def __eq__(self, other: object) -> bool:
        raise AssertionError("topics are compared by their names")


def asked_and_answered(version: int) -> tuple[Any, Any]:
    """A request for all topics of a group, and the handler's response."""
    topics = cast("Any", tuple(Topic(name=name, partitions=()) for name in NAMES))
    group = GroupId("g")
    if version == 7:
        response = ResponseOfOne(throttle_time=NO_TIME, topics=topics)
        return RequestOfOne(group_id=group, topics=None), response
    return (
        OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id=group, topics=None),)),
        OffsetFetchResponse(
            throttle_time=NO_TIME,
            groups=(OffsetFetchResponseGroup(group_id=group, topics=topics),),
        ),
    )


@pytest.mark.parametrize("version", [7, 9])
def test_part_of_all_topics_is_checked_in_each_turn_of_the_loop(version: int) -> None:
    request, response = asked_and_answered(version)

    async def handle(*_: Any) -> Any:
        return response

    authorizer: Any = Authorizer()
    context: Any = SimpleNamespace(header=RequestHeader(ApiKey.OFFSET_FETCH, version, 1, "client"))
    api = dataclasses.replace(API, handle=handle)
    answer = guard_of(API.access)(authorizer, api, context, request)
    checked_by_turn = []
    while True:
        try:
            answer.send(None)
        except StopIteration as end:
            answered = end.value
            break
        finally:
            checked_by_turn.append(sum(authorizer.checked))
            authorizer.checked.clear()
    assert checked_by_turn == [PART_SIZE, PART_SIZE, 1]
    topics = answered.topics if version == 7 else answered.groups[0].topics
    assert [topic.name for topic in topics] == [name for name in NAMES if is_visible(name)]
