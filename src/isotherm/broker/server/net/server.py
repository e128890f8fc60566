"""The broker's listeners and the connections that they accept.

The order of calls is `bind` (takes the ports, accepts nothing), `serve`, `stop`. Binding comes
first, so that a port in use is detected before any log is loaded. Event loop thread only, except
`update_config`.
"""

from __future__ import annotations

import asyncio
import collections
import heapq
import logging
import os
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from isotherm.broker.metadata.endpoint import Endpoint
from isotherm.broker.server.net.acceptor import Acceptor
from isotherm.broker.server.net.answer_memory import AnswerMemory
from isotherm.broker.server.net.certificate_principals import PrincipalMapper
from isotherm.broker.server.net.connection import (
    ALLOCATED_FRAME_SIZE_MAX,
    FRAME_SIZE_WITHOUT_MEMORY,
    SCRATCH_SIZE,
    SHARED_SIZE_MAX,
    Answer,
    Connection,
    Entrance,
    FrameHandler,
)
from isotherm.broker.server.net.connection_limits import ConnectionLimits
from isotherm.broker.server.net.connection_quota import ConnectionQuota
from isotherm.broker.server.net.frame_pool import FramePool
from isotherm.broker.server.net.loop_watch import LoopWatch
from isotherm.broker.server.net.memory_relief import MemoryRelief
from isotherm.broker.server.net.request_memory import NO_LIMIT, RequestMemory
from isotherm.broker.server.net.turns import Turns
from isotherm.broker.server.net.unauthenticated import Unauthenticated
from isotherm.clock import Clock
from isotherm.config.broker import BrokerConfig
from isotherm.config.listener import Address, Listener, SecurityProtocol
from isotherm.config.listener_tls import (
    KeyMaterial,
    ListenerTls,
    certificate_end,
    listener_tls,
)
from isotherm.errors import ConfigError, SaslAuthenticationError

logger = logging.getLogger(__name__)

# Maximum of throttled connections that stay open. Each takes a file descriptor; above it they are
# closed at once.
THROTTLED_MAX = 1000

# Idle checks per connections.max.idle.ms. So an idle connection is closed at most a quarter of it
# too late.
IDLE_CHECKS_PER_LIMIT = 4


class Gate(FrameHandler, Protocol):
    """Authenticates the client of one connection, then passes its frames on
    (docs/decisions/0115).
    """

    @property
    def frame_size_max(self) -> int:
        """The largest frame, in bytes, that a client may send before it has authenticated."""


# Makes a gate in front of the handler that serves authenticated clients.
NewGate: TypeAlias = Callable[[FrameHandler], Gate]


