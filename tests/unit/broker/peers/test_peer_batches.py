"""Items for other brokers are sent in batches. A broker that does not answer delays no other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from isotherm.broker.peers.peer_batches import PeerBatches
from isotherm.client.node_address import NodeAddress
from isotherm.clock import SystemClock
from isotherm.errors import NotEnoughMemoryError, PeerDisconnectedError, PeerTimeoutError
from tests.support.conditions import until

LOST = "lost"  # the peer's answer lacks this item
ONE, TWO = NodeAddress("one", 1), NodeAddress("two", 2)


class Connection:
    def __init__(self, address: NodeAddress) -> None:
        self.address = address
        self.is_closed = threading.Event()

    def close(self) -> None:
        self.is_closed.set()


class Peers:
    """The other brokers. Each batch waits until the test releases it."""

    def __init__(self, **bounds: int) -> None:
        self.connections: list[Connection] = []
        self.taken: list[list[Any]] = []
        self.may_answer = threading.Semaphore(0)
        self.failure: Exception | None = None
        bounds = {"queued_max": 100, "batch_max": 100, **bounds}
        self.batches = PeerBatches[Any, Any](
            "test", self.connect, self.exchange, SystemClock(), **bounds
        )

    def connect(self, address: NodeAddress) -> Any:
        self.connections.append(Connection(address))
        return self.connections[-1]

    def exchange(self, connection: Any, items: Sequence[Any]) -> list[Any]:
        self.taken.append(list(items))
        while not self.may_answer.acquire(timeout=0.005):
            if connection.is_closed.is_set():
                raise PeerDisconnectedError("closed")
        if self.failure is not None:
            raise self.failure
        return [f"{connection.address.host}: {item}" for item in items if item != LOST]

    async def until_taken(self, count: int) -> None:
        await until(lambda: len(self.taken) >= count)


def run(scenario: Callable[[Peers], Awaitable[None]], **bounds: int) -> None:
    async def main() -> None:
        peers = Peers(**bounds)
        try:
            await scenario(peers)
        finally:
            await peers.batches.stop()

    asyncio.run(main())


def test_what_waits_meanwhile_is_one_request() -> None:
    async def scenario(peers: Peers) -> None:
        first = peers.batches.submit(1, ONE, "a")
        await peers.until_taken(1)
        others = [peers.batches.submit(1, ONE, each) for each in "bcd"]
        for _ in range(3):
            peers.may_answer.release()
        assert await first == "one: a"
        assert await asyncio.gather(*others) == ["one: b", "one: c", "one: d"]
        assert peers.taken == [["a"], ["b", "c"], ["d"]]
        assert len(peers.connections) == 1

    run(scenario, batch_max=2)


def test_broker_that_does_not_answer_holds_up_no_other() -> None:
    async def scenario(peers: Peers) -> None:
        peers.batches.submit(1, ONE, "a").add_done_callback(asyncio.Future.exception)
        await peers.until_taken(1)
        other = peers.batches.submit(2, TWO, "b")
        await peers.until_taken(2)
        # Either batch may take the permit. `stop` ends the other one.
        peers.may_answer.release(2)
        assert await other == "two: b"

    run(scenario)


@pytest.mark.parametrize("error", [PeerTimeoutError("late"), ValueError("a bug")])
def test_error_of_a_request_is_that_of_each_item(error: Exception) -> None:
    async def scenario(peers: Peers) -> None:
        peers.failure = error
        peers.may_answer.release(2)
        results = await asyncio.gather(
            *(peers.batches.submit(1, ONE, each) for each in "ab"), return_exceptions=True
        )
        assert results == [error, error]
        peers.failure = None
        peers.may_answer.release()
        assert await peers.batches.submit(1, ONE, "c") == "one: c"

    run(scenario)


def test_too_much_for_one_broker_is_refused() -> None:
    async def scenario(peers: Peers) -> None:
        taken = peers.batches.submit(1, ONE, "a")
        await peers.until_taken(1)
        waits = peers.batches.submit(1, ONE, "b")
        with pytest.raises(NotEnoughMemoryError, match="one"):
            await peers.batches.submit(1, ONE, "c")
        peers.may_answer.release(2)
        assert await asyncio.gather(taken, waits) == ["one: a", "one: b"]

    run(scenario, queued_max=1)


def test_broker_with_another_address_gets_a_new_connection() -> None:
    async def scenario(peers: Peers) -> None:
        old = peers.batches.submit(1, ONE, "a")
        await peers.until_taken(1)
        new = peers.batches.submit(1, TWO, "b")
        with pytest.raises(PeerDisconnectedError):
            await old
        peers.may_answer.release()
        assert await new == "two: b"

    run(scenario)


def test_stop_ends_what_is_under_way_and_what_waits() -> None:
    async def scenario(peers: Peers) -> None:
        taken = peers.batches.submit(1, ONE, "a")
        await peers.until_taken(1)
        waits = peers.batches.submit(1, ONE, "b")
        await peers.batches.stop()
        for each in (taken, waits):
            with pytest.raises(PeerDisconnectedError):
                await each

    run(scenario)


def test_answer_with_too_few_results_fails_its_batch_and_not_the_next() -> None:
    async def scenario(peers: Peers) -> None:
        peers.may_answer.release(2)
        with pytest.raises(ValueError, match="shorter"):
            await peers.batches.submit(1, ONE, LOST)
        assert await peers.batches.submit(1, ONE, "b") == "one: b"

    run(scenario)
