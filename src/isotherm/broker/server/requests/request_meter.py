"""Charges one request to its client's quotas, and throttles the client (KIP-219)."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable
from typing import Any

from isotherm.broker.metadata.access.principal import ANONYMOUS
from isotherm.broker.server.net.connection import Connection
from isotherm.broker.server.requests.mutation_quota import MutationQuota
from isotherm.broker.server.requests.quotas import Client, ClientQuotaManager
from isotherm.broker.server.requests.served_api import Api, Charge
from isotherm.protocol.fetch import CONSUMER_REPLICA_ID, FetchResponse
from isotherm.protocol.framing import RequestHeader
from isotherm.protocol.share_fetch import ShareFetchResponse


class RequestMeter:
    """Charges one request to the quotas of its client.

    Created only if there are quotas. Event loop thread only.
    """

    def __init__(
        self,
        quotas: ClientQuotaManager,
        api: Api,
        header: RequestHeader,
        size: int,
        connection: Connection,
        user: str = ANONYMOUS.name,
    ) -> None:
        """`size` is the size of the request in bytes."""
        self._quotas = quotas
        self._clock = quotas.clock
        self._charge = api.charge
        self._client = Client(user, header.client_id or "")
        self._size = size
        self._connection = connection
        self._processing_s = 0.0
        self._is_exempt = False
        self.mutations: MutationQuota | None = None
        if api.charge is Charge.MUTATIONS:
            is_strict = header.api_version >= api.first_strict_version
            self.mutations = quotas.mutation_quota(self._client, is_strict=is_strict)

    def bounded(self, request: Any) -> Any:
        """The request; a fetch is limited to the largest size that the quota allows.

        A follower's fetch is exempt, because replication has its own quotas.
        """
        if self._charge is not Charge.FETCHED_BYTES:
            return request
        if getattr(request, "replica_id", CONSUMER_REPLICA_ID) >= 0:
            self._is_exempt = True
            return request
        size_max = self._quotas.fetch_size_max(self._client)
        if size_max is None or size_max >= request.max_bytes:
            return request
        # `min_bytes` too, or the fetch would wait for more bytes than it may get.
        return request._replace(max_bytes=size_max, min_bytes=min(request.min_bytes, size_max))

    def timed(self, work: Callable[[], Any]) -> Any:
        """Call `work` and measure its time. Time that is awaited between calls does not count."""
        started_s = self._clock.monotonic_s()
        try:
            return work()
        finally:
            self._processing_s += self._clock.monotonic_s() - started_s

    def throttled(self, response: Any) -> Any:
        """The response to send.

        Over a quota it has a throttle time, and the connection is muted.
        """
        if self._is_exempt:
            return response
        throttle_ms = self._quotas.record_request(self._client, self._processing_s)
        if self._charge is Charge.PRODUCED_BYTES:
            throttle_ms = max(throttle_ms, self._quotas.record_produce(self._client, self._size))
        elif self._charge is Charge.FETCHED_BYTES:
            size = _records_size(response)
            throttle_ms = max(throttle_ms, self._quotas.record_fetch(self._client, size))
            if throttle_ms > 0:
                # The records are not sent, so they must not count.
                self._quotas.record_fetch(self._client, -size)
                response = response.without_records()
        elif self.mutations is not None:
            throttle_ms = max(throttle_ms, self.mutations.throttle_ms)
        if throttle_ms == 0:
            return response
        self._connection.mute(throttle_ms / 1000)
        return _with_throttle_time(response, throttle_ms)


def _records_size(response: FetchResponse | ShareFetchResponse) -> int:
    return sum(
        len(records)
        for topic in response.topics
        for partition in topic.partitions
        for records in partition.records
    )


def _with_throttle_time(response: Any, throttle_ms: int) -> Any:
    if response is None:
        return None
    if hasattr(response, "throttle_time_ms"):
        return response._replace(throttle_time_ms=throttle_ms)
    if hasattr(response, "throttle_time"):
        return dataclasses.replace(
            response, throttle_time=datetime.timedelta(milliseconds=throttle_ms)
        )
    return response