class Server:
    """Owns every connection; implements `connection.ConnectionOwner` and `acceptor.AcceptorOwner`.

    A connection that is not throttled and does not wait counts in the limits once it is accepted,
    before its TLS handshake.
    """

    def __init__(self, config: BrokerConfig, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._limits = ConnectionLimits(config, clock)
        self._loop = loop
        # By listener. A host with several addresses has an acceptor for each.
        self._acceptors: dict[str, list[Acceptor]] = {}
        # Accepted and counted connections whose handshake has not ended.
        self._entering: dict[Connection, asyncio.Task[None]] = {}
        # By listener: accepted connections that count in no limit of the number of connections yet.
        self._waiting: dict[str, _WaitingEntry] = {}
        self._key_material: dict[str, KeyMaterial] = {}
        self._renewing = asyncio.Lock()
        self._is_serving = False
        self._is_stopping = False
        self._connections: dict[Connection, None] = {}
        self._throttled: set[_ThrottledSocket] = set()
        self._all_closed = asyncio.Event()
        self._idle_timer: asyncio.TimerHandle | None = None
        self.frame_handler: FrameHandler
        self._gates: Mapping[str, NewGate] = {}
        self._mappers: dict[str, PrincipalMapper] = {}
        self.frame_size_max = config.socket_request_max_bytes
        self._relief: MemoryRelief[Connection] = MemoryRelief(
            loop, self._connections, self._end_stalled
        )
        queued_max = config.queued_max_request_bytes
        self.memory = RequestMemory(
            queued_max if queued_max > 0 else NO_LIMIT,
            self.frame_size_max,
            self._relief.changed,
            share=FRAME_SIZE_WITHOUT_MEMORY,
            shared_max=SHARED_SIZE_MAX,
        )
        self._login_memory = RequestMemory(
            config.queued_max_unauthenticated_request_bytes,
            0,
            self._relief.changed,
            share=FRAME_SIZE_WITHOUT_MEMORY,
        )
        self.answers: AnswerMemory[Connection] = AnswerMemory(
            config.queued_max_response_bytes, self._connections, loop.time, self._end_slow_readers
        )
        self.loop_watch = LoopWatch(loop)
        self.turns: Turns[Connection] = Turns(loop, clock)
        self._unauthenticated: Unauthenticated[Connection] = Unauthenticated(
            loop,
            count_max=config.max_connections_unauthenticated,
            timeout_s=config.connection_authentication_timeout_ms / 1000,
            end=self._end_entry,
        )
        self.scratch = memoryview(bytearray(SCRATCH_SIZE))
        self.frames = FramePool(ALLOCATED_FRAME_SIZE_MAX)
        self.write_buffer_size_max = config.connection_write_buffer_max_bytes

    @property
    def connection_quota(self) -> ConnectionQuota:
        return self._limits.quota

    @property
    def connection_count(self) -> int:
        return len(self._connections) + len(self._entering)

    # ---- start and stop

    async def bind(self) -> tuple[Endpoint, ...]:
        """Bind the ports of the brokers' listeners; returns the advertised endpoints.

        Raises ConfigError, which names the listener whose address cannot be bound.
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
        """Bind one listener.

        Raises ConfigError if its address or its key material cannot be used.
        """
        # With port 0 each address of a host name would get a different port, so only one family is
        # bound.
        family = socket.AF_INET if listener.port == 0 and ":" not in listener.host else 0
        # Java binds the IPv6 wildcard for both families; None makes asyncio bind all addresses.
        host = None if listener.host in ("", "::") else listener.host
        tls = listener_tls(self._config, listener)
        if tls is not None:
            self._warn_of_ended_certificate(listener, tls)
            self._key_material[listener.name] = tls.material
            rules = self._config.security_of(listener.name).ssl_principal_mapping_rules
            if listener.protocol is SecurityProtocol.SSL:
                self._mappers[listener.name] = PrincipalMapper(rules)
        try:
            # The loop's server is used only to resolve the host and to bind all of its addresses or
            # none. Acceptors take duplicates of its sockets.
            server = await self._loop.create_server(
                asyncio.Protocol,
                host=host,
                port=listener.port,
                family=family,
                reuse_address=True,
                start_serving=False,
            )
            context = None if tls is None else tls.context
            acceptors = [self._acceptor(socket_, listener, context) for socket_ in server.sockets]
        except OSError as error:
            raise ConfigError(
                f"cannot listen key=listeners listener={listener} reason={error.strerror or error}"
            ) from None
        server.close()
        return acceptors

    def _warn_of_ended_certificate(self, listener: Listener, tls: ListenerTls) -> None:
        """Log a warning: clients refuse the certificate, and each of them is a failed handshake
        here.
        """
        ended = certificate_end(tls.material, self._clock.now_ms())
        if ended is not None:
            logger.warning(
                "certificate of a listener has expired listener=%s ended=%s", listener, ended
            )

    def _acceptor(self, bound: Any, listener: Listener, context: ssl.SSLContext | None) -> Acceptor:
        """An acceptor on a duplicate of the socket `bound`. Raises OSError."""
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
        """Begin to accept connections.

        `gates` has an entry per listener whose clients authenticate.
        """
        self.frame_handler = frame_handler
        self._gates = gates or {}
        self._is_serving = True
        self.loop_watch.start()
        for acceptor in self._open_acceptors():
            acceptor.start_serving()
        self._check_idle()

    async def stop(self, drain_timeout_s: float) -> None:
        """Stop accepting, answer the requests in progress, then close every connection.

        Connections that are still open after `drain_timeout_s` are aborted.
        """
        # First: `accepted` and `admit` refuse what arrives during the waits below.
        self._is_stopping = True
        for acceptor in self._open_acceptors():
            acceptor.close()
        self.loop_watch.stop()
        self._relief.stop()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        for throttled in tuple(self._throttled):
            throttled.abort()
        for waiting in self._waiting.values():
            waiting.abort()
        self._waiting.clear()
        await self._end_entries()
        for connection in tuple(self._connections):
            connection.drain()
        if await self._wait_all_closed(drain_timeout_s):
            return
        logger.info("connections closed at stop count=%d", len(self._connections))
        for connection in tuple(self._connections):
            connection.abort()
        await self._all_closed.wait()

    async def _end_entries(self) -> None:
        # A task that is cancelled before it has started would not close its socket, so each is
        # given one loop iteration first.
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
        """Apply changed connection limits. Any thread."""
        self._config = config
        self._limits.update(config)
        self._loop.call_soon_threadsafe(self._apply_limits)

    def _apply_limits(self) -> None:
        self._close_excess()
        self._enter_waiting()

    # ---- keys and certificates

    @property
    def has_keys(self) -> bool:
        """Whether a listener has TLS."""
        return bool(self._key_material)

    async def renew_keys(self) -> None:
        """Read the listeners' keys and certificates again, and use changed ones for new
        connections.

        Established connections keep theirs. Raises ConfigError if one cannot be read or used; no
        listener has changed then.
        """
        async with self._renewing:
            # All are read before the first is replaced, so that an unreadable file changes nothing.
            changed = []
            for listener in self._config.listener_layout.brokers:
                if listener.name not in self._key_material:
                    continue
                tls = await self._loop.run_in_executor(None, listener_tls, self._config, listener)
                if tls is not None and tls.material != self._key_material[listener.name]:
                    changed.append((listener, tls))
            for listener, tls in changed:
                self._warn_of_ended_certificate(listener, tls)
                self._replace_acceptors(listener, tls)

    def _replace_acceptors(self, listener: Listener, tls: ListenerTls) -> None:
        """Replace the acceptors but keep their sockets, so that connections in the accept backlog
        are not lost. The new TLS context has no sessions of the old one that a client could resume.
        """
        old = self._acceptors[listener.name]
        new: list[Acceptor] = []
        try:
            for acceptor in old:
                new.append(self._acceptor(acceptor.bound, listener, tls.context))  # noqa: PERF401 - closed if it fails
            if self._is_serving:
                for acceptor in new:
                    acceptor.start_serving()
        except OSError as error:
            for acceptor in new:
                acceptor.close()
            raise ConfigError(
                f"keys of a listener cannot be renewed listener={listener} reason='{error}'"
            ) from error
        # A stop began while the keys were read: the new acceptors must not stay open.
        if self._is_stopping:
            old = new
        else:
            self._acceptors[listener.name] = new
            if listener.name in self._waiting:
                for acceptor in new:
                    acceptor.pause()
            self._key_material[listener.name] = tls.material
        for acceptor in old:
            acceptor.close()
        logger.info("keys and certificates are renewed listener=%s", listener.name)

    def _open_acceptors(self) -> list[Acceptor]:
        return [acceptor for acceptors in self._acceptors.values() for acceptor in acceptors]

    # ---- called by connections

    def entrance(self, connection: Connection) -> Entrance:
        mapper = self._mappers.get(connection.listener_name)
        if mapper is not None:
            principal = mapper.principal(connection.certificate)
            if principal is None:
                return Entrance(_NobodyGate(), 0, self._login_memory)
            connection.principal = principal
        new_gate = self._gates.get(connection.listener_name)
        if new_gate is None:
            self._unauthenticated.remove(connection)
            return Entrance(self.frame_handler, self.frame_size_max, self.memory)
        gate = new_gate(self.frame_handler)
        size_max = min(gate.frame_size_max, self.frame_size_max)
        return Entrance(gate, size_max, self._login_memory)

    def authenticated(self, connection: Connection) -> None:
        self._unauthenticated.remove(connection)

    def admit(self, connection: Connection) -> bool:
        if self._is_stopping:
            return False
        self._entering.pop(connection, None)
        self._connections[connection] = None  # it was counted when it was accepted
        self._all_closed.clear()
        return True

    def forget(self, connection: Connection) -> None:
        if self._connections.pop(connection, connection) is connection:
            return  # it was never admitted
        self._count_out(connection)
        if not self._connections:
            self._all_closed.set()

    def _count_out(self, connection: Connection) -> None:
        self._unauthenticated.remove(connection)
        self._limits.leave(connection.listener_name, connection.client_address)
        self._enter_waiting()

    # ---- called by acceptors

    def accepted(self, accepted: socket.socket, acceptor: Acceptor, address: str) -> None:
        listener = acceptor.listener.name
        if self._is_stopping:
            accepted.close()
            return
        # Before the wait, in Kafka after it: an address above its quota must not
        # keep others from their turn.
        throttle_ms = self._limits.throttle_ms(address)
        if throttle_ms > 0:
            self._close_later(accepted, throttle_ms / 1000)
            return
        waiting = self._waiting.get(listener)
        if waiting is not None:
            waiting.later.append((accepted, address))
            return
        turn_in_ms = self._limits.turn_in_ms(listener)
        if turn_in_ms == 0 and self._limits.has_room(listener):
            self._enter(accepted, acceptor, address)
            return
        self._waiting[listener] = _WaitingEntry(accepted, address)
        self._begin_wait(listener, turn_in_ms)
        # As in Kafka, the listener accepts nothing more until this connection has been admitted.
        for paused in self._acceptors[listener]:
            paused.pause()

    def _enter(self, accepted: socket.socket, acceptor: Acceptor, address: str) -> None:
        if self._limits.has_too_many(address):
            accepted.close()
            return
        connection = Connection(self, acceptor.listener, self._loop)
        connection.client_address = address
        self._limits.enter(acceptor.listener.name, address)
        self._entering[connection] = self._loop.create_task(acceptor.lead(accepted, connection))
        if acceptor.listener.protocol is not SecurityProtocol.PLAINTEXT:
            self._unauthenticated.add(connection)
        if self._limits.excess:
            self._close_excess()

    def _close_later(self, accepted: socket.socket, after_s: float) -> None:
        if len(self._throttled) >= THROTTLED_MAX:
            accepted.close()
            return
        throttled = _ThrottledSocket(accepted, self._throttled)
        self._loop.call_later(after_s, throttled.abort)

    def _close_excess(self) -> None:
        """Close the least recently used connections of unprotected listeners, as Kafka does.

        This makes room for brokers, and applies a lowered max.connections at once.
        """
        others = (
            connection
            for connection in self._connections
            if not self._limits.is_protected(connection.listener_name)
        )
        # An aborted connection is counted out in a later loop iteration. A call before that
        # finds the same ones again.
        for connection in heapq.nsmallest(
            self._limits.excess, others, key=lambda connection: connection.active_at
        ):
            logger.info(
                "connection closed to make room for others client=%s listener=%s"
                " key=max.connections",
                connection.client_address,
                connection.listener_name,
            )
            connection.abort()

    def entry_ended(self, connection: Connection) -> None:
        if self._entering.pop(connection, None) is not None:
            self._count_out(connection)

    # ---- connections that wait for admission

    def _begin_wait(self, listener: str, turn_in_ms: int) -> None:
        waiting = self._waiting[listener]
        waiting.timer = (
            self._loop.call_later(turn_in_ms / 1000, self._end_wait, listener)
            if turn_in_ms
            else None
        )

    def _end_wait(self, listener: str) -> None:
        self._waiting[listener].timer = None
        self._enter_waiting()

    def _enter_waiting(self) -> None:
        """Admit waiting connections of each listener whose delay is over while there is room."""
        for listener in tuple(self._waiting):
            while self._is_first_to_enter(listener):
                waiting = self._waiting[listener]
                # Any acceptor of the listener will do: they differ in their address, and a
                # renewal replaces all of them.
                self._enter(waiting.accepted, self._acceptors[listener][0], waiting.address)
                if not waiting.later:
                    del self._waiting[listener]
                    for acceptor in self._acceptors[listener]:
                        acceptor.resume()
                    break
                waiting.accepted, waiting.address = waiting.later.popleft()
                # Counted in the rates only now, one after the other, as
                # Kafka's acceptor thread does.
                self._begin_wait(listener, self._limits.turn_in_ms(listener))

    def _is_first_to_enter(self, listener: str) -> bool:
        return (
            not self._is_stopping
            and self._waiting[listener].timer is None
            and self._limits.has_room(listener)
        )

    # ---- time and memory

    def _end_stalled(self, connections: Sequence[Connection]) -> None:
        self._end(connections, "incomplete requests hold memory that other connections need")

    def _end_slow_readers(self, connections: Sequence[Connection]) -> None:
        self._end(connections, "unread responses hold memory that other connections need")

    def _end(self, connections: Sequence[Connection], reason: str) -> None:
        if connections:
            logger.warning(
                "connections closed count=%d reason='%s' first_client=%s first_user=%s",
                len(connections),
                reason,
                connections[0].client_address,
                connections[0].principal.name,
            )
        for connection in connections:
            connection.abort()

    def _end_entry(self, connection: Connection, reason: str) -> None:
        """End a connection whose client has not logged in."""
        logger.info(
            "connection closed before its login client=%s listener=%s reason='%s'",
            connection.client_address,
            connection.listener_name,
            reason,
        )
        entering = self._entering.get(connection)
        if entering is None:
            connection.abort()
        else:
            # A task that is cancelled before it has started would not close its socket.
            self._loop.call_soon(entering.cancel)

    def _check_idle(self) -> None:
        idle_s_max = self._config.connections_max_idle_ms / 1000
        if idle_s_max < 0:
            return
        now = self._loop.time()
        for connection in tuple(self._connections):
            if now - connection.active_at > idle_s_max and not connection.is_busy:
                logger.info("idle connection closed client=%s", connection.client_address)
                connection.abort()
        self._idle_timer = self._loop.call_later(
            idle_s_max / IDLE_CHECKS_PER_LIMIT, self._check_idle
        )


class _WaitingEntry:
    """The connection that a listener admits next; the listener accepts no other until then.

    It is admitted once `timer` has run out and the limits have room. `later` are connections that
    other acceptors of the listener accepted before they were paused.
    """

    def __init__(self, accepted: socket.socket, address: str) -> None:
        self.accepted = accepted
        self.address = address
        self.timer: asyncio.TimerHandle | None = None
        self.later: collections.deque[tuple[socket.socket, str]] = collections.deque()

    def abort(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        for accepted, _ in ((self.accepted, self.address), *self.later):
            accepted.close()


class _ThrottledSocket:
    """A refused socket that stays open for the throttle time, as in Kafka, so that the client does
    not reconnect at once. It is in `all_of_them` until it is closed."""

    def __init__(self, accepted: socket.socket, all_of_them: set[_ThrottledSocket]) -> None:
        self._accepted = accepted
        self._all = all_of_them
        self._all.add(self)

    def abort(self) -> None:
        self._all.discard(self)
        self._accepted.close()


class _NobodyGate:
    """Rejects every frame of a client whose certificate matches no rule of
    ssl.principal.mapping.rules.
    """

    def handle_frame(self, frame: memoryview, connection: Connection) -> Answer:
        raise SaslAuthenticationError("no rule maps the client's certificate to a principal")


def _endpoint(name: str, advertised: Address, bound_port: int) -> Endpoint:
    return Endpoint(name, advertised.host or socket.gethostname(), advertised.port or bound_port)


def listener_texts(endpoints: Sequence[Endpoint]) -> str:
    """Format endpoints as `NAME://host:port,...` for log lines."""
    return ",".join(f"{name}://{Address(host, port)}" for name, host, port in endpoints)
