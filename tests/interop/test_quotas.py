"""Quotas that no client library exposes well (KIP-599 and KIP-612), through raw requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.metadata.client_quotas import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    QuotaChange,
)
from isotherm.clock import SystemClock
from isotherm.protocol.api_keys import ApiKey
from isotherm.record.batch import build_batch
from isotherm.testing.embedded_broker import EmbeddedBroker
from oracle.raw_requests import CLIENT_ID, CLOSED, ask, read_answer, request_frame
from tests.support.conditions import wait_until
from tests.support.raw_client import RawClient

TIMEOUT_S = 300


@pytest.fixture
def broker(start_broker: Callable[..., EmbeddedBroker]) -> EmbeddedBroker:
    """A broker that lets this client create a partition every two seconds."""
    settings = {"controller.quota.window.num": "2", "auto.create.topics.enable": "false"}
    started = start_broker(settings)
    services = started.node.services
    change = QuotaChange(CONTROLLER_MUTATION_RATE, 0.5)
    services.control_executor.submit(
        services.controller.alter_client_quotas, [("client-id", CLIENT_ID.decode())], [change]
    ).result(TIMEOUT_S)
    # The event loop applies the change in its next iteration.
    ask(started.bootstrap_servers, request_frame(ApiKey.API_VERSIONS, 0, {}))
    return started


def create(broker: EmbeddedBroker, name: str, version: int, partitions: int = 1) -> Any:
    topic = {"name": name, "num_partitions": partitions, "replication_factor": 1}
    fields = {"topics": [topic], "timeout": 5000}
    answer = ask(broker.bootstrap_servers, request_frame(ApiKey.CREATE_TOPICS, version, fields))
    assert isinstance(answer, bytes)
    return read_answer(ApiKey.CREATE_TOPICS, version, answer)


def test_new_client_that_makes_partitions_too_fast_is_refused(broker: EmbeddedBroker) -> None:
    assert create(broker, "first", 7, partitions=10).topics[0].error_code is ErrorCode.none
    refused = create(broker, "second", 7)
    assert refused.topics[0].error_code is ErrorCode.throttling_quota_exceeded
    assert "controller_mutation_rate=0.5" in refused.topics[0].error_message
    assert refused.throttle_time.total_seconds() > 10
    assert "second" not in broker.node.services.metadata.image.topics_by_name


def test_deleting_and_growing_count_too(broker: EmbeddedBroker) -> None:
    create(broker, "first", 7, partitions=10)
    for key, version, fields in (
        (ApiKey.DELETE_TOPICS, 6, {"topics": [{"name": "first"}]}),
        (ApiKey.CREATE_PARTITIONS, 3, {"topics": [{"name": "first", "count": 11}]}),
    ):
        answer = ask(
            broker.bootstrap_servers, request_frame(key, version, {**fields, "timeout": 5000})
        )
        assert isinstance(answer, bytes)
        response = read_answer(key, version, answer)
        (result,) = getattr(response, "responses", None) or response.results
        assert result.error_code is ErrorCode.throttling_quota_exceeded
        assert response.throttle_time.total_seconds() > 10
    assert len(broker.node.services.metadata.image.topics_by_name["first"].partitions) == 10


def test_old_client_is_served_with_a_throttle_time(broker: EmbeddedBroker) -> None:
    assert create(broker, "first", 5, partitions=10).topics[0].error_code is ErrorCode.none
    served = create(broker, "second", 5)
    assert served.topics[0].error_code is ErrorCode.none
    assert served.throttle_time.total_seconds() > 10


def test_connections_beyond_the_quota_of_their_address_are_closed_a_while_later(
    start_broker: Callable[..., EmbeddedBroker],
) -> None:
    broker = start_broker({"quota.window.num": "2"})
    services = broker.node.services
    hello = request_frame(ApiKey.API_VERSIONS, 0, {})

    def set_quota(rate: float | None) -> None:
        services.control_executor.submit(
            services.controller.alter_client_quotas,
            [("ip", "127.0.0.1")],
            [QuotaChange(CONNECTION_CREATION_RATE, rate)],
        ).result(TIMEOUT_S)

    set_quota(1.0)
    assert ask(broker.bootstrap_servers, hello, TIMEOUT_S) != CLOSED
    # The quota refuses the second connection at the latest, if they come fast enough.
    for _ in range(100):
        if ask(broker.bootstrap_servers, hello, TIMEOUT_S) == CLOSED:
            break
    else:
        pytest.fail("no connection was closed")
    set_quota(None)
    while ask(broker.bootstrap_servers, hello, TIMEOUT_S) == CLOSED:
        pass


def test_share_fetches_count_for_the_quota_of_fetched_bytes(
    start_broker: Callable[..., EmbeddedBroker],
) -> None:
    broker = start_broker({})
    earliest = [{"name": "share.auto.offset.reset", "config_operation": 0, "value": "earliest"}]
    group = {"resource_type": 32, "resource_name": "g", "configs": earliest}
    member: dict[str, Any] = {"group_id": "g", "member_id": "m"}
    with RawClient(broker.bootstrap_servers) as client:
        created = client.ask(
            ApiKey.CREATE_TOPICS,
            7,
            topics=[{"name": "t", "num_partitions": 1, "replication_factor": 1}],
            timeout=5000,
        )
        topic_id = str(created.topics[0].topic_id)
        client.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, resources=[group], validate_only=False)
        batch = build_batch([(SystemClock().now_ms(), None, b"v" * 1000, ())] * 20)
        partition = {"index": 0, "records": batch.hex()}
        data = [{"name": "t", "partition_data": [partition]}]
        client.ask(ApiKey.PRODUCE, 9, acks=-1, timeout=60_000, topic_data=data)
        change = {
            "entity": [{"entity_type": "client-id", "entity_name": CLIENT_ID.decode()}],
            "ops": [{"key": CONSUMER_BYTE_RATE, "value": 100.0}],
        }
        assert (
            client.ask(ApiKey.ALTER_CLIENT_QUOTAS, 1, entries=[change]).entries[0].error_code == 0
        )

        def heartbeat(epoch: int) -> int:
            answer = client.ask(
                ApiKey.SHARE_GROUP_HEARTBEAT,
                1,
                **member,
                member_epoch=epoch,
                subscribed_topic_names=["t"],
            )
            return int(answer.member_epoch)

        epoch = heartbeat(0)
        bounds = {"max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20, "batch_size": 500}
        topics = [{"topic_id": topic_id, "partitions": [{"partition_index": 0}]}]
        session_epoch = 0

        def throttled() -> bool:
            nonlocal epoch, session_epoch
            epoch = heartbeat(epoch)
            answer = client.ask(
                ApiKey.SHARE_FETCH,
                2,
                **member,
                **bounds,
                max_records=500,
                share_session_epoch=session_epoch,
                topics=topics if session_epoch == 0 else [],
            )
            assert answer.error_code is ErrorCode.none
            session_epoch += 1
            return bool(answer.throttle_time.total_seconds() > 10)

        # The states are initialized behind the answer to the first heartbeat.
        wait_until(throttled, "a share fetch beyond the quota", timeout_s=TIMEOUT_S)


def test_quota_is_that_of_the_user_who_has_logged_in(
    start_broker: Callable[..., EmbeddedBroker],
) -> None:
    module = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    started = start_broker(
        {
            "listeners": "LOGIN://127.0.0.1:0",
            "listener.security.protocol.map": "LOGIN:SASL_PLAINTEXT",
            "inter.broker.listener.name": "LOGIN",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.login.plain.sasl.jaas.config": (
                f'{module} user_alice="hers" user_bob="his";'
            ),
        }
    )

    def throttled(user: str, password: str) -> bool:
        with RawClient(started.bootstrap_servers) as client:
            assert client.log_in_plain(user, password).error_code is ErrorCode.none
            request = {"name": user, "num_partitions": 10, "replication_factor": 1}
            first = client.ask(ApiKey.CREATE_TOPICS, 5, topics=[request], timeout=5000)
            assert first.topics[0].error_code is ErrorCode.none
            return bool(first.throttle_time.total_seconds() > 0)

    with RawClient(started.bootstrap_servers) as client:
        client.log_in_plain("bob", "his")
        change = {
            "entity": [{"entity_type": "user", "entity_name": "alice"}],
            "ops": [{"key": CONTROLLER_MUTATION_RATE, "value": 0.1}],
        }
        changed = client.ask(ApiKey.ALTER_CLIENT_QUOTAS, 1, entries=[change])
        assert changed.entries[0].error_code is ErrorCode.none
    assert (throttled("alice", "hers"), throttled("bob", "his")) == (True, False)
