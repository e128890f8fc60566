"""Connections of our own raw clients that log in with PLAIN, over TLS or without."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Mapping

from isotherm.protocol.api_keys import ApiKey
from oracle.raw_requests import receive_frame, request_frame

TIMEOUT_S = 60
LOGIN_ANSWERS = 2
ERROR_CODE = struct.Struct(">4xh")
"""The error code in each answer to a login, after the correlation id."""
_LOGIN_VERSION = 1


def connect(
    address: str, properties: Mapping[str, str], source_host: str | None = None
) -> socket.socket:
    """Open a connection and log in as librdkafka would with these properties.

    `source_host` is an address of this machine, from which the broker sees the client come.
    """
    host, _, port = address.rpartition(":")
    source = None if source_host is None else (source_host, 0)
    connection = socket.create_connection((host, int(port)), TIMEOUT_S, source)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    protocol = properties.get("security.protocol", "PLAINTEXT")
    if protocol.endswith("SSL"):
        context = ssl.create_default_context(cafile=properties["ssl.ca.location"])
        connection = context.wrap_socket(connection, server_hostname=host)
    if protocol.startswith("SASL"):
        _log_in(connection, properties["sasl.username"], properties["sasl.password"])
    return connection


def _log_in(connection: socket.socket, user: str, password: str) -> None:
    connection.sendall(login_requests(user, password))
    for _ in range(LOGIN_ANSWERS):
        (code,) = ERROR_CODE.unpack_from(receive_frame(connection))
        assert code == 0, f"the login failed error_code={code}"


def login_requests(user: str, password: str) -> bytes:
    """The two requests of a PLAIN login, as one payload."""
    token = f"\0{user}\0{password}".encode().hex()
    frames = (
        request_frame(ApiKey.SASL_HANDSHAKE, _LOGIN_VERSION, {"mechanism": "PLAIN"}),
        request_frame(ApiKey.SASL_AUTHENTICATE, _LOGIN_VERSION, {"auth_bytes": token}),
    )
    return b"".join(struct.pack(">i", len(frame)) + frame for frame in frames)
