"""What the system knows of a connection's client without a read."""

from __future__ import annotations

import socket

# TCP_INFO begins with the state of the connection: Linux, include/net/tcp_states.h.
_CLOSE, _CLOSE_WAIT = b"\x07", b"\x08"


def _state(connection: socket.socket) -> bytes:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)


def is_ended_by_client(connection: socket.socket) -> bool:
    """Whether the client sends nothing more: it has closed its half, or the connection.

    Which of the two is not known before something is sent to it. What has arrived before may not be
    read yet. A call takes some microseconds. Raises OSError.
    """
    return _state(connection) in (_CLOSE, _CLOSE_WAIT)


def is_reset(connection: socket.socket) -> bool:
    """Whether the connection is over: the client has reset it, or its system did because it is
    closed there and an answer came. Raises OSError."""
    return _state(connection) == _CLOSE
