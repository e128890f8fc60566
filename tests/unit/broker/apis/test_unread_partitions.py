"""How long requests wait for partitions of a bucket that are not read yet."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Collection

import pytest

from isotherm.broker.apis import unread_partitions
from isotherm.broker.apis.unread_partitions import UnreadPartitions
from isotherm.types import TopicIdPartition

ID = uuid.UUID(int=7)
PLACES = [TopicIdPartition(ID, "t", number) for number in range(3)]


class Asked:
    def __init__(self) -> None:
        self.partitions: list[TopicIdPartition] = []
        self.unread = UnreadPartitions(PLACES, self.ask)

    def ask(self, partitions: Collection[TopicIdPartition]) -> None:
        self.partitions += partitions


@pytest.mark.parametrize("topic", ["t", ID])
def test_unread_partitions_are_asked_for_by_name_and_id(topic: str | uuid.UUID) -> None:
    asked = Asked()
    asked.unread.note_read(PLACES[1])
    assert asked.unread.ask([(topic, 0), (topic, 1), (topic, 9), ("other", 2)]) == PLACES[:1]
    assert asked.partitions == PLACES[:1]
    assert asked.unread.partitions == (PLACES[0], PLACES[2])


def test_a_request_for_read_partitions_does_not_wait() -> None:
    asked = Asked()
    asked.unread.note_read(PLACES[0])
    asyncio.run(asked.unread.wait([("t", 0), ("other", 0)]))
    assert not asked.partitions


def test_a_request_waits_until_all_of_its_partitions_are_read() -> None:
    asked = Asked()

    async def run() -> list[str]:
        order: list[str] = []

        async def ask() -> None:
            await asked.unread.wait([("t", 0), ("t", 1)])
            order.append("answer")

        waiting = asyncio.create_task(ask())
        await asyncio.sleep(0)
        assert asked.partitions == PLACES[:2]
        for place in PLACES[:2]:
            order.append(f"read {place.partition}")
            asked.unread.note_read(place)
            await asyncio.sleep(0)
        await waiting
        return order

    assert asyncio.run(run()) == ["read 0", "read 1", "answer"]


def test_a_request_whose_partitions_are_not_read_in_time_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = Asked()
    monkeypatch.setattr(unread_partitions, "FIRST_WAIT_S", 0.0)
    monkeypatch.setattr(unread_partitions, "REST_WAIT_S", 0.0)
    asyncio.run(asked.unread.wait([("t", 0)]))
    assert len(asked.unread) == 3


def test_a_client_that_is_gone_leaves_the_wait_to_the_others() -> None:
    asked = Asked()

    async def run() -> None:
        gone = asyncio.create_task(asked.unread.wait([("t", 0)]))
        other = asyncio.create_task(asked.unread.wait([("t", 0)]))
        await asyncio.sleep(0)
        assert len(asked.partitions) == 2
        gone.cancel()
        await asyncio.sleep(0)
        asked.unread.note_read(PLACES[0])
        await other
        assert gone.cancelled()

    asyncio.run(run())
