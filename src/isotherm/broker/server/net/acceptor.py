"""Accepts the connections of one listener and performs their TLS handshakes.

The servers of asyncio and uvloop are not used, for two reasons:
- They create the protocol after the handshake, so a client in its handshake would count in no
  limit. Here the owner sees each connection when it is accepted, as Kafka's Acceptor does, and may
  refuse it before it costs a handshake.
- The server of uvloop accepts one connection per iteration of the loop (libuv since 1.46). When
  many clients connect at once, the accept backlog overflows, and a client that finds it full
  retries only after a second.

Event loop thread only. Reasons: docs/decisions/0123.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from typing import Protocol

from isotherm.broker.server.net.connection import Connection
from isotherm.broker.server.net.tcp_state import is_ended_by_client
from isotherm.config.listener import Listener, SecurityProtocol

logger = logging.getLogger(__name__)

# A TLS handshake that takes longer is aborted.
HANDSHAKE_TIMEOUT_S = 60.0

# Accepts of a listener per iteration of the event loop, without TLS and with it: a connection costs
# 0.2 ms with a login, a handshake 0.9 ms more. The bound leaves time for established connections;
# the rest waits in the accept backlog.
ACCEPTS_MAX = 8
HANDSHAKES_MAX = 4

# Accepted connections of an iteration that are closed at once because their clients have gone. Each
# takes some 20 us. In a flood most connections of the backlog are of this kind.
GONE_MAX = 100

# Without a free file descriptor or memory the connection stays in the backlog, and accepting
# pauses. asyncio does the same: the socket stays readable, so the loop would spin on it.
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_NO_ROOM_PAUSE_S = 1.0


class AcceptorOwner(Protocol):
    def accepted(self, accepted: socket.socket, acceptor: Acceptor, address: str) -> None:
        """Count the connection and call `lead`, keep it for later, or close it."""

    def entry_ended(self, connection: Connection) -> None:
        """`lead` has ended, with or without a call of `Connection.connection_made`."""


class Acceptor:
    def __init__(
        self,
        owner: AcceptorOwner,
        loop: asyncio.AbstractEventLoop,
        bound: socket.socket,
        context: ssl.SSLContext | None,
        *,
        listener: Listener,
        backlog: int,
    ) -> None:
        """Take ownership of the socket `bound`. `context` is None for a listener without TLS."""
        self._owner = owner
        self._loop = loop
        self._bound = bound
        self._context = context
        self.listener = listener
        self._backlog = backlog
        self._pausing: asyncio.TimerHandle | None = None
        self._is_paused = False
        # Whether the last call left connections in the backlog.
        self._is_behind = False

    @property
    def bound(self) -> socket.socket:
        return self._bound

    def start_serving(self) -> None:
        """Raises OSError."""
        self._bound.setblocking(False)
        self._bound.listen(self._backlog)
        self.resume()

    def close(self) -> None:
        """Stop accepting and close the socket. Handshakes in progress continue."""
        if self._bound.fileno() < 0:
            return
        self.pause()
        self._bound.close()

    def pause(self) -> None:
        """Accept nothing until `resume`. New connections wait in the accept backlog."""
        self._is_paused = True
        if self._pausing is not None:
            self._pausing.cancel()
            self._pausing = None
        self._loop.remove_reader(self._bound.fileno())

    def resume(self) -> None:
        self._is_paused = False
        self._pausing = None
        self._loop.add_reader(self._bound.fileno(), self._accept)

    def _accept(self) -> None:
        accepts_left = ACCEPTS_MAX if self._context is None else HANDSHAKES_MAX
        gone_left = GONE_MAX
        # The owner may have paused this acceptor for the connection before.
        while accepts_left and gone_left and not self._is_paused:
            try:
                accepted, address = self._bound.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                self._is_behind = False
                return
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                logger.error(  # noqa: TRY400 - the number says it all
                    "connections wait to be accepted listener=%s reason='%s'",
                    self.listener.name,
                    error.strerror,
                )
                self._loop.remove_reader(self._bound.fileno())
                self._pausing = self._loop.call_later(_NO_ROOM_PAUSE_S, self.resume)
                return
            accepted.setblocking(False)
            if self._has_gone(accepted):
                accepted.close()
                gone_left -= 1
                continue
            accepts_left -= 1
            self._owner.accepted(accepted, self, str(address[0]))
        self._is_behind = True

    def _has_gone(self, accepted: socket.socket) -> bool:
        """Whether nothing can come of the connection: the client has closed it while it was in the
        backlog.

        It may have closed its half alone, and wait for the answers to what it has sent, which Kafka
        gives. Nothing tells before an answer is sent. So without TLS what has been sent is served
        all the same, and with acks=0 it needs no answer. While more come than are accepted, most of
        those that have not logged in have gone, and they are not served. A handshake needs the
        client's answers.
        """
        if not is_ended_by_client(accepted):
            return False
        protocol = self.listener.protocol
        is_served = protocol is SecurityProtocol.PLAINTEXT or (
            protocol is SecurityProtocol.SASL_PLAINTEXT and not self._is_behind
        )
        if not is_served:
            return True
        try:
            return not accepted.recv(1, socket.MSG_PEEK)
        except OSError:
            return True

    async def lead(self, accepted: socket.socket, connection: Connection) -> None:
        """Wait until `connection` is established or its handshake has failed."""
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S if self._context else None,
            )
        except OSError as error:
            logger.info(
                "connection failed while it was accepted client=%s listener=%s reason='%s'",
                connection.client_address,
                self.listener.name,
                getattr(error, "reason", None) or error,
            )
        finally:
            self._owner.entry_ended(connection)
