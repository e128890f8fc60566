"""Accepts the connections of a listener, and leads the handshakes of one with TLS.

The loops' own servers do not do it:
- They make the protocol after the handshake: until then a client would be in no limit. Here the owner
  sees each connection when it is accepted, as Kafka's Acceptor does, and may refuse it before it
  costs a handshake.
- That of uvloop accepts one connection in a turn of the loop (libuv since 1.46). While many clients come, the
  kernel's queue overflows then, and each client left out tries again only after a second.

Event loop thread only.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from typing import Protocol

from isotherm.broker.net.connection import Connection
from isotherm.config.listener import Listener

logger = logging.getLogger(__name__)

# A TLS handshake that takes longer is cut.
HANDSHAKE_TIMEOUT_S = 10.0

# Accepted in one turn of the event loop: connections that exist have their turn, too. Further ones wait in
# the kernel's queue.
ACCEPTS_MAX = 2

# As in asyncio: what there is no room for waits in the backlog.
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_NO_ROOM_PAUSE_S = 1.0


class AcceptorOwner(Protocol):
    def accepted(self, accepted: socket.socket, acceptor: Acceptor, address: str) -> None:
        """Count a connection, and `lead` it in; or close it."""

    def entry_ended(self, connection: Connection) -> None:
        """Also after `Connection.connection_made`."""


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
        """`bound` is this acceptor's from now on. Without `context` there is no TLS."""
        self._owner = owner
        self._loop = loop
        self._bound = bound
        self._context = context
        self.listener = listener
        self._backlog = backlog
        self._pausing: asyncio.TimerHandle | None = None
        self._is_paused = False

    @property
    def bound(self) -> socket.socket:
        return self._bound

    def start_serving(self) -> None:
        """Raises OSError."""
        self._bound.setblocking(False)
        self._bound.listen(self._backlog)
        self.resume()

    def close(self) -> None:
        """Accept nothing more. Handshakes that have begun go on."""
        if self._bound.fileno() < 0:
            return
        self.pause()
        self._bound.close()

    def pause(self) -> None:
        """Accept nothing until `resume`: what comes waits in the kernel's queue."""
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
        for _ in range(ACCEPTS_MAX):
            if self._is_paused:
                return
            try:
                accepted, address = self._bound.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
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
            self._owner.accepted(accepted, self, str(address[0]))

    async def lead(self, accepted: socket.socket, connection: Connection) -> None:
        """Until `connection` is made, or its handshake has failed."""
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=self._context,
                ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S if self._context else None,
            )
        except OSError as error:
            logger.info(
                "connection failed at its entry client=%s listener=%s reason='%s'",
                connection.client_address,
                self.listener.name,
                getattr(error, "reason", None) or error,
            )
        finally:
            self._owner.entry_ended(connection)
