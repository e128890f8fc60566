"""A client that goes away while its markers are replicated takes nothing from others that wait for them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from isotherm.broker.apis import write_txn_markers
from isotherm.broker.coordinator_shards import CoordinatorShard
from isotherm.errors import CoordinatorNotAvailableError


def test_a_client_that_disconnects_cancels_no_append() -> None:
    """The group coordinator waits for the same append: see `GroupCoordinator.complete_transaction`."""

    async def scenario() -> None:
        committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        marker = SimpleNamespace(
            producer_id=1,
            producer_epoch=0,
            transaction_result=True,
            coordinator_epoch=0,
            transaction_version=0,
            topics=[SimpleNamespace(name="__consumer_offsets", partition_indexes=[0])],
        )
        markers = SimpleNamespace(append=lambda *_: committed)
        context: Any = SimpleNamespace(
            header=SimpleNamespace(api_version=2),
            services=SimpleNamespace(transaction_markers=markers),
        )
        request = SimpleNamespace(markers=[marker])
        shard = CoordinatorShard(0)
        shard.note_append(committed)

        handling = asyncio.create_task(write_txn_markers.handle(context, request))
        await asyncio.sleep(0)
        handling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await handling
        waiting = asyncio.create_task(shard.wait_committed())
        await asyncio.sleep(0)
        committed.set_result(None)
        await waiting

    asyncio.run(scenario())


def test_a_cancelled_append_does_not_cancel_the_request_that_waits_for_it() -> None:
    async def scenario() -> None:
        committed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        shard = CoordinatorShard(0)
        shard.note_append(committed)
        committed.cancel()
        assert not shard.is_committed
        with pytest.raises(CoordinatorNotAvailableError):
            await shard.wait_committed()

    asyncio.run(scenario())
