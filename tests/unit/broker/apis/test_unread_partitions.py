"""How long requests wait for partitions of a bucket that are not read yet."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Collection
from dataclasses import replace
from typing import Any, cast

import pytest

from isotherm.broker.apis import fetch, list_offsets, offset_for_leader_epoch, unread_partitions
from isotherm.broker.apis.unread_partitions import UnreadPartitions, awaiting_apis
from isotherm.broker.partitions.fetch_sessions import FINAL_EPOCH, INITIAL_EPOCH
from isotherm.broker.server.requests.context import RequestContext
from isotherm.protocol.api_keys import ApiKey
from isotherm.protocol.fetch import FetchPartition, FetchRequest, FetchTopic
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


class Fetches:
    """Fetch requests for partitions of the topic, and what the broker is asked."""

    def __init__(self) -> None:
        self.asked = Asked()
        self.handled: list[FetchRequest] = []
        apis = (fetch.API, list_offsets.API, offset_for_leader_epoch.API)
        plain = {api.key: replace(api, handle=self._handle) for api in apis}
        self._answer = awaiting_apis(plain, self.asked.unread)[ApiKey.FETCH].handle

    def _handle(self, context: RequestContext, request: FetchRequest) -> str:
        self.handled.append(request)
        return "answer"

    def send(
        self, *partitions: int, max_wait_ms: int = 60_000, session_epoch: int = FINAL_EPOCH
    ) -> Any:
        topic = FetchTopic(None, ID, [FetchPartition(number, 0, 1000) for number in partitions])
        request = FetchRequest(
            -1, max_wait_ms, 1, 1000, 0, 0, session_epoch, topics=[topic],
            forgotten_topics=[], rack_id="",
        )  # fmt: skip
        return self._answer(cast("RequestContext", None), request)


@pytest.mark.parametrize("session_epoch", [FINAL_EPOCH, INITIAL_EPOCH])
def test_a_fetch_of_unread_partitions_waits_for_the_first(session_epoch: int) -> None:
    fetches = Fetches()

    async def run() -> Any:
        waiting = asyncio.create_task(fetches.send(0, 1, session_epoch=session_epoch))
        await asyncio.sleep(0)
        assert fetches.asked.partitions == PLACES[:2]
        assert not fetches.handled
        fetches.asked.unread.note_read(PLACES[1])
        return await waiting

    assert asyncio.run(run()) == "answer"
    assert len(fetches.handled) == 1


def test_a_fetch_waits_at_most_as_long_as_it_says() -> None:
    fetches = Fetches()
    assert asyncio.run(fetches.send(0, max_wait_ms=0)) == "answer"
    assert len(fetches.asked.unread) == 3


def test_a_fetch_of_what_is_read_or_goes_on_with_a_session_does_not_wait() -> None:
    fetches = Fetches()
    fetches.asked.unread.note_read(PLACES[1])
    assert fetches.send(0, 1) == "answer"
    assert fetches.send(1) == "answer"
    assert fetches.send(0, session_epoch=7) == "answer"
    assert fetches.asked.partitions == [PLACES[0], PLACES[0]]
