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
        """The wall-clock time at which the user's session ends; None if it does not end."""

    def respond(self, token: bytes) -> bytes:
        """The answer to the client's next token.

        Raises SaslAuthenticationError, which ends the exchange. Its message goes to the client,
        which is not authenticated, so it must not reveal anything.
        """
