"""The broker's metrics for Prometheus: `GET /metrics` over plain HTTP, one request per connection.

There is no authentication: any client that can connect to the address may read the metrics.
"""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from isotherm.errors import ConfigError

logger = logging.getLogger(__name__)

CONNECTIONS_MAX = 16
REQUEST_SIZE_MAX = 8192
REQUEST_TIMEOUT_S = 5.0


class _Response(NamedTuple):
    status: str
    body: bytes
    content_type: str = "text/plain; charset=utf-8"

    def encode(self, *, with_body: bool) -> bytes:
        head = (
            f"HTTP/1.1 {self.status}\r\nContent-Type: {self.content_type}\r\n"
            f"Content-Length: {len(self.body)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + (self.body if with_body else b"")


class MetricsEndpoint:
    """Event loop thread only. The text is generated in the loop's executor."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._server: asyncio.Server | None = None
        self._connection_count = 0
        self.port = 0

    async def start(self, address: str) -> None:
        """Serve at `address`, a host and a port. Raises ConfigError if it cannot be bound."""
        host, _, port = address.rpartition(":")
        try:
            self._server = await asyncio.start_server(
                self._serve, host or None, int(port), limit=REQUEST_SIZE_MAX
            )
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot listen key=prometheus.listener value={address}") from error
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connection_count += 1
        try:
            if self._connection_count <= CONNECTIONS_MAX:
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    request = await reader.readuntil(b"\r\n\r\n")
                    writer.write(await self._answer(request))
                    await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, OSError):
            logger.info("metrics request is not HTTP, or its response was not read")
        finally:
            self._connection_count -= 1
            writer.close()

    async def _answer(self, request: bytes) -> bytes:
        method, _, rest = request.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method not in (b"GET", b"HEAD"):
            response = _Response("405 Method Not Allowed", b"only GET is served\n")
        elif path != b"/metrics":
            response = _Response("404 Not Found", b"the metrics are at /metrics\n")
        else:
            loop = asyncio.get_running_loop()
            text = await loop.run_in_executor(None, generate_latest, self._registry)
            response = _Response("200 OK", text, CONTENT_TYPE_LATEST)
        return response.encode(with_body=method != b"HEAD")
