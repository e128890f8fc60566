"""SASL/OAUTHBEARER (RFC 7628): the client presents a token that an identity provider has signed.

    client   n,[a=authorization id],^Aauth=Bearer TOKEN^A[key=value^A...]^A
    server   nothing, or {"status":"invalid_token"}; the client answers ^A and is then refused

Source: Kafka OAuthBearerSaslServer, OAuthBearerClientInitialResponse.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from isotherm.errors import SaslAuthenticationError
from isotherm.types import TimestampMs

OAUTHBEARER = "OAUTHBEARER"

_NAME = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_FIRST = re.compile(
    rf"n,(?:a=(?P<authorization_id>{_NAME}))?,\x01"
    r"(?P<pairs>(?:[A-Za-z]+=[\x21-\x7e \t\r\n]+\x01)*)\x01"
)
_AUTH = re.compile(r"bearer +(?P<token>[-_~+/.A-Za-z0-9]+=*)", re.IGNORECASE)
_INVALID = '{"status":"invalid_token"}'


class VerifiedToken(NamedTuple):
    """`subject` is the user. `expires_ms` is the wall-clock time at which its session ends."""

    subject: str
    expires_ms: TimestampMs


class TokenRefusedError(Exception):
    """The reason for refusing a token. It is for the log, not for the client."""


class OAuthBearerExchange:
    def __init__(
        self, verify: Callable[[str], VerifiedToken], on_refusal: Callable[[str], None]
    ) -> None:
        """`verify` raises TokenRefusedError; `on_refusal` gets its reason."""
        self._verify = verify
        self._on_refusal = on_refusal
        self._is_refused = False
        self.user: str | None = None
        self.expires_ms: TimestampMs | None = None

    def respond(self, token: bytes) -> bytes:
        # Kafka lets the client try another token here, without the delay after a failure.
        if self._is_refused:
            raise SaslAuthenticationError(_INVALID)
        first = _FIRST.fullmatch(token.decode("utf-8", "replace"))
        if first is None:
            raise _malformed()
        pairs = dict(pair.split("=", 1) for pair in first["pairs"].split("\x01")[:-1])
        shown = _AUTH.fullmatch(pairs.get("auth", ""))
        if shown is None:
            raise _malformed()
        try:
            verified = self._verify(shown["token"])
        except TokenRefusedError as error:
            self._on_refusal(str(error))
            self._is_refused = True
            return _INVALID.encode()
        if first["authorization_id"] not in (None, verified.subject):
            raise SaslAuthenticationError(
                "Authentication failed: Client requested an authorization id that is different from"
                " the token's principal name"
            )
        self.expires_ms = verified.expires_ms
        self.user = verified.subject
        return b""


def _malformed() -> SaslAuthenticationError:
    return SaslAuthenticationError(
        "Authentication failed during authentication due to invalid credentials with SASL"
        f" mechanism {OAUTHBEARER}"
    )
