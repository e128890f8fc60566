"""Handlers called as the dispatcher calls them, with a real controller and no network."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.apis.api_register import APIS
from isotherm.broker.error_mapping import error_code
from isotherm.broker.metadata.controller.controller import Controller
from isotherm.broker.metadata.endpoint import Endpoint
from isotherm.broker.partitions.replica_manager import ReplicaManager
from isotherm.broker.partitions.replica_roles import NoFetchers, ReplicaRoles
from isotherm.broker.server.requests.context import BrokerServices, RequestContext
from isotherm.config.broker import BrokerConfig
from isotherm.errors import IsothermError
from isotherm.log.fs import OsFileSystem
from isotherm.log.log_manager import LogManager
from isotherm.metrics.broker_traffic import BrokerTraffic
from isotherm.protocol.api_keys import ApiKey, request_class, response_class
from isotherm.protocol.codec import decoder
from isotherm.protocol.entities import entity_of
from isotherm.protocol.framing import RequestHeader, version_codec
from isotherm.record.batch import build_batch
from tests.support.led_topic import BROKER_ID, NobodyWaits, alone


class NoTransactions:
    """The part of the transaction coordinator that an idempotent producer needs."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    async def new_producer_id(self) -> int:
        return self._controller.generate_producer_id()


class NothingFailed:
    """A replica manager without logs, in which no partition is offline."""

    def is_offline(self, topic: str, partition: int) -> bool:
        return False


class Broker:
    """The services of one broker, with a real controller. `call` runs a handler as the dispatcher
    does."""

    def __init__(self, cluster_metadata: Any, executor: ThreadPoolExecutor) -> None:
        self._cluster_metadata = cluster_metadata
        self._executor = executor
        self.log_manager: LogManager | None = None
        self.configure(BrokerConfig())

    def host(self, *directories: Path, **settings: Any) -> None:
        """Restart the broker with log directories that hold logs."""
        self.configure(BrokerConfig(log_dirs=directories, **settings))
        config = self.services.config
        self.log_manager = LogManager(
            config.log_dirs,
            config=config,
            topic_config_for=self.controller.topic_config,
            clock=self.services.clock,
            fs=OsFileSystem(),
            rng=random.Random(0),
        )
        self.log_manager.startup()
        replica_manager = ReplicaManager(
            self.log_manager, cast("Any", NobodyWaits()), alone(self.services.clock)
        )
        ReplicaRoles(
            BROKER_ID, self.controller, replica_manager, NoFetchers(), inter_broker_listener=""
        ).start()
        self.services = dataclasses.replace(self.services, replica_manager=replica_manager)

    def close(self) -> None:
        if self.log_manager is not None:
            self.log_manager.shutdown()

    def append(self, topic: str, *values: bytes, partition: int = 0) -> None:
        now_ms = self.services.clock.now_ms()
        batch = build_batch([(now_ms, b"key", value, ()) for value in values])
        found = self.services.replica_manager.find_partition(topic, None, partition)
        found.append(batch, required_acks=1, now_ms=now_ms)

    def configure(self, config: BrokerConfig) -> None:
        """Restart the broker with another configuration."""
        self.controller = self._cluster_metadata.start(config)
        self.services = BrokerServices(
            config=config,
            clock=self._cluster_metadata.clock,
            cluster_id="the-cluster",
            endpoints=(
                Endpoint("PLAINTEXT", "broker.example", 9092),
                Endpoint("INTERNAL", "10.0.0.1", 19092),
            ),
            metadata=self.controller,
            embedded_controller=self.controller,
            replica_manager=cast("Any", NothingFailed()),
            fetch_sessions=cast("Any", None),
            answers=cast("Any", None),
            group_coordinator=cast("Any", None),
            transaction_coordinator=cast("Any", NoTransactions(self.controller)),
            share_coordinator=cast("Any", None),
            persister=cast("Any", None),
            share_group_states=cast("Any", None),
            share_partitions=cast("Any", None),
            transaction_markers=cast("Any", None),
            remote_log_manager=None,
            control_executor=self._executor,
            batch_executor=self._executor,
            flush_executor=self._executor,
            kernels=cast("Any", SimpleNamespace(is_ready=True)),
            traffic=BrokerTraffic(),
        )

    def context(self, api_key: int, version: int, listener: str = "PLAINTEXT") -> RequestContext:
        header = RequestHeader(api_key, version, 1, "test")
        return RequestContext(self.services, header, "127.0.0.1", listener)

    def call(
        self, api_key: int, version: int, *, listener: str = "PLAINTEXT", **fields: Any
    ) -> Any:
        """The response as a client decodes it."""
        context = self.context(api_key, version, listener)
        request = entity_of(request_class(api_key, version), fields)
        api = APIS[api_key]

        async def answer() -> Any:
            try:
                response = api.handle(context, request)
                return await response if inspect.isawaitable(response) else response
            except IsothermError as error:
                return api.refuse(context, request, error_code(error))

        return self.as_client_sees_it(api_key, version, asyncio.run(answer()))

    def error_response(self, api_key: int, version: int, code: ErrorCode, **fields: Any) -> Any:
        context = self.context(api_key, version)
        request = entity_of(request_class(api_key, version), fields)
        response = APIS[api_key].refuse(context, request, code)
        return self.as_client_sees_it(api_key, version, response)

    @staticmethod
    def as_client_sees_it(api_key: int, version: int, response: Any) -> Any:
        frame = b"".join(version_codec(api_key, version).write_response(1, response))
        response_type = response_class(api_key, version)
        flexible_header = response_type.__flexible__ and api_key != ApiKey.API_VERSIONS
        entity, end = decoder(response_type)(frame, 9 if flexible_header else 8)
        assert end == len(frame)
        return entity


@pytest.fixture
def broker(cluster_metadata: Any) -> Iterator[Broker]:
    with ThreadPoolExecutor(1) as executor:
        made = Broker(cluster_metadata, executor)
        yield made
        made.close()
