"""SCRAM credentials: what a server stores of a password (RFC 5802, RFC 7677).

The server stores neither the password nor the key that a client needs: StoredKey = H(ClientKey).
Source: Kafka ScramFormatter, ScramMechanism.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
from typing import NamedTuple

ITERATIONS_MIN = 4096
ITERATIONS_MAX = 16384


class ScramMechanism(enum.IntEnum):
    """The numbers are those of the protocol and of the metadata."""

    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def sasl_name(self) -> str:
        return self.name.replace("_", "-")

    @property
    def hash_name(self) -> str:
        return "sha256" if self is ScramMechanism.SCRAM_SHA_256 else "sha512"


class ScramCredential(NamedTuple):
    """The part of a password that a server stores."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return "ScramCredential([hidden])"


def credential_of(
    mechanism: ScramMechanism, salted_password: bytes, salt: bytes, iterations: int
) -> ScramCredential:
    """The credential of a password that `salt_password`, or a client, has salted."""
    hash_name = mechanism.hash_name
    client_key = hmac.digest(salted_password, b"Client Key", hash_name)
    stored_key = hashlib.new(hash_name, client_key).digest()
    server_key = hmac.digest(salted_password, b"Server Key", hash_name)
    return ScramCredential(salt, stored_key, server_key, iterations)


def salt_password(mechanism: ScramMechanism, password: str, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)
