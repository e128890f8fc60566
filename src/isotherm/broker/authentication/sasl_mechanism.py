"""The server's side of one SASL exchange, as a state machine without I/O."""

from __future__ import annotations

from typing import Protocol

from isotherm.types import TimestampMs


class SaslExchange(Protocol):
    @property
    def user(self) -> str | None:
        """The user, once the exchange has succeeded."""

    @property
    def expires_ms(self) -> TimestampMs | None:
        """When the session of that user ends, on the wall clock; None for one that does not."""

    def respond(self, token: bytes) -> bytes:
        """The answer to the client's next token. Raises SaslAuthenticationError; its message is for the
        client, which may be anybody, and the exchange is over."""
