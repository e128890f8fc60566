"""Python calls of a share fetch with the acknowledgement of the one before, from the end of `recv`
to the write of the answer, as `test_calls_per_request.py` counts those of a fetch.

The state is written in the same step, so its append is among them.
"""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from isotherm.broker.coordinators.shares.share_state_records import SharePartitionKey
from isotherm.broker.metadata.controller.topic_rules import NewTopic
from isotherm.broker.node import BrokerNode
from isotherm.config.layers import embedded_defaults
from isotherm.config.server_properties import parse_broker_config
from isotherm.protocol.api_keys import ApiKey
from isotherm.record.batch import build_batch
from oracle.raw_requests import request_frame
from tests.support.conditions import until
from tests.unit.broker.server.dispatch.test_calls_per_request import Client

CALLS_MAX = {500: 380, 5: 414}
"""By the records of a batch; a read has several small ones, of which each costs."""

BATCHES = 12
_WARM_UP = 3


@pytest.mark.parametrize("records_count", CALLS_MAX)
def test_share_fetch_of_any_size_takes_few_calls(tmp_path: Path, records_count: int) -> None:
    async def scenario(node: BrokerNode) -> None:
        topic_id = await fill(node, records_count)
        state = SharePartitionKey("g", topic_id, 0)
        services: Any = node.services
        await services.share_coordinator.ensure_topic()
        await services.share_coordinator.wait_until_loaded()
        services.share_coordinator.initialize(state, 0, 0)
        share_partition = services.share_partitions.get_or_begin(state)
        await until(lambda: share_partition.is_active)
        client = Client(SimpleNamespace(services=services))
        client.ask(share_fetch(topic_id, records_count, 0, None))
        for number in range(_WARM_UP):
            client.ask(share_fetch(topic_id, records_count, number + 1, number))
        calls = min(
            client.calls(share_fetch(topic_id, records_count, number + 1, number))
            for number in range(_WARM_UP, _WARM_UP + 3)
        )
        assert calls <= CALLS_MAX[records_count]
        # Everything before the last fetch is acknowledged, by one write for each request.
        window = services.share_partitions.get(state).window
        assert window.start_offset == (_WARM_UP + 3) * records_count
        assert services.share_coordinator.write_count == _WARM_UP + 3

    asyncio.run(with_broker(tmp_path, scenario))


async def with_broker(directory: Path, scenario: Any) -> None:
    texts = {
        **embedded_defaults(directory, {}),
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "remote.log.storage.system.enable": "false",
        "share.coordinator.state.topic.num.partitions": "1",
    }
    node = BrokerNode(parse_broker_config(texts))
    await node.start()
    try:
        await scenario(node)
    finally:
        await node.stop()


async def fill(node: BrokerNode, records_count: int) -> uuid.UUID:
    """Make a topic with BATCHES batches. Returns its id."""
    services = node.services
    topic = NewTopic(name="t", num_partitions=1)
    await services.run_control(lambda: services.controller.create_topics([topic]))
    partition = services.replica_manager.find_partition("t", None, 0)
    now_ms = services.clock.now_ms()
    for _ in range(BATCHES):
        batch = build_batch([(now_ms, None, b"v" * 100, ())] * records_count)
        partition.append(batch, required_acks=1, now_ms=now_ms)
    return services.metadata.image.topics_by_name["t"].topic_id


def share_fetch(topic_id: uuid.UUID, count: int, epoch: int, accepted: int | None) -> bytes:
    """A fetch of one batch of `count` records, which accepts the batch number `accepted`."""
    acknowledged = []
    if accepted is not None:
        first = accepted * count
        acknowledged = [
            {"first_offset": first, "last_offset": first + count - 1, "acknowledge_types": [1]}
        ]
    partition = {"partition_index": 0, "acknowledgement_batches": acknowledged}
    return request_frame(
        ApiKey.SHARE_FETCH,
        2,
        {
            "group_id": "g",
            "member_id": "m",
            "share_session_epoch": epoch,
            "max_wait": 0,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "max_records": count,
            "batch_size": count,
            "topics": [{"topic_id": str(topic_id), "partitions": [partition]}],
        },
    )
