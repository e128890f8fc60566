"""SASL/PLAIN (RFC 4616): the client sends the password, which is compared with the listener's
users.

    [authorization id] NUL user NUL password

Source: Kafka PlainSaslServer, PlainServerCallbackHandler.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from isotherm.errors import SaslAuthenticationError


class PlainExchange:
    expires_ms = None

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = passwords
        self.user: str | None = None

    def respond(self, token: bytes) -> bytes:
        parts = token.decode("utf-8", "replace").split("\0")
        if len(parts) != 3:
            raise SaslAuthenticationError(
                f"Invalid SASL/PLAIN response: expected 3 tokens, got {min(len(parts), 4)}"
            )
        authorization_id, user, password = parts
        if not user:
            raise SaslAuthenticationError("Authentication failed: username not specified")
        if not password:
            raise SaslAuthenticationError("Authentication failed: password not specified")
        expected = self._passwords.get(user, "")
        is_right = hmac.compare_digest(expected.encode(), password.encode())
        if not is_right or user not in self._passwords:
            raise SaslAuthenticationError("Authentication failed: Invalid username or password")
        if authorization_id not in ("", user):
            raise SaslAuthenticationError(
                "Authentication failed: Client requested an authorization id that is different from"
                " username"
            )
        self.user = user
        return b""
