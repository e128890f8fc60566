"""SASL/SCRAM (RFC 5802, RFC 7677): client and server prove to each other that they know the
password.

    client   n,[a=authorization id],n=user,r=nonce[,extensions]
    server   r=nonce of both,s=salt,i=iterations
    client   c=biws,r=nonce of both,p=proof
    server   v=signature

A user that does not exist is also asked for a proof, with a salt that is always the same for the
name, and looks like those of other users. So a client cannot find out which users exist; Kafka
reveals it, because it fails at the first message.

Source: Kafka ScramSaslServer, ScramMessages.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from isotherm.broker.metadata.access.scram_credential import (
    ITERATIONS_MIN,
    ScramCredential,
    ScramMechanism,
)
from isotherm.errors import SaslAuthenticationError

# Kafka's admin client makes a salt of a random number of 130 bits, in base 36
# (UserScramCredentialUpsertion.generateRandomSalt).
_DIGITS = b"0123456789abcdefghijklmnopqrstuvwxyz"
_NUMBER_BITS = 130
_NUMBER_DIGITS_MAX = 26


class CredentialShape(NamedTuple):
    """What a client sees of a credential without its proof, apart from the bytes of the salt.
    `salt_size` is None for a salt as Kafka's admin client makes it."""

    iterations: int
    salt_size: int | None


_USUAL_SHAPE = CredentialShape(ITERATIONS_MIN, None)


def shape_of(salt: bytes, iterations: int) -> CredentialShape:
    is_number = _NUMBER_DIGITS_MAX - 2 <= len(salt) <= _NUMBER_DIGITS_MAX and not salt.strip(
        _DIGITS
    )
    return CredentialShape(iterations, None if is_number else len(salt))


_NAME = r"(?:[^=,\0]|=2C|=3D)"
_FIRST = re.compile(
    rf"n,(?:a=(?P<authorization_id>{_NAME}+))?,"
    rf"(?P<bare>(?:m=[^,]*,)?n=(?P<user>{_NAME}+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?P<extensions>,.*)?)"
)
_FINAL = re.compile(
    r"(?P<without_proof>c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?:,.*)?)"
    r",p=(?P<proof>[A-Za-z0-9+/=]+)"
)


class ScramExchange:
    """`find_credential` is called for the user. For a user that does not exist, salt and iterations
    are derived from its name and from `secret` (see `unknown_users`), in one of `find_shapes`: the
    distinct shapes of the mechanism's credentials."""

    expires_ms = None

    def __init__(
        self,
        mechanism: ScramMechanism,
        find_credential: Callable[[str], ScramCredential | None],
        find_shapes: Callable[[], Sequence[CredentialShape]],
        *,
        new_nonce: Callable[[], str],
        secret: bytes,
    ) -> None:
        self._mechanism = mechanism
        self._find_credential = find_credential
        self._find_shapes = find_shapes
        self._new_nonce = new_nonce
        self._secret = secret
        self._open_challenge: _Challenge | None = None
        self.user: str | None = None

    def respond(self, token: bytes) -> bytes:
        text = token.decode("utf-8", "replace")
        if self._open_challenge is None:
            self._open_challenge = self._challenge(text)
            return self._open_challenge.server_first.encode()
        # Cleared first: a challenge is good for one proof.
        challenge, self._open_challenge = self._open_challenge, None
        signature = self._verified(challenge, text)
        self.user = challenge.user
        return b"v=" + base64.b64encode(signature)

    def _challenge(self, text: str) -> _Challenge:
        first = _FIRST.fullmatch(text)
        if first is None:
            raise self._failed()
        # A delegation token in place of a user (KIP-48).
        if "tokenauth=true" in (first["extensions"] or "").split(","):
            raise SaslAuthenticationError("Authentication failed: there are no delegation tokens")
        user = _unescaped(first["user"])
        authorization_id = first["authorization_id"]
        if authorization_id is not None and _unescaped(authorization_id) != user:
            raise SaslAuthenticationError(
                "Authentication failed: Client requested an authorization id that is different from"
                " username"
            )
        credential = self._find_credential(user)
        nonce = first["nonce"] + self._new_nonce()
        shown = credential or self._stand_in(user)
        salt = base64.b64encode(shown.salt).decode()
        server_first = f"r={nonce},s={salt},i={shown.iterations}"
        return _Challenge(
            user, credential, nonce, first["bare"], server_first, text[: first.start("bare")]
        )

    def _stand_in(self, user: str) -> ScramCredential:
        # Derived from the name: a random salt would differ at the next try and reveal that the user
        # is unknown. The mechanism counts, since no existing user has one salt for both.
        name = f"{self._mechanism.sasl_name},{user}".encode()
        digest = hmac.digest(self._secret, name, "sha512")
        # The largest digest wins, so that a new shape changes what is shown of few users alone.
        shape = max(
            self._find_shapes() or (_USUAL_SHAPE,),
            key=lambda shape: hmac.digest(digest, repr(shape).encode(), "sha256"),
        )
        if shape.salt_size is None:
            salt = _in_base_36(int.from_bytes(digest) % (1 << _NUMBER_BITS))
        else:
            salt = hashlib.shake_256(digest).digest(shape.salt_size)
        return ScramCredential(salt, b"", b"", shape.iterations)

    def _verified(self, challenge: _Challenge, text: str) -> bytes:
        """Verify the client's proof; returns the server's signature."""
        final = _FINAL.fullmatch(text)
        if final is None or final["nonce"] != challenge.nonce:
            raise self._failed()
        try:
            proof = base64.b64decode(final["proof"], validate=True)
            binding = base64.b64decode(final["binding"], validate=True)
        except binascii.Error as error:
            raise self._failed() from error
        hash_name = self._mechanism.hash_name
        auth_message = (
            f"{challenge.client_first},{challenge.server_first},{final['without_proof']}".encode()
        )
        # An unknown user takes the same steps; no hash equals the empty key.
        credential = challenge.credential or ScramCredential(b"", b"", b"", 0)
        client_signature = hmac.digest(credential.stored_key, auth_message, hash_name)
        if len(proof) != len(client_signature) or binding != challenge.gs2_header.encode():
            raise self._failed()
        client_key = bytes(a ^ b for a, b in zip(proof, client_signature, strict=True))
        stored_key = hashlib.new(hash_name, client_key).digest()
        if not hmac.compare_digest(stored_key, credential.stored_key):
            raise self._failed()
        return hmac.digest(credential.server_key, auth_message, hash_name)

    def _failed(self) -> SaslAuthenticationError:
        return SaslAuthenticationError(
            "Authentication failed during authentication due to invalid credentials with SASL"
            f" mechanism {self._mechanism.sasl_name}"
        )


class _Challenge(NamedTuple):
    user: str
    credential: ScramCredential | None
    nonce: str
    client_first: str
    server_first: str
    gs2_header: str


def _unescaped(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")


def _in_base_36(number: int) -> bytes:
    digits = bytearray()
    while number:
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return bytes(reversed(digits))
