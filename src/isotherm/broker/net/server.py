"""The listeners, and the connections that they accept.

Order: `bind` (takes the ports, answers nothing), `serve`, `stop`. Binding comes first, so that a
port in use is detected before any log is loaded. Serving comes last. Event loop thread only.
"""

from __future__ import annotations

import asyncio
import collections
import logging
import os
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from isotherm.broker.authentication.tls import (
    KeyMaterial,
    ListenerTls,
    PrincipalMapper,
    listener_tls,
)
from isotherm.broker.metadata.endpoint import Endpoint
from isotherm.broker.net.acceptor import Acceptor
from isotherm.broker.net.connection import SCRATCH_SIZE, Answer, Connection, FrameHandler
from isotherm.broker.net.connection_quota import ConnectionQuota
from isotherm.broker.net.connection_rate import ConnectionRate
from isotherm.broker.net.request_memory import RequestMemory
from isotherm.clock import Clock
from isotherm.config.broker import BrokerConfig
from isotherm.config.listener import Address, Listener, SecurityProtocol
from isotherm.errors import ConfigError, SaslAuthenticationError

logger = logging.getLogger(__name__)

# Throttled connections that are kept open for a while: each takes a file descriptor.
THROTTLED_MAX = 1000

# How late an idle connection may be closed, as a share of connections.max.idle.ms.
IDLE_CHECKS_PER_LIMIT = 4


class Gate(FrameHandler, Protocol):
    """Handles the frames of one connection: those of a client that has authenticated are passed on."""

    @property
    def frame_size_max(self) -> int:
        """Of a client that has not authenticated yet."""


# Given what handles the requests of clients that have authenticated.
NewGate: TypeAlias = Callable[[FrameHandler], Gate]


