"""An error that nobody waits for any more is no fault, and asyncio logs none: clients
disconnect.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from isotherm.broker.apis import write_txn_markers
from isotherm.broker.partitions.partition_waits import PartitionWaits
from isotherm.broker.peers.peer_batches import PeerBatches
from isotherm.broker.shared_futures import shared, shared_result
from isotherm.broker.threads.kernel_warm_up import KernelWarmUp
from isotherm.client.node_address import NodeAddress
from isotherm.clock import SystemClock
from isotherm.errors import NotLeaderOrFollowerError, PeerDisconnectedError
from isotherm.types import TopicPartition


def moved() -> NotLeaderOrFollowerError:
    """A new one each time: the traceback of a raised error keeps its future alive."""
    return NotLeaderOrFollowerError("another broker leads")


def faults_logged(scenario: Callable[[], Awaitable[None]]) -> list[str]:
    """What asyncio's exception handler is given, which logs it with level ERROR."""
    faults: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: faults.append(context["message"]))
        await scenario()
        gc.collect()
        await settled()

    asyncio.run(main())
    gc.collect()
    return faults


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def abandoned(work: Awaitable[Any]) -> None:
    """The client that waits for `work` disconnects."""
    task = asyncio.ensure_future(work)
    await settled()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def a_coordinator_disconnects_while_its_markers_wait() -> None:
    loop = asyncio.get_running_loop()
    commits: list[asyncio.Future[None]] = [loop.create_future() for _ in range(3)]
    waiting = iter(commits)
    markers = SimpleNamespace(append=lambda *_: next(waiting))
    context: Any = SimpleNamespace(
        header=SimpleNamespace(api_version=1), services=SimpleNamespace(transaction_markers=markers)
    )
    marker = SimpleNamespace(
        producer_id=1,
        producer_epoch=0,
        transaction_result=True,
        coordinator_epoch=0,
        topics=[SimpleNamespace(name="t", partition_indexes=[0, 1, 2])],
    )
    await abandoned(write_txn_markers.handle(context, SimpleNamespace(markers=[marker])))
    for commit in commits:
        commit.set_exception(moved())
    await settled()


async def leadership_moves_when_nobody_waits_for_a_commit() -> None:
    def is_committed(*_: int) -> bool:
        if has_moved:
            raise moved()
        return False

    has_moved = False
    requests: Any = SimpleNamespace(watched=(), notify=lambda _: None)
    waits = PartitionWaits(TopicPartition("t", 0), requests, is_committed)
    waits.until_committed(1, 0)
    has_moved = True
    waits.changed()
    await settled()


async def a_producer_disconnects_before_the_kernels_fail_to_load() -> None:
    may_end = threading.Event()

    def load() -> None:
        may_end.wait()
        raise OSError("no space left on device")

    warm_up = KernelWarmUp(load)
    await abandoned(warm_up.wait())
    may_end.set()
    with pytest.raises(OSError, match="no space"):
        await warm_up.wait()


async def a_broker_does_not_answer_what_nobody_waits_for() -> None:
    def refuse(*_: Any) -> list[Any]:
        raise PeerDisconnectedError("the peer has gone")

    connection: Any = SimpleNamespace(close=lambda: None)
    batches = PeerBatches[Any, Any](
        "test", lambda _: connection, refuse, SystemClock(), queued_max=10, batch_max=10
    )
    batches.submit(1, NodeAddress("one", 1), "unheard")
    with pytest.raises(PeerDisconnectedError):
        await batches.submit(1, NodeAddress("one", 1), "heard")
    await batches.stop()


@pytest.mark.parametrize(
    "scenario",
    [
        a_coordinator_disconnects_while_its_markers_wait,
        leadership_moves_when_nobody_waits_for_a_commit,
        a_producer_disconnects_before_the_kernels_fail_to_load,
        a_broker_does_not_answer_what_nobody_waits_for,
    ],
)
def test_error_that_nobody_waits_for_is_not_logged(scenario: Callable[[], Awaitable[None]]) -> None:
    assert faults_logged(scenario) == []


def test_each_that_waits_gets_the_error_and_one_that_leaves_disturbs_no_other() -> None:
    async def scenario() -> None:
        future: asyncio.Future[None] = shared(asyncio.get_running_loop().create_future())
        others = [asyncio.ensure_future(shared_result(future)) for _ in range(2)]
        await abandoned(shared_result(future))
        assert not future.done()
        future.set_exception(moved())
        for other in others:
            with pytest.raises(NotLeaderOrFollowerError):
                await other
        with pytest.raises(NotLeaderOrFollowerError):
            await shared_result(future)

    assert faults_logged(scenario) == []


def test_a_future_without_sharing_is_reported() -> None:
    """What the other tests listen to."""

    async def scenario() -> None:
        asyncio.get_running_loop().create_future().set_exception(moved())

    assert faults_logged(scenario) == ["Future exception was never retrieved"]
