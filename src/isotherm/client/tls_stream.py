"""TLS on a blocking socket that its owner keeps.

`SSLContext.wrap_socket` takes the socket from its owner: another thread can no longer end its wait,
and a socket that is reset before the handshake stays open. Here the socket only carries the bytes.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import Protocol

_RECEIVE_SIZE = 256 * 1024


class Stream(Protocol):
    """The part of a connected socket that is used. It times out like the socket."""

    def sendall(self, data: bytes, /) -> None: ...

    def recv_into(self, buffer: memoryview, /) -> int: ...


class TlsStream:
    """Call `handshake` first. For one thread. Raises OSError; ssl.SSLError is a subclass.

    Each wait is bounded by the socket's timeout. One TLS record of 16 KiB may take several waits.
    """

    def __init__(self, connection: socket.socket, context: ssl.SSLContext, host: str) -> None:
        self._socket = connection
        self._received, self._to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._received, self._to_send, server_hostname=host)

    def handshake(self) -> None:
        has_ended = False
        while not has_ended:
            try:
                with contextlib.suppress(ssl.SSLWantReadError):
                    self._tls.do_handshake()
                    has_ended = True
            finally:
                # After an error this sends the alert with the reason.
                self._flush()
            if not has_ended:
                self._receive()

    def sendall(self, data: bytes, /) -> None:
        view = memoryview(data)
        while view:
            view = view[self._tls.write(view) :]
            self._flush()

    def recv_into(self, buffer: memoryview, /) -> int:
        """0 once the other side has ended the stream."""
        while True:
            try:
                return self._tls.read(len(buffer), buffer)  # type: ignore[return-value]
            # A read may leave something to send: in TLS 1.3 a request for new keys is answered.
            except ssl.SSLWantReadError:
                self._flush()
                self._receive()
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return 0

    def _flush(self) -> None:
        if self._to_send.pending:
            self._socket.sendall(self._to_send.read())

    def _receive(self) -> None:
        data = self._socket.recv(_RECEIVE_SIZE)
        if data:
            self._received.write(data)
        else:
            self._received.write_eof()


def receive(stream: Stream, size: int) -> bytes:
    """Receive `size` bytes, or fewer if the peer closes the connection."""
    data, received = bytearray(size), 0
    with memoryview(data) as view:
        while received < size and (count := stream.recv_into(view[received:])):
            received += count
    return bytes(data[:received])
