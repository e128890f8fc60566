"""Clients whose requests wait take turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.broker.server.net.turns import (
    CLIENTS_MAX,
    CREDIT_S,
    ROUND_S,
    TURNS_PER_OLDEST,
    Turns,
)
from isotherm.clock import Clock


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


class HandClock:
    """Only its monotonic time is used."""

    def __init__(self) -> None:
        self.time_s = 0.0

    def monotonic_s(self) -> float:
        return self.time_s


class Worker:
    """A connection with requests that take a given time each."""

    def __init__(self, crowd: Crowd, client: str, requests: int, request_s: float) -> None:
        self._crowd = crowd
        self._requests = requests
        self._request_s = request_s
        self.turn_time = (0, 0.0)
        self.client = client
        self.is_broken = False
        self.is_aborted = False

    def abort(self) -> None:
        self.is_aborted = True

    def take_turn(self) -> None:
        if self.is_broken:
            raise ValueError("a defect")
        crowd = self._crowd
        while self._requests:
            if crowd.turns.left_s <= 0:
                crowd.turns.wait(self)
                return
            self._requests -= 1
            crowd.served.append(self.client)
            crowd.workers.append(self)
            crowd.clock.time_s += self._request_s
            crowd.turns.left_s -= self._request_s


class Crowd:
    """`served` has a client for each request, and `workers` its connection."""

    def __init__(self) -> None:
        self.served: list[str] = []
        self.workers: list[Worker] = []
        self.loop, self.clock = HandDrivenLoop(), HandClock()
        loop, clock = cast("asyncio.AbstractEventLoop", self.loop), cast("Clock", self.clock)
        self.turns: Turns[Worker] = Turns(loop, clock)

    def add(self, client: str, requests: int, request_s: float) -> Worker:
        worker = Worker(self, client, requests, request_s)
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
    assert [worker._requests for worker in workers] == [2, 2, 2, 2]


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


def test_new_connection_goes_before_those_of_its_client_that_have_used_time(crowd: Crowd) -> None:
    for _ in range(50):
        crowd.add("many", 100, ROUND_S)
    for _ in range(60):
        crowd.loop.iterate()
    new = crowd.add("many", 1, ROUND_S)
    for _ in range(2):
        crowd.loop.iterate()
    assert new in crowd.workers[-2:]


def test_new_client_goes_before_those_that_have_used_time(crowd: Crowd) -> None:
    for number in range(50):
        crowd.add(str(number), 100, ROUND_S)
    for _ in range(60):
        crowd.loop.iterate()
    crowd.add("new", 1, ROUND_S)
    for _ in range(2):
        crowd.loop.iterate()
    assert "new" in crowd.served[-2:]


def test_client_has_used_what_all_of_its_connections_have_used(crowd: Crowd) -> None:
    """Each of them is new, and none waits when the next one comes."""
    for number in range(20):
        crowd.add(str(number), 100, ROUND_S)
    for _ in range(30):
        crowd.add("reconnects", 1, ROUND_S)
        while "reconnects" in crowd.turns._lines:
            crowd.loop.iterate()
    crowd.add("reconnects", 1, ROUND_S)
    crowd.add("new", 1, ROUND_S)
    crowd.served.clear()
    for _ in range(50):
        crowd.loop.iterate()
    assert crowd.served.index("new") < 2 < crowd.served.index("reconnects")


def test_login_that_takes_several_turns_goes_before_those_that_have_used_more(
    crowd: Crowd,
) -> None:
    for _ in range(20):
        crowd.add("many", 1000, CREDIT_S / 10)
    for _ in range(60):
        crowd.loop.iterate()
    for worker in crowd.workers:
        worker._request_s = ROUND_S
    login = crowd.add("many", 5, CREDIT_S / 10)
    crowd.workers.clear()
    for _ in range(11):
        crowd.loop.iterate()
    # Other turns are of the one that has waited longest.
    assert crowd.workers.count(login) == 5


def test_newcomer_is_not_ahead_of_others_for_all_that_they_have_used(crowd: Crowd) -> None:
    old = [crowd.add("many", 10**6, ROUND_S) for _ in range(3)]
    for _ in range(300):
        crowd.loop.iterate()
    new = crowd.add("many", 10**6, ROUND_S)
    crowd.workers.clear()
    for _ in range(40):
        crowd.loop.iterate()
    assert crowd.workers.count(new) <= 12
    assert all(crowd.workers.count(each) >= 9 for each in old)


def test_times_are_forgotten_when_nobody_waits(crowd: Crowd) -> None:
    crowd.add("a", 1, 10 * CREDIT_S)
    first = crowd.add("b", 1, 10 * CREDIT_S)
    while crowd.loop.iterate():
        pass
    assert crowd.turns._lines == {}
    assert crowd.turns._used_s == {}
    first._requests = 1
    crowd.turns.wait(first)
    crowd.add("c", 1, 10 * CREDIT_S)
    crowd.loop.iterate()
    assert crowd.served[-1] == "b"


def test_so_many_clients_are_remembered_and_no_more(crowd: Crowd) -> None:
    crowd.add("always", CLIENTS_MAX * 10, ROUND_S)
    for number in range(CLIENTS_MAX + 10):
        crowd.add(str(number), 1, ROUND_S)
        crowd.loop.iterate()
        crowd.loop.iterate()
    assert 0 < len(crowd.turns._used_s) <= CLIENTS_MAX


def test_connections_that_no_longer_wait_are_dropped(crowd: Crowd) -> None:
    """Those that have used much never come first in the order of use, while others come."""
    for _ in range(20):
        crowd.add("many", 10**6, ROUND_S)
    for _ in range(2000):
        crowd.add("many", 1, ROUND_S)
        crowd.loop.iterate()
        crowd.loop.iterate()
    (line,) = crowd.turns._lines.values()
    assert len(line._by_use) <= 2 * len(line) + 8


@st.composite
def arrivals(draw: st.DrawFn) -> list[tuple[int, int, float, int]]:
    """Of each connection: the round of its beginning, its client, the duration of a request in
    seconds, and how many of them it has."""
    arrival = st.tuples(
        st.integers(0, 60),
        st.integers(0, 4),
        st.sampled_from([0.0001, 0.001, 0.004, 0.03]),
        st.integers(1, 100),
    )
    return draw(st.lists(arrival, min_size=1, max_size=40))


@given(arrivals())
def test_nobody_waits_longer_than_those_before_it_allow(
    connections: list[tuple[int, int, float, int]],
) -> None:
    """The model counts time: of all turns since a client began to wait for one, and of those of a
    client since a connection did."""
    crowd = Crowd()
    # What is left to each at the most. Those that waited before have a turn each, as the oldest.
    left_of_clients: dict[str, float] = {}
    left_of_connections: dict[Worker, float] = {}
    turn_s_max = max(request_s for _, _, request_s, _ in connections) + ROUND_S

    def bound_s(before: int) -> float:
        return TURNS_PER_OLDEST * turn_s_max * (before + 2)

    class Watched(Worker):
        def take_turn(self) -> None:
            own = [each for each in left_of_connections if each.client == self.client]
            assert left_of_clients.pop(self.client) >= 0
            assert left_of_connections.pop(self) >= 0
            own.remove(self)
            began_s = crowd.clock.time_s
            super().take_turn()
            spent_s = crowd.clock.time_s - began_s
            for client in left_of_clients:
                left_of_clients[client] -= spent_s
            for each in own:
                left_of_connections[each] -= spent_s
            if self._requests:
                left_of_connections[self] = bound_s(len(own))
            if self._requests or own:
                left_of_clients[self.client] = bound_s(len(left_of_clients))

    to_come = sorted(connections, reverse=True)
    rounds = 0
    while to_come or left_of_connections:
        while to_come and to_come[-1][0] <= rounds:
            _, client, request_s, requests = to_come.pop()
            worker = Watched(crowd, str(client), requests, request_s)
            own = [each for each in left_of_connections if each.client == worker.client]
            left_of_connections[worker] = bound_s(len(own))
            if not own:
                left_of_clients[worker.client] = bound_s(len(left_of_clients))
            crowd.turns.wait(worker)
        before, before_s = len(crowd.served), crowd.clock.time_s
        waited = bool(left_of_connections)
        crowd.loop.iterate()
        # A round serves until its time is spent or nobody waits.
        assert (len(crowd.served) > before) == waited
        assert not left_of_connections or crowd.clock.time_s - before_s >= ROUND_S - 1e-9
        rounds += 1
    assert len(crowd.served) == sum(requests for *_, requests in connections)


@pytest.mark.parametrize("client", ["old", "new {}"], ids=["connections", "clients"])
def test_newcomers_starve_nobody(crowd: Crowd, client: str) -> None:
    """They come as often as there are turns, and have used nothing."""
    old = crowd.add("old", 10**6, ROUND_S)
    for number in range(400):
        crowd.add(client.format(number), 1, ROUND_S)
        crowd.loop.iterate()
    assert crowd.workers.count(old) > 5


def test_oldest_have_a_part_of_the_time_not_of_the_turns(crowd: Crowd) -> None:
    for _ in range(10):
        crowd.add("costly", 10**6, 4 * ROUND_S)
    crowd.add("cheap", 10**6, ROUND_S / 10)
    for _ in range(100):
        crowd.loop.iterate()
    used_s = {
        client: sum(worker._request_s for worker in crowd.workers if worker.client == client)
        for client in ("costly", "cheap")
    }
    assert used_s["cheap"] == pytest.approx(used_s["costly"], abs=0.2)
