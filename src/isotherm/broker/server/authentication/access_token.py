"""Verifies access tokens that are JWTs (RFC 7519): their signature and their claims.

A token is accepted if a key of the provider has signed it, if it has not expired and is not from
the future, and if issuer and audience are the expected ones. Signatures must be asymmetric. A token
without a signature (`none`), or signed with a shared secret (`HS256`), is refused whatever the keys
are. Source: Kafka BrokerJwtValidator, and the defaults of jose4j on which it relies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jwt

from isotherm.broker.server.authentication.oauthbearer import TokenRefusedError, VerifiedToken
from isotherm.clock import Clock

ALGORITHMS: Mapping[str, frozenset[str]] = {
    "RSA": frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}),
    "EC": frozenset({"ES256", "ES384", "ES512"}),
    "OKP": frozenset({"EdDSA"}),
}
_ALL_ALGORITHMS = sorted(frozenset().union(*ALGORITHMS.values()))
# RFC 7518, section 3.3.
RSA_BITS_MIN = 2048
# The longest key id in a token. No provider has a longer one.
KEY_ID_SIZE_MAX = 1000


class TokenSettings(NamedTuple):
    """Empty `audiences` and a missing `issuer` are not checked. Without `audiences` a token must
    have no audience."""

    audiences: tuple[str, ...]
    issuer: str | None
    clock_skew_s: int
    scope_claim: str
    subject_claim: str


class VerificationKey(NamedTuple):
    """A public key of the provider.

    `algorithm` is None if any algorithm of the key's kind may use it.
    """

    key_id: str | None
    kind: str
    algorithm: str | None
    key: Any


class Keys(Protocol):
    def find(self, fits: Callable[[VerificationKey], bool]) -> VerificationKey | None:
        """The first key that fits; None if none does, and then the keys are soon read again."""


class TokenVerifier:
    """Thread-safe."""

    def __init__(self, settings: TokenSettings, keys: Keys, clock: Clock) -> None:
        self._settings = settings
        self._keys = keys
        self._clock = clock
        # Times are checked in this class, with the clock that was passed in.
        self._jwt = jwt.PyJWT(
            {
                "verify_exp": False,
                "verify_nbf": False,
                "verify_iat": False,
                "require": ["exp", "iat"],
            }
        )

    def verify(self, token: str) -> VerifiedToken:
        """Verify a token. Raises TokenRefusedError."""
        try:
            header = jwt.get_unverified_header(token)
            algorithm, key = self._find_key(header)
            claims: dict[str, Any] = self._jwt.decode(
                token,
                key,
                # The header names it, and `_find_key` has compared it with the key's kind: a
                # public key is never taken for a secret.
                algorithms=[algorithm],
                audience=self._settings.audiences or None,
                issuer=self._settings.issuer,
            )
        except jwt.PyJWTError as error:
            raise TokenRefusedError(f"{type(error).__name__}: {error}") from error
        expires_s = self._check_times(claims)
        self._check_scope(claims.get(self._settings.scope_claim))
        subject = claims.get(self._settings.subject_claim)
        if not isinstance(subject, str) or not subject.strip():
            raise TokenRefusedError(f"the claim is not a name claim={self._settings.subject_claim}")
        return VerifiedToken(subject.strip(), int(expires_s * 1000))

    def _find_key(self, header: Mapping[str, Any]) -> tuple[str, Any]:
        algorithm, key_id = header.get("alg"), header.get("kid")
        if algorithm not in _ALL_ALGORITHMS:
            raise TokenRefusedError(
                f"the algorithm is not accepted alg={str(algorithm)[:20]!r}"
                f" accepted={','.join(_ALL_ALGORITHMS)}"
            )
        if key_id is not None and len(key_id) > KEY_ID_SIZE_MAX:
            raise TokenRefusedError(f"the key's id is too long size={len(key_id)}")

        def fits(key: VerificationKey) -> bool:
            return (
                algorithm in ALGORITHMS[key.kind]
                and key.algorithm in (None, algorithm)
                and key_id in (None, key.key_id)
            )

        verification_key = self._keys.find(fits)
        if verification_key is None:
            raise TokenRefusedError(
                f"the provider has no such key kid={str(key_id)[:100]!r} alg={algorithm}"
            )
        return str(algorithm), verification_key.key

    def _check_times(self, claims: Mapping[str, Any]) -> float:
        now_s, skew_s = self._clock.now_ms() / 1000, self._settings.clock_skew_s
        expires_s, begins_s = _seconds(claims, "exp"), _seconds(claims, "nbf")
        _seconds(claims, "iat")
        assert expires_s is not None, "the claim is required"
        # RFC 7519: a token is not accepted on or after `exp`, nor before `nbf`.
        if now_s - skew_s >= expires_s:
            raise TokenRefusedError(f"the token has expired exp={expires_s} now={now_s}")
        if begins_s is not None and now_s + skew_s < begins_s:
            raise TokenRefusedError(f"the token is not valid yet nbf={begins_s} now={now_s}")
        return expires_s

    def _check_scope(self, scope: object) -> None:
        """Check the scope's format as Kafka does, which does not use it otherwise."""
        names = scope if isinstance(scope, list) else [scope] if isinstance(scope, str) else []
        if not all(isinstance(name, str) and name.strip() for name in names):
            raise TokenRefusedError(f"a scope is empty claim={self._settings.scope_claim}")
        if len({name.strip() for name in names}) != len(names):
            raise TokenRefusedError(f"a scope is named twice claim={self._settings.scope_claim}")


def _seconds(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 2**53:
        raise TokenRefusedError(f"the claim is not a time in seconds claim={name}")
    return value
