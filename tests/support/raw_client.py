"""A client connection that sends arbitrary bytes: requests, parts of them, anything else."""

from __future__ import annotations

import base64
import hashlib
import hmac
import select
import socket
import struct
from types import TracebackType
from typing import Any, Self

from isotherm.protocol.api_keys import ApiKey
from oracle.raw_requests import CLOSED, read_answer, request_frame

TIMEOUT_S = 300


class RawClient:
    """A client connection. Every wait ends after TIMEOUT_S with a TimeoutError."""

    def __init__(self, bootstrap_server: str, plain: socket.socket | None = None) -> None:
        host, _, port = bootstrap_server.rpartition(":")
        self._socket = plain or socket.create_connection((host, int(port)), TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def send_frame(self, payload: bytes) -> None:
        self.send(struct.pack(">i", len(payload)) + payload)

    def receive_frame(self) -> bytes | None:
        """The next frame; None if the connection was closed."""
        head = self._receive(4)
        return None if head is None else self._receive(*struct.unpack(">i", head))

    def ask(self, api: ApiKey, version: int, **fields: Any) -> Any:
        """The response, or CLOSED."""
        try:
            self.send_frame(request_frame(api, version, fields))
            payload = self.receive_frame()
        except ConnectionError:
            return CLOSED
        return CLOSED if payload is None else read_answer(api, version, payload)

    def is_closed(self) -> bool:
        """Waits until the broker closes the connection; False if it sends something."""
        try:
            return self._socket.recv(1) == b""
        except ConnectionError:
            return True

    def has_answer(self) -> bool:
        """Whether there is something to read, or the connection is closed, now."""
        return bool(select.select([self._socket], [], [], 0)[0])

    def log_in_plain(self, user: str, password: str) -> Any:
        """The response to SaslAuthenticate, or CLOSED."""
        self.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism="PLAIN")
        token = f"\0{user}\0{password}".encode()
        return self.ask(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=token.hex())

    def _receive(self, size: int) -> bytes | None:
        data = b""
        while len(data) < size:
            try:
                part = self._socket.recv(size - len(data))
            except ConnectionError:
                return None
            if not part:
                return None
            data += part
        return data


def scram_final(user: str, password: str, nonce: str, server_first: bytes) -> bytes:
    """The client's last message of SCRAM-SHA-256 (RFC 5802), after `n,,n=USER,r=NONCE`."""
    parts = dict(part.split("=", 1) for part in server_first.decode().split(","))
    salt, rounds = base64.b64decode(parts["s"]), int(parts["i"])
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), salt, rounds)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    without_proof = f"c=biws,r={parts['r']}"
    message = f"n={user},r={nonce},{server_first.decode()},{without_proof}".encode()
    signature = hmac.digest(hashlib.sha256(client_key).digest(), message, "sha256")
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()
