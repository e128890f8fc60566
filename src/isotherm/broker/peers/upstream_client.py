"""Clients of the cluster in front of which a read replica stands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from isotherm.client.cluster_client import REQUEST_TIMEOUT_S, ClusterClient
from isotherm.client.node_address import NodeAddress
from isotherm.types import BrokerId

_CLIENT_ID = "isotherm-replica"
_Result = TypeVar("_Result")


class UpstreamClient(ClusterClient):
    """`addresses` are those of the cluster's brokers, as it last named them."""

    def __init__(self, properties: Mapping[str, Any]) -> None:
        super().__init__(properties, client_id=_CLIENT_ID)
        self.properties = properties
        self.addresses: Mapping[BrokerId, NodeAddress] = {}

    def properties_now(self) -> Mapping[str, Any]:
        """Those of a new client, which begins at any of the brokers: the ones that this client
        began at may be gone."""
        named = str(self.properties["bootstrap.servers"])
        servers = dict.fromkeys([named, *map(str, self.addresses.values())])
        return {**self.properties, "bootstrap.servers": ",".join(servers)}


class UpstreamPool:
    """Sends requests that the cluster may answer late. Each has a thread and connections of its own
    while it waits; `requests_max` bounds them, and further ones wait for their turn."""

    def __init__(
        self,
        upstream: UpstreamClient,
        name: str,
        requests_max: int,
        *,
        request_timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        self._upstream = upstream
        self._timeout_s = request_timeout_s
        self._clients: list[ClusterClient] = []
        self._idle: list[ClusterClient] = []
        self._threads = ThreadPoolExecutor(requests_max, thread_name_prefix=f"isotherm-{name}")

    async def run(self, work: Callable[[ClusterClient], _Result]) -> _Result:
        """The result of `work`, in a thread, with a client that nobody else uses meanwhile. Raises
        what it raises, and as ClusterClient. Event loop thread only."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, work)

    def close(self) -> None:
        """End the requests that wait."""
        for client in self._clients:
            client.close()
        self._threads.shutdown(cancel_futures=True)

    def _run(self, work: Callable[[ClusterClient], _Result]) -> _Result:
        try:
            client = self._idle.pop()
        except IndexError:
            # At most one for each thread.
            client = ClusterClient(
                self._upstream.properties_now(),
                client_id=_CLIENT_ID,
                request_timeout_s=self._timeout_s,
            )
            self._clients.append(client)
        try:
            return work(client)
        finally:
            self._idle.append(client)
