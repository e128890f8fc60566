"""SASL/GSSAPI (RFC 4752): the client presents a Kerberos ticket.

    client   token ...           until both sides have the context
    server   token ...
    server   wrapped: 1 (no security layer), 0 (no buffer for one)
    client   wrapped: 1, three bytes, [authorization id]

A library provides the context; see `kerberos_listeners`. As in Kafka, TLS protects the records, not
a SASL security layer. Source: Kafka SaslServerAuthenticator, SaslServerCallbackHandler; Java
GssKrb5Server.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from isotherm.errors import SaslAuthenticationError

GSSAPI = "GSSAPI"

_NO_LAYER = 1
_OFFER = bytes((_NO_LAYER, 0, 0, 0))
_CHOICE_SIZE = 4


class SecurityContextError(Exception):
    """The library's reason for refusing a token. It is for the log, not for the client."""


class SecurityContext(Protocol):
    """The server's side of a GSS-API context. Its methods raise SecurityContextError."""

    def is_complete(self) -> bool: ...
    @property
    def principal(self) -> str:
        """The client's principal, once the context is complete."""

    def step(self, token: bytes) -> bytes:
        """The next token for the client, which may be empty."""

    def wrap(self, message: bytes) -> bytes: ...
    def unwrap(self, token: bytes) -> bytes: ...


class GssapiExchange:
    """A step costs a decryption and an entry in the library's replay cache file."""

    expires_ms = None

    def __init__(
        self,
        context: SecurityContext,
        user_of: Callable[[str], str | None],
        on_refusal: Callable[[str], None],
    ) -> None:
        """`user_of` returns the user of a principal, or None.

        `on_refusal` gets the reason of a refusal.
        """
        self._context = context
        self._user_of = user_of
        self._on_refusal = on_refusal
        self._is_offered = False
        self.user: str | None = None

    def respond(self, token: bytes) -> bytes:
        try:
            if not self._context.is_complete():
                answer = self._context.step(token)
                return answer if answer or not self._context.is_complete() else self._offer()
            if not self._is_offered:
                return self._offer()
            self._choose(self._context.unwrap(token))
        except SecurityContextError as error:
            raise self._refused(str(error)) from error
        return b""

    def _offer(self) -> bytes:
        self._is_offered = True
        return self._context.wrap(_OFFER)

    def _choose(self, choice: bytes) -> None:
        if len(choice) < _CHOICE_SIZE or choice[0] != _NO_LAYER:
            raise self._refused("the client asks for a security layer")
        principal = self._context.principal
        user = self._user_of(principal)
        if user is None:
            raise self._refused(f"no rule maps the principal to a user principal={principal}")
        # As in Kafka the authorization id is ignored; only the principal counts.
        self.user = user

    def _refused(self, reason: str) -> SaslAuthenticationError:
        self._on_refusal(reason)
        return SaslAuthenticationError(
            "Authentication failed during authentication due to invalid credentials with SASL"
            f" mechanism {GSSAPI}"
        )