class Server:
    """Owns every connection, and implements `connection.ConnectionOwner` and
    `acceptor.AcceptorOwner`. A connection counts from when it is accepted."""

    def __init__(self, config: BrokerConfig, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._config = config
        window_ms = config.quota_window_size_seconds * 1000
        window_count = config.quota_window_num
        self.connection_quota = ConnectionQuota(
            clock, window_ms=window_ms, window_count=window_count
        )
        self._rate = ConnectionRate(clock, window_ms=window_ms, window_count=window_count)
        layout = config.listener_layout
        # Its connections are in no rate.
        self._protected = layout.inter_broker if len(layout.brokers) > 1 else None
        self._loop = loop
        # By listener; several where its host has several addresses.
        self._acceptors: dict[str, list[Acceptor]] = {}
        # Accepted; their turn or their handshake is still to come.
        self._entering: dict[Connection, asyncio.Task[None]] = {}
        self._key_material: dict[str, KeyMaterial] = {}
        self._renewing = asyncio.Lock()
        self._is_serving = False
        self._is_stopping = False
        self._connections: dict[Connection, None] = {}
        self._throttled: set[_ThrottledSocket] = set()
        self._connections_of: collections.Counter[str] = collections.Counter()
        self._all_closed = asyncio.Event()
        self._idle_timer: asyncio.TimerHandle | None = None
        self.frame_handler: FrameHandler
        self._gates: Mapping[str, NewGate] = {}
        self._mappers: dict[str, PrincipalMapper] = {}
        self.memory = RequestMemory(config.queued_max_request_bytes, self._update_reading)
        self.scratch = memoryview(bytearray(SCRATCH_SIZE))
        self.frame_size_max = config.socket_request_max_bytes
        self.write_buffer_size_max = config.connection_write_buffer_max_bytes

    @property
    def connection_count(self) -> int:
        return len(self._connections) + len(self._entering)

    # ---- start and stop

    async def bind(self) -> tuple[Endpoint, ...]:
        """Bind the ports of the brokers' listeners; returns the advertised endpoints.

        Raises ConfigError with the listener whose address cannot be bound, in one line.
        """
        layout = self._config.listener_layout
        for listener in layout.controllers:
            logger.info(
                "listener is not opened, the controller is in this process listener=%s", listener
            )
        endpoints = []
        for listener in layout.brokers:
            self._acceptors[listener.name] = acceptors = await self._bind_listener(listener)
            bound_port = acceptors[0].bound.getsockname()[1]
            if listener.advertised is not None:
                endpoints.append(_endpoint(listener.name, listener.advertised, bound_port))
        return tuple(endpoints)

    async def _bind_listener(self, listener: Listener) -> list[Acceptor]:
        """Bind one listener. ConfigError if its key material cannot be used."""
        # Port 0 would get a different port on each address of a host name, so it uses one family.
        family = socket.AF_INET if listener.port == 0 and ":" not in listener.host else 0
        # Like Java, which binds one socket for both families to the IPv6 wildcard.
        host = None if listener.host in ("", "::") else listener.host
        tls = listener_tls(self._config, listener)
        if tls is not None:
            self._key_material[listener.name] = tls.material
            rules = self._config.security_of(listener.name).ssl_principal_mapping_rules
            if listener.protocol is SecurityProtocol.SSL:
                self._mappers[listener.name] = PrincipalMapper(rules)
        try:
            # It resolves the host, and binds all of its addresses or none.
            server = await self._loop.create_server(
                asyncio.Protocol,
                host=host,
                port=listener.port,
                family=family,
                reuse_address=True,
                start_serving=False,
            )
            context = None if tls is None else tls.context
            acceptors = [self._acceptor(each, listener, context) for each in server.sockets]
        except OSError as error:
            raise ConfigError(
                f"cannot listen key=listeners listener={listener} reason={error.strerror or error}"
            ) from None
        server.close()
        return acceptors

    def _acceptor(self, bound: Any, listener: Listener, context: ssl.SSLContext | None) -> Acceptor:
        """On the same port. Raises OSError."""
        return Acceptor(
            self,
            self._loop,
            socket.socket(fileno=os.dup(bound.fileno())),
            context,
            listener=listener,
            backlog=self._config.socket_listen_backlog_size,
        )

    async def serve(
        self, frame_handler: FrameHandler, gates: Mapping[str, NewGate] | None = None
    ) -> None:
        """Accept connections from now on. `gates` are those of listeners whose clients authenticate."""
        self.frame_handler = frame_handler
        self._gates = gates or {}
        self._is_serving = True
        for acceptor in self._open_acceptors():
            acceptor.start_serving()
        self._check_idle()

    async def stop(self, drain_timeout_s: float) -> None:
        """Accept no connections, answer the requests in progress, then close every connection.

        Connections that have not read their answers after `drain_timeout_s` are aborted.
        """
        self._is_stopping = True
        for acceptor in self._open_acceptors():
            acceptor.close()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        for throttled in tuple(self._throttled):
            throttled.abort()
        await self._end_entries()
        for connection in tuple(self._connections):
            connection.drain()
        if await self._wait_all_closed(drain_timeout_s):
            return
        logger.warning("connections cut at stop count=%d", len(self._connections))
        for connection in tuple(self._connections):
            connection.abort()
        await self._all_closed.wait()

    async def _end_entries(self) -> None:
        # A task that is cancelled before its first turn would not close its socket.
        turn = self._loop.create_future()
        self._loop.call_soon(turn.set_result, None)
        await turn
        entries = tuple(self._entering.values())
        for task in entries:
            task.cancel()
        await asyncio.gather(*entries, return_exceptions=True)

    async def _wait_all_closed(self, timeout_s: float) -> bool:
        if not self._connections:
            return True
        try:
            await asyncio.wait_for(self._all_closed.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    def update_config(self, config: BrokerConfig) -> None:
        """Apply the limits of connections to new ones."""
        self._config = config

    # ---- keys and certificates

    @property
    def has_keys(self) -> bool:
        """Whether a listener has TLS."""
        return bool(self._key_material)

    async def renew_keys(self) -> None:
        """Read the listeners' keys and certificates again. Where they differ, new connections get the new
        ones; those that exist go on. ConfigError, with all as it was, if one cannot be used.
        """
        async with self._renewing:
            changed = []
            for listener in self._config.listener_layout.brokers:
                if listener.name not in self._key_material:
                    continue
                tls = await self._loop.run_in_executor(None, listener_tls, self._config, listener)
                if tls is not None and tls.material != self._key_material[listener.name]:
                    changed.append((listener, tls))
            for listener, tls in changed:
                self._replace_acceptors(listener, tls)

    def _replace_acceptors(self, listener: Listener, tls: ListenerTls) -> None:
        """By others on the same sockets: what waits to be accepted is not lost, and nothing of the old
        context, such as a session that could be resumed, is left."""
        old = self._acceptors[listener.name]
        new: list[Acceptor] = []
        try:
            for each in old:
                new.append(self._acceptor(each.bound, listener, tls.context))  # noqa: PERF401 - closed if it fails
            if self._is_serving:
                for acceptor in new:
                    acceptor.start_serving()
        except OSError as error:
            for acceptor in new:
                acceptor.close()
            raise ConfigError(
                f"keys of a listener cannot be renewed listener={listener} reason='{error}'"
            ) from error
        if self._is_stopping:
            old = new
        else:
            self._acceptors[listener.name] = new
            self._key_material[listener.name] = tls.material
        for acceptor in old:
            acceptor.close()
        logger.info("keys and certificates are renewed listener=%s", listener.name)

    def _open_acceptors(self) -> list[Acceptor]:
        return [each for acceptors in self._acceptors.values() for each in acceptors]

    # ---- called by connections

    def entrance(self, connection: Connection) -> tuple[FrameHandler, int]:
        mapper = self._mappers.get(connection.listener_name)
        if mapper is not None:
            principal = mapper.principal(connection.certificate)
            if principal is None:
                return _NobodyGate(), 0
            connection.principal = principal
        new_gate = self._gates.get(connection.listener_name)
        if new_gate is None:
            return self.frame_handler, self.frame_size_max
        gate = new_gate(self.frame_handler)
        return gate, min(gate.frame_size_max, self.frame_size_max)

    def admit(self, connection: Connection) -> bool:
        if self._is_stopping:
            return False
        self._entering.pop(connection, None)
        self._connections[connection] = None  # it was counted when it was accepted
        self._all_closed.clear()
        return True

    def _entry(self, address: str, listener_name: str) -> _Entry:
        close_after_s = self._close_after_s(address)
        if close_after_s is not None:
            return _Entry(close_after_s, is_served=False)
        if listener_name == self._protected:
            return _Entry(0.0, is_served=True)
        wait_ms = self._rate.turn_in_ms(
            self._config.max_connection_creation_rate,
            waiting_max=self._config.socket_listen_backlog_size,
        )
        if wait_ms is None:
            _log_refusal(address, "max.connection.creation.rate")
            return _Entry(0.0, is_served=False)
        return _Entry(wait_ms / 1000, is_served=True)

    def _close_after_s(self, address: str) -> float | None:
        """After how many seconds a new connection must be closed; None if it is in no limit's way."""
        throttle_ms = self.connection_quota.record(address)
        if throttle_ms > 0:
            logger.info("connection throttled client=%s throttle_ms=%d", address, throttle_ms)
            return throttle_ms / 1000 if len(self._throttled) < THROTTLED_MAX else 0.0
        exceeded = None
        if self.connection_count >= self._config.max_connections:
            exceeded = "max.connections"
        elif self._connections_of[address] >= self._config.max_connections_per_ip:
            exceeded = "max.connections.per.ip"
        if exceeded is None:
            return None
        _log_refusal(address, exceeded)
        return 0.0

    def forget(self, connection: Connection) -> None:
        if self._connections.pop(connection, connection) is connection:
            return  # it was never admitted
        self._count_out(connection.client_address)
        if not self._connections:
            self._all_closed.set()

    def _count_out(self, address: str) -> None:
        self._connections_of[address] -= 1
        if not self._connections_of[address]:
            del self._connections_of[address]

    # ---- called by acceptors

    def accepted(self, accepted: socket.socket, acceptor: Acceptor, address: str) -> None:
        entry = self._entry(address, acceptor.listener.name)
        if entry.is_served and not self._is_stopping:
            connection = Connection(self, acceptor.listener, self._loop)
            connection.client_address = address
            self._connections_of[address] += 1
            self._entering[connection] = self._loop.create_task(
                acceptor.lead(accepted, connection, after_s=entry.after_s)
            )
        elif not entry.is_served and entry.after_s > 0:
            throttled = _ThrottledSocket(accepted, self._throttled)
            self._loop.call_later(entry.after_s, throttled.abort)
        else:
            accepted.close()

    def entry_ended(self, connection: Connection) -> None:
        if self._entering.pop(connection, None) is not None:
            self._count_out(connection.client_address)

    # ---- time and memory

    def _update_reading(self) -> None:
        for connection in self._connections:
            connection.update_reading()

    def _check_idle(self) -> None:
        idle_s_max = self._config.connections_max_idle_ms / 1000
        now = self._loop.time()
        for connection in tuple(self._connections):
            if now - connection.active_at > idle_s_max and not connection.is_busy:
                logger.info("idle connection closed client=%s", connection.client_address)
                connection.abort()
        self._idle_timer = self._loop.call_later(
            idle_s_max / IDLE_CHECKS_PER_LIMIT, self._check_idle
        )


class _Entry(NamedTuple):
    """After how many seconds a new connection is served, or closed."""

    after_s: float
    is_served: bool


class _ThrottledSocket:
    """One that is not let in. It is in `all_of_them` until it is closed."""

    def __init__(self, accepted: socket.socket, all_of_them: set[_ThrottledSocket]) -> None:
        self._accepted = accepted
        self._all = all_of_them
        self._all.add(self)

    def abort(self) -> None:
        self._all.discard(self)
        self._accepted.close()


class _NobodyGate:
    """Of a client whose certificate no rule makes a principal of."""

    def handle_frame(self, frame: memoryview, connection: Connection) -> Answer:
        raise SaslAuthenticationError("no rule makes a principal of the client's certificate")


def _log_refusal(address: str, key: str) -> None:
    logger.warning("connection refused, too many client=%s key=%s", address, key)


def _endpoint(name: str, advertised: Address, bound_port: int) -> Endpoint:
    return Endpoint(name, advertised.host or socket.gethostname(), advertised.port or bound_port)


def listener_texts(endpoints: Sequence[Endpoint]) -> str:
    """`NAME://host:port,...` for log lines."""
    return ",".join(f"{name}://{Address(host, port)}" for name, host, port in endpoints)
