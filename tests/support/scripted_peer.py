"""Another node of the cluster, with the test's answers, over real loopback sockets."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from typing import Any

from isotherm.client.node_address import NodeAddress
from isotherm.protocol.api_keys import request_class, response_class
from isotherm.protocol.codec import decoder, encoder
from isotherm.protocol.entities import blank_entity
from isotherm.protocol.framing import REQUEST_KIND, read_request_frame, version_codec


class ScriptedPeer:
    """A node with scripted answers.

    `answer` gets the entity of one request at a time. It returns fields of the response (the others
    are blank), or None to close the connection. `stop` ends all threads.
    """

    def __init__(self, answer: Callable[[Any], Mapping[str, Any] | None]) -> None:
        self.requests: list[Any] = []
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = NodeAddress(*self._listener.getsockname())
        self._connections: list[socket.socket] = []
        self._one_at_a_time = threading.Lock()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def stop(self) -> None:
        """Accept no more connections, and close the open ones."""
        for each in (self._listener, *self._connections):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._connections.append(connection)
                thread = threading.Thread(target=self._serve, args=(connection,))
                self._threads.append(thread)
                thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError), connection.makefile("rb") as stream:
            while head := stream.read(4):
                frame = memoryview(stream.read(*struct.unpack(">i", head)))
                key, version = REQUEST_KIND.unpack_from(frame)
                codec = version_codec(key, version)
                header, body = read_request_frame(frame, is_flexible=codec.is_flexible)
                request = _decoded(key, version, body)
                with self._one_at_a_time:
                    self.requests.append(request)
                    fields = self._answer(request)
                if fields is None:
                    return
                response = blank_entity(response_class(key, version), fields)
                connection.sendall(_encoded(header.correlation_id, response))


def _decoded(key: int, version: int, body: memoryview) -> Any:
    """Decode a request by kio's class, also a Fetch."""
    return decoder(request_class(key, version))(body, 0)[0]


def _encoded(correlation_id: int, response: Any) -> bytes:
    out = bytearray(struct.pack(">ii", 0, correlation_id))
    if type(response).__flexible__:
        out.append(0)
    encoder(type(response))(response, out)
    struct.pack_into(">i", out, 0, len(out) - 4)
    return bytes(out)
