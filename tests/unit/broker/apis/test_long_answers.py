"""Others are served while an answer is made that is longer than its request."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from isotherm.broker.apis import create_topics
from isotherm.broker.loop_turns import PART_SIZE, Turns, _NextTurn
from isotherm.broker.metadata.controller.topic_rules import NewTopic
from isotherm.protocol.api_keys import ApiKey

NO_OPERATIONS = {
    "allow_auto_topic_creation": False,
    "include_topic_authorized_operations": False,
}


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One entry for each turn that is left to others."""
    taken: list[None] = []
    wait = _NextTurn.__await__

    def counted(awaitable: _NextTurn) -> Any:
        taken.append(None)
        return wait(awaitable)

    monkeypatch.setattr(_NextTurn, "__await__", counted)
    return taken


def test_a_turn_has_as_many_items_as_are_allowed(turns: list[None]) -> None:
    limit = Turns(10)

    async def items() -> list[int]:
        counts = []
        for count in (4, 6, 1, 9, 10, 3):
            await limit.take(count)
            counts.append(len(turns))
        return counts

    assert asyncio.run(items()) == [0, 0, 1, 1, 2, 3]


def test_parts_have_at_most_as_many_items(turns: list[None]) -> None:
    assert [len(part) for part in Turns(10).parts(range(25))] == [10, 10, 5]


def test_metadata_of_one_topic_with_many_partitions_leaves_turns(broker, turns) -> None:
    count = 5 * PART_SIZE
    broker.controller.create_topics([NewTopic(name="t", num_partitions=count)])
    response = broker.call(ApiKey.METADATA, 12, topics=None, **NO_OPERATIONS)
    (topic,) = response.topics
    assert [each.partition_index for each in topic.partitions] == list(range(count))
    assert len(turns) >= count / PART_SIZE - 1


def test_metadata_of_all_topics_leaves_turns(broker, turns) -> None:
    count = 3 * PART_SIZE
    new = [NewTopic(name=f"t{number}", num_partitions=1) for number in range(count)]
    broker.controller.create_topics(new)
    assert len(broker.call(ApiKey.METADATA, 12, topics=None, **NO_OPERATIONS).topics) == count
    assert len(turns) >= 2 * count / PART_SIZE - 1


def created(count: int) -> list[dict[str, Any]]:
    """Topics with a setting of their own each, so no two have equal descriptions."""
    return [
        {
            "name": f"t{number}",
            "num_partitions": 1,
            "replication_factor": 1,
            "assignments": (),
            "configs": ({"name": "retention.ms", "value": str(number)},),
        }
        for number in range(count)
    ]


def test_created_topics_leave_turns_and_have_their_own_settings(broker, turns) -> None:
    count = 4 * create_topics.ANSWERS_PER_TURN
    response = broker.call(ApiKey.CREATE_TOPICS, 7, topics=created(count), validate_only=True)
    values = [
        next(each.value for each in topic.configs if each.name == "retention.ms")
        for topic in response.topics
    ]
    assert values == [str(number) for number in range(count)]
    assert len(turns) >= 3
