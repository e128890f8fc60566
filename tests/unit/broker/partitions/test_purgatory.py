"""The purgatory: an operation completes once, by a notification or its timer, and none is lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable

from isotherm.broker.partitions.purgatory import Purgatory


class Wanting:
    """Completes when `available` reaches `wanted`. Expires with less."""

    available = 0

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.tries: list[str | None] = []
        self.future: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    def try_complete(self, key: str | None) -> bool:
        self.tries.append(key)
        if self.available >= self.wanted:
            self.future.set_result("completed")
        return self.future.done()

    def expire(self) -> None:
        self.future.set_result("expired")


def run(scenario: Callable[[Purgatory[str]], Awaitable[None]], operations_max: int = 10) -> None:
    async def main() -> None:
        purgatory = Purgatory[str](asyncio.get_running_loop(), operations_max=operations_max)
        await scenario(purgatory)
        await asyncio.sleep(0)
        assert len(purgatory) == 0

    asyncio.run(main())


def test_operation_completes_at_the_notification_that_suffices() -> None:
    async def scenario(purgatory: Purgatory[str]) -> None:
        operation = Wanting(2)
        purgatory.watch(operation, ["a", "b"], 1000)
        for operation.available in (1, 2):
            purgatory.notify("b")
            await asyncio.sleep(0)
        assert await operation.future == "completed"
        assert operation.tries == [None, "b", "b"]

    run(scenario)


def test_notifications_of_one_iteration_are_tried_once() -> None:
    async def scenario(purgatory: Purgatory[str]) -> None:
        operation = Wanting(1)
        purgatory.watch(operation, ["a"], 1000)
        purgatory.notify("a")
        purgatory.notify("a")
        purgatory.notify("unwatched")
        await asyncio.sleep(0)
        assert operation.tries == [None, "a"]
        purgatory.expire_all()
        assert await operation.future == "expired"

    run(scenario)


def test_notification_from_another_thread_wakes_the_loop() -> None:
    async def scenario(purgatory: Purgatory[str]) -> None:
        operation = Wanting(1)
        purgatory.watch(operation, ["a"], 1000)
        operation.available = 1
        thread = threading.Thread(target=purgatory.notify, args=("a",))
        thread.start()
        assert await operation.future == "completed"
        thread.join()

    run(scenario)


def test_change_by_another_thread_before_the_watch_is_not_missed() -> None:
    """The change came after the caller found the operation incomplete and before the watch, so its
    notification found no operation."""

    async def scenario(purgatory: Purgatory[str]) -> None:
        operation = Wanting(1)
        operation.available = 1
        thread = threading.Thread(target=purgatory.notify, args=("a",))
        thread.start()
        thread.join()
        purgatory.watch(operation, ["a"], 1000)
        assert await operation.future == "completed"

    run(scenario)


def test_operation_expires_by_its_timer() -> None:
    async def scenario(purgatory: Purgatory[str]) -> None:
        operation = Wanting(1)
        purgatory.watch(operation, ["a", "b"], 0)
        assert await operation.future == "expired"

    run(scenario)


def test_operation_without_room_expires_at_once() -> None:
    async def scenario(purgatory: Purgatory[str]) -> None:
        first, second = Wanting(1), Wanting(1)
        purgatory.watch(first, ["a"], 1000)
        purgatory.watch(second, ["a"], 1000)
        assert second.future.done()
        assert not first.future.done()
        first.available = 1
        purgatory.notify("a")
        assert await first.future == "completed"

    run(scenario, operations_max=1)


def test_cancelled_operation_is_forgotten() -> None:
    async def scenario(purgatory: Purgatory[str]) -> None:
        operation = Wanting(1)
        purgatory.watch(operation, ["a"], 1000)
        operation.future.cancel()
        purgatory.notify("a")
        await asyncio.sleep(0)
        assert operation.tries == [None]

    run(scenario)


def test_operation_watched_under_several_keys_ends_once() -> None:
    async def scenario(purgatory: Purgatory[str]) -> None:
        operation = Wanting(1)
        purgatory.watch(operation, ["a", "b"], 0)
        operation.available = 1
        purgatory.notify("a")
        purgatory.notify("b")
        assert await operation.future == "completed"
        await asyncio.sleep(0)
        assert len(operation.tries) == 2

    run(scenario)
