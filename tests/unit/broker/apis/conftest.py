"""Handlers called as the dispatcher calls them, with a real controller and no network."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from isotherm.broker.apis import (
    api_versions,
    create_topics,
    delete_topics,
    describe_configs,
    find_coordinator,
    init_producer_id,
    metadata,
)
from isotherm.broker.context import BrokerServices, Endpoint, RequestContext
from isotherm.broker.error_mapping import error_code
from isotherm.config.broker import BrokerConfig
from isotherm.errors import IsothermError
from isotherm.protocol.api_versions import ApiKey, request_class, response_class
from isotherm.protocol.codec import decoder
from isotherm.protocol.entities import entity_of
from isotherm.protocol.framing import RequestHeader, write_response

MODULES: Mapping[int, ModuleType] = {
    ApiKey.API_VERSIONS: api_versions,
    ApiKey.METADATA: metadata,
    ApiKey.FIND_COORDINATOR: find_coordinator,
    ApiKey.CREATE_TOPICS: create_topics,
    ApiKey.DELETE_TOPICS: delete_topics,
    ApiKey.INIT_PRODUCER_ID: init_producer_id,
    ApiKey.DESCRIBE_CONFIGS: describe_configs,
}


class Broker:
    def __init__(self, cluster_metadata: Any, executor: ThreadPoolExecutor) -> None:
        self._cluster_metadata = cluster_metadata
        self._executor = executor
        self.configure(BrokerConfig())

    def configure(self, config: BrokerConfig) -> None:
        """Start again with another configuration."""
        self.controller = self._cluster_metadata.start(config)
        self.services = BrokerServices(
            config=config,
            clock=self._cluster_metadata.clock,
            cluster_id="the-cluster",
            endpoints=(
                Endpoint("PLAINTEXT", "broker.example", 9092),
                Endpoint("INTERNAL", "10.0.0.1", 19092),
            ),
            controller=self.controller,
            replica_manager=cast("Any", None),
            group_coordinator=cast("Any", None),
            transaction_coordinator=cast("Any", None),
            transaction_markers=cast("Any", None),
            remote_log_manager=None,
            control_executor=self._executor,
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
        module = MODULES[api_key]

        async def answer() -> Any:
            try:
                response = module.handle(context, request)
                return await response if inspect.isawaitable(response) else response
            except IsothermError as error:
                return module.error_response(context, request, error_code(error))

        return self.as_client_sees_it(api_key, version, asyncio.run(answer()))

    def error_response(self, api_key: int, version: int, code: ErrorCode, **fields: Any) -> Any:
        context = self.context(api_key, version)
        request = entity_of(request_class(api_key, version), fields)
        response = MODULES[api_key].error_response(context, request, code)
        return self.as_client_sees_it(api_key, version, response)

    @staticmethod
    def as_client_sees_it(api_key: int, version: int, response: Any) -> Any:
        frame = b"".join(write_response(api_key, version, 1, response))
        response_type = response_class(api_key, version)
        flexible_header = response_type.__flexible__ and api_key != ApiKey.API_VERSIONS
        entity, end = decoder(response_type)(frame, 9 if flexible_header else 8)
        assert end == len(frame)
        return entity


@pytest.fixture
def broker(cluster_metadata: Any) -> Iterator[Broker]:
    with ThreadPoolExecutor(1) as executor:
        yield Broker(cluster_metadata, executor)
