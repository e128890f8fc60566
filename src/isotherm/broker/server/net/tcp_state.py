"""What the system knows of a connection's client without a read."""

from __future__ import annotations

import socket

# TCP_INFO begins with the state of the connection: Linux, include/net/tcp_states.h.
_CLOSE, _CLOSE_WAIT = b"\x07", b"\x08"


def is_ended_by_client(connection: socket.socket) -> bool:
    """Whether the client sends nothing more: it has closed its half, or the connection.

    What has arrived before may not be read yet. A call takes some microseconds. Raises OSError.
    """
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1) in (_CLOSE, _CLOSE_WAIT)
