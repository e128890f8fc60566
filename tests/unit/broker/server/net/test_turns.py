"""Clients whose requests wait take turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from isotherm.broker.server.net.turns import ROUND_S, Turns


class HandDrivenLoop:
    def __init__(self) -> None:
        self._soon: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> Callable[[], None]:
        self._soon.append(callback)
        return callback

    def iterate(self) -> bool:
        """Run what was there at the beginning. Returns whether that was anything."""
        soon, self._soon = self._soon, []
        for each in soon:
            each()
        return bool(soon)


class Worker:
    """A connection with requests that take a given time each."""

    def __init__(
        self, served: list[str], turns: Turns[Worker], client: str, requests: int, request_s: float
    ) -> None:
        self._served = served
        self._turns = turns
        self._requests = requests
        self._request_s = request_s
        self.client = client
        self.is_broken = False
        self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True

    def take_turn(self) -> None:
        if self.is_broken:
            raise ValueError("a defect")
        while self._requests:
            if self._turns.left_s <= 0:
                self._turns.wait(self)
                return
            self._requests -= 1
            self._served.append(self.client)
            self._turns.left_s -= self._request_s


class Crowd:
    def __init__(self) -> None:
        self.served: list[str] = []
        self.loop = HandDrivenLoop()
        self.turns: Turns[Worker] = Turns(cast("asyncio.AbstractEventLoop", self.loop))

    def add(self, client: str, requests: int, request_s: float) -> Worker:
        worker = Worker(self.served, self.turns, client, requests, request_s)
        self.turns.wait(worker)
        return worker


@pytest.fixture
def crowd() -> Crowd:
    return Crowd()


def test_round_ends_when_its_time_is_spent(crowd: Crowd) -> None:
    for _ in range(30):
        crowd.add("many", 1, ROUND_S / 4)
    rounds = []
    while crowd.loop.iterate():
        rounds.append(len(crowd.served))
    assert rounds == [4, 8, 12, 16, 20, 24, 28, 30]


def test_client_with_many_connections_gets_no_more_than_one_with_a_single_one(
    crowd: Crowd,
) -> None:
    for _ in range(100):
        crowd.add("many", 10, ROUND_S)
    crowd.add("single", 3, ROUND_S)
    for _ in range(6):
        crowd.loop.iterate()
    assert crowd.served == ["many", "single"] * 3


def test_connections_of_one_client_take_turns(crowd: Crowd) -> None:
    workers = [crowd.add(f"client {number % 2}", 3, ROUND_S) for number in range(4)]
    for _ in workers:
        crowd.loop.iterate()
    assert [each._requests for each in workers] == [2, 2, 2, 2]


def test_turn_is_one_request_while_many_wait_and_a_round_while_none_does(crowd: Crowd) -> None:
    for number in range(8):
        crowd.add(str(number), 1, ROUND_S / 4)
    crowd.add("alone", 4, ROUND_S / 4)
    crowd.loop.iterate()
    assert crowd.served == ["0", "1", "2", "3"]
    crowd.loop.iterate()
    assert crowd.served[4:] == ["4", "5", "6", "7"]
    crowd.loop.iterate()
    assert crowd.served[8:] == ["alone"] * 4


def test_connection_waits_once_however_often_it_says_so(crowd: Crowd) -> None:
    worker = crowd.add("a", 10, ROUND_S)
    crowd.turns.wait(worker)
    crowd.add("b", 10, ROUND_S)
    for _ in range(4):
        crowd.loop.iterate()
    assert crowd.served == ["a", "b", "a", "b"]


def test_failed_turn_ends_its_connection_alone(
    crowd: Crowd, caplog: pytest.LogCaptureFixture
) -> None:
    crowd.add("before", 1, 0.0)
    broken = crowd.add("broken", 1, 0.0)
    broken.is_broken = True
    behind = [crowd.add("broken", 1, 0.0), crowd.add("behind", 1, 0.0)]
    while crowd.loop.iterate():
        pass
    assert crowd.served == ["before", "behind", "broken"]
    assert broken.is_aborted
    assert not any(each.is_aborted for each in behind)
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_no_round_begins_when_nothing_waits(crowd: Crowd) -> None:
    crowd.add("a", 1, 0.0)
    assert crowd.loop.iterate()
    assert crowd.turns.left_s == ROUND_S
    assert not crowd.loop.iterate()
