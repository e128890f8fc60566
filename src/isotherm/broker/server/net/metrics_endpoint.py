"""Serves the broker's metrics to Prometheus: `GET /metrics`, one request per connection. An answer
to `GET /healthz` says that the event loop, on which clients are served, goes on.

    prometheus.listener=9404                     this machine alone, over HTTP
    prometheus.listener=https://0.0.0.0:9404     every address, with the keys of a listener
                                                 PROMETHEUS

With prometheus.credentials.file clients authenticate (HTTP basic). Without it, and without
ssl.client.auth=required, any client that can connect may read the metrics.

A browser can connect for any website whose name points to this address (DNS rebinding). It sends
that name as Host, so a request is answered only for an IP address, for a name of this broker, and
for those of prometheus.allowed.hosts.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import re
import socket
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from isotherm.clock import Clock
from isotherm.config.broker import BrokerConfig
from isotherm.config.http_credentials import HttpLogins, LoginResult, read_credentials
from isotherm.config.listener import Listener, SecurityProtocol
from isotherm.config.listener_tls import KeyMaterial, ListenerTls, listener_tls
from isotherm.errors import ConfigError

logger = logging.getLogger(__name__)

CONNECTIONS_MAX = 16
REQUEST_SIZE_MAX = 8192
REQUEST_TIMEOUT_S = 30.0

# The endpoint reads its TLS settings from listener.name.prometheus.ssl.*.
LISTENER_NAME = "PROMETHEUS"

_ADDRESS = re.compile(
    r"(?:(?P<scheme>https?)://)?(?:\[?(?P<host>[^\[\]/]*)\]?:)?(?P<port>\d{1,5})/?"
)
_AUTHORIZATION = re.compile(rb"\r\nauthorization: *basic +([A-Za-z0-9+/=]+) *\r\n", re.IGNORECASE)
# Whatever may stand before the colon, as another server could read it. The request ends with an
# empty line.
_HOST = re.compile(rb"\r\nhost[ \t]*:[ \t]*([^\r\n]*?)[ \t]*(?=\r\n)", re.IGNORECASE)
_HOST_AND_PORT = re.compile(r"(?:\[(?P<ipv6>[^\[\]]*)\]|(?P<host>[^:\[\]/@]+?)\.?)(?::\d{0,5})?")
_ANY_HOST = "*"
_CHALLENGE = 'WWW-Authenticate: Basic realm="metrics", charset="UTF-8"\r\n'


class _Response(NamedTuple):
    status: str
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: str = ""

    def encode(self, *, with_body: bool) -> bytes:
        head = (
            f"HTTP/1.1 {self.status}\r\nContent-Type: {self.content_type}\r\n"
            f"Content-Length: {len(self.body)}\r\n{self.headers}Connection: close\r\n\r\n"
        )
        return head.encode() + (self.body if with_body else b"")


class _Address(NamedTuple):
    with_tls: bool
    host: str
    port: int


class MetricsEndpoint:
    """Event loop thread only.

    A thread of its own generates the text, so that requests do not wait for it, and a disk whose
    size cannot be read holds neither them nor the loop's executor.
    """

    def __init__(self, registry: CollectorRegistry, config: BrokerConfig, clock: Clock) -> None:
        """Raises ConfigError if the address is malformed or the credentials file cannot be read."""
        self._registry = registry
        self._config = config
        assert config.prometheus_listener is not None, "there is an endpoint"
        self._address = _parse_address(config.prometheus_listener)
        self._credentials = _read_credentials(config)
        self._logins = HttpLogins(clock)
        self._host_names = _host_names(config, self._address)
        self._key_material: KeyMaterial | None = None
        # More than one after a renewal, if the host has several addresses: `renew` opens one per
        # socket.
        self._servers: list[asyncio.Server] = []
        self._connection_count = 0
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="isotherm-metrics")
        self.port = 0

    async def start(self) -> None:
        """Raises ConfigError if the address cannot be bound or the TLS key cannot be used."""
        tls = self._tls()
        try:
            server = await self._open(tls, host=self._address.host, port=self._address.port)
        except OSError as error:
            value = self._config.prometheus_listener
            raise ConfigError(f"cannot listen key=prometheus.listener value={value}") from error
        self._key_material = None if tls is None else tls.material
        self._servers = [server]
        self.port = server.sockets[0].getsockname()[1]
        if self._credentials is not None and not self._address.with_tls:
            logger.warning("passwords of metrics clients are sent in clear text")

    async def renew(self, config: BrokerConfig) -> None:
        """Read credentials, keys and certificates again, and take over the names of `config`.

        Raises ConfigError if they cannot be used; the earlier ones then stay in use.
        """
        self._config = config
        credentials = _read_credentials(config)
        tls = self._tls()
        if tls is not None and tls.material != self._key_material:
            old, new = self._servers, []
            try:
                # The new servers listen on duplicates of the same sockets, so no scrape is refused.
                for bound in (sock for server in old for sock in server.sockets):
                    duplicate = socket.socket(fileno=os.dup(bound.fileno()))
                    new.append(await self._open(tls, sock=duplicate))
            except OSError as error:
                for server in new:
                    server.close()
                raise ConfigError(
                    f"keys cannot be renewed key=prometheus.listener reason='{error}'"
                ) from error
            self._servers, self._key_material = new, tls.material
            for server in old:
                server.close()
        self._credentials = credentials
        self._host_names = _host_names(config, self._address)

    async def stop(self) -> None:
        for server in self._servers:
            server.close()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _tls(self) -> ListenerTls | None:
        protocol = SecurityProtocol.SSL if self._address.with_tls else SecurityProtocol.PLAINTEXT
        host, port = self._address.host, self._address.port
        return listener_tls(self._config, Listener(LISTENER_NAME, protocol, host, port, None))

    async def _open(self, tls: ListenerTls | None, **place: Any) -> asyncio.Server:
        if tls is not None:
            place |= {"ssl": tls.context, "ssl_handshake_timeout": REQUEST_TIMEOUT_S}
        return await asyncio.start_server(self._serve, limit=REQUEST_SIZE_MAX, **place)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connection_count += 1
        try:
            if self._connection_count <= CONNECTIONS_MAX:
                async with asyncio.timeout(REQUEST_TIMEOUT_S):
                    request = await reader.readuntil(b"\r\n\r\n")
                    address = (writer.get_extra_info("peername") or ("",))[0]
                    writer.write(await self._answer(request, address))
                    await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError, OSError):
            logger.info("metrics request is not HTTP, or its response was not read")
            # A close would wait, and keep the response in memory, until the client reads it.
            writer.transport.abort()
        finally:
            self._connection_count -= 1
            writer.close()

    async def _answer(self, request: bytes, client_address: str) -> bytes:
        method, _, rest = request.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if not _is_own_host(request, self._host_names):
            # Before the login: a website must not even learn that there is one.
            text = b"no host of this broker: use an IP address, or set prometheus.allowed.hosts\n"
            response = _Response("421 Misdirected Request", text)
        elif not (login := self._login(request, client_address)).is_granted:
            response = _login_refusal(login)
        elif method not in (b"GET", b"HEAD"):
            response = _Response("405 Method Not Allowed", b"only GET is served\n")
        elif path == b"/healthz":
            response = _Response("200 OK", b"ok\n")
        elif path != b"/metrics":
            response = _Response("404 Not Found", b"the metrics are at /metrics\n")
        else:
            loop = asyncio.get_running_loop()
            text = await loop.run_in_executor(self._executor, generate_latest, self._registry)
            response = _Response("200 OK", text, CONTENT_TYPE_LATEST)
        return response.encode(with_body=method != b"HEAD")

    def _login(self, request: bytes, client_address: str) -> LoginResult:
        if self._credentials is None:
            return LoginResult(is_granted=True)
        header = _AUTHORIZATION.search(request)
        if header is None:
            return LoginResult(is_granted=False)
        return self._logins.attempt(header[1], self._credentials, client_address)


def _login_refusal(login: LoginResult) -> _Response:
    if login.wait_s == 0:
        return _Response("401 Unauthorized", b"credentials are needed\n", headers=_CHALLENGE)
    text = f"too many failed logins: try again in {login.wait_s} s\n".encode()
    headers = f"Retry-After: {login.wait_s}\r\n"
    return _Response("429 Too Many Requests", text, headers=headers)


def _host_names(config: BrokerConfig, address: _Address) -> frozenset[str]:
    """The names of this broker: that of the listener, of the machine, those that clients get, and
    the configured ones."""
    advertised = [broker.advertised for broker in config.listener_layout.brokers]
    names = [
        "localhost",
        address.host,
        socket.gethostname(),
        *(address.host for address in advertised if address is not None),
        *config.prometheus_allowed_hosts,
    ]
    return frozenset(name.lower().removesuffix(".") for name in names if name)


def _is_own_host(request: bytes, names: frozenset[str]) -> bool:
    """Whether a request is for an address or a name of this broker. Browsers always send a Host;
    other clients of HTTP/1.0 need not."""
    hosts = _HOST.findall(request)
    if _ANY_HOST in names or not hosts:
        return True
    address = _HOST_AND_PORT.fullmatch(hosts[0].decode("latin-1"))
    if len(hosts) > 1 or address is None:
        return False
    host = (address["ipv6"] or address["host"]).lower()
    return host in names or _is_ip_address(host)


def _is_ip_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _parse_address(text: str) -> _Address:
    address = _ADDRESS.fullmatch(text)
    if address is None:
        raise ConfigError(
            f"cannot listen: expected PORT, HOST:PORT or https://HOST:PORT key=prometheus.listener"
            f" value={text}"
        )
    return _Address(
        address["scheme"] == "https", address["host"] or "localhost", int(address["port"])
    )


def _read_credentials(config: BrokerConfig) -> Mapping[bytes, bytes] | None:
    """None if clients do not authenticate."""
    file = config.prometheus_credentials_file
    return None if file is None else read_credentials(file, "prometheus.credentials.file")
