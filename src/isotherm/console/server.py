"""The console's HTTP server: uvicorn, with timeouts for idle connections.

There are at most CONNECTIONS_MAX connections, and uvicorn alone would wait for a request without a
limit. So a connection without a request in progress has REQUEST_TIMEOUT_S to send a whole request,
and a client that does not read its answer is disconnected after READ_TIMEOUT_S. Otherwise
CONNECTIONS_MAX silent connections would block all other clients.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import TYPE_CHECKING

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from isotherm.errors import ConfigError

if TYPE_CHECKING:
    from starlette.applications import Starlette

CONNECTIONS_MAX = 100
REQUEST_TIMEOUT_S = 60.0
READ_TIMEOUT_S = 30.0
SHUTDOWN_TIMEOUT_S = 2


class ConsoleProtocol(H11Protocol):
    request_timeout_s = REQUEST_TIMEOUT_S
    read_timeout_s = READ_TIMEOUT_S

    _request_timer: asyncio.TimerHandle | None = None
    _read_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch_request()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_request_timer()
        self._end_read_timer()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._read_timer is None:
            self._read_timer = self.loop.call_later(self.read_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        self._end_read_timer()
        super().resume_writing()

    def _watch_request(self) -> None:
        """Start the deadline of the next request, if none runs.

        Further pieces of a request do not move it.
        """
        if self._has_request():
            self._end_request_timer()
        elif self._request_timer is None:
            self._request_timer = self.loop.call_later(self.request_timeout_s, self._give_up)

    def _has_request(self) -> bool:
        # None before the first one, though its annotation does not say so.
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def _give_up(self) -> None:
        self._request_timer = None
        if not self._has_request():
            self.transport.abort()

    def _end_request_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    def _end_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None


def check_address_is_free(host: str, port: int) -> None:
    """Raises ConfigError if another server listens at the address. Called before the address of the
    pages is printed, or if the address is none of this machine. Any other fault of it is found by
    `serve`."""
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        ):
            with socket.socket(family, kind, protocol) as bound:
                # As uvicorn's own: a server that ended a moment ago is in nobody's way.
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                bound.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise _not_free(host, port, f" reason={error.strerror!r}") from None
        if error.errno == errno.EADDRNOTAVAIL or isinstance(error, socket.gaierror):
            raise ConfigError(
                f"the console cannot listen there host={host} reason={error.strerror!r}"
                " hint='--host with an address of this machine'"
            ) from None
        if error.errno == errno.EACCES:
            raise _not_free(host, port, f" reason={error.strerror!r}") from None


def free_port(host: str) -> int:
    """A port of the address that no server has now. 0 if there is none: `serve` finds the fault."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, protocol) as bound:
            bound.bind(address)
            return int(bound.getsockname()[1])
    except OSError:
        return 0


def _not_free(host: str, port: int, reason: str = "") -> ConfigError:
    text = f"the console cannot listen there host={host} port={port}{reason}"
    return ConfigError(f"{text} hint='--port with another one'")


def serve(
    app: Starlette, host: str, port: int, certificate: str | None = None, key: str | None = None
) -> None:
    """Serve until Ctrl+C. Raises ConfigError if it cannot listen at the address."""
    try:
        uvicorn.run(
            app,
            host=host,
            port=port,
            http=ConsoleProtocol,
            log_level="warning",
            server_header=False,
            limit_concurrency=CONNECTIONS_MAX,
            # A live tail would go on: its page begins anew.
            timeout_graceful_shutdown=SHUTDOWN_TIMEOUT_S,
            ssl_certfile=certificate,
            ssl_keyfile=key,
        )
    except SystemExit:
        # uvicorn has printed the reason. It would exit with 3, which means damage here.
        raise _not_free(host, port) from None
