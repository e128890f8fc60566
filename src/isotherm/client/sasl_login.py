"""The client's side of a login in Kafka's requests: SASL/PLAIN (RFC 4616), SCRAM (RFC 5802, RFC
7677) and OAUTHBEARER (RFC 7628).

    SaslHandshake      mechanism
    SaslAuthenticate   [authorization id] NUL user NUL password
                or     n,,n=user,r=nonce / c=biws,r=nonce of both,p=proof
                or     n,,^Aauth=Bearer token^A[name=value^A...]^A

Pure, except for `exchange`, which sends a request, and for fetching the token. As in Kafka,
passwords are UTF-8 without the preparation of RFC 4013, so that passwords set by its tools match.
Source: Kafka SaslClientAuthenticator, ScramSaslClient, PlainSaslClient, OAuthBearerSaslClient.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable, Sequence
from typing import Any

from kio.schema.errors import ErrorCode
from kio.schema.sasl_authenticate.v1.request import SaslAuthenticateRequest
from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest

from isotherm.client.access_tokens import TokenLogin, fetch_token
from isotherm.client.node_security import Login
from isotherm.errors import SaslAuthenticationError
from isotherm.protocol.code_names import code_name

# A hostile server could keep its clients busy with more. Kafka's maximum is 16384.
ITERATIONS_MAX = 1_000_000
_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
_SERVER_FIRST = re.compile(
    r"r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+),s=(?P<salt>[A-Za-z0-9+/=]+),i=(?P<iterations>\d{1,9})(?:,.*)?"
)
_CONTROL_A = b"\x01"
_NO_BINDING = "biws"  # base64 of "n,,"


def log_in(
    login: Login | TokenLogin, exchange: Callable[[Any], Any], new_nonce: Callable[[], str]
) -> float:
    """Log in on a connection. Returns the seconds until the session ends, 0 for never.

    `exchange` sends an entity of kio and returns the response. Raises SaslAuthenticationError with
    the server's reason, and what `exchange` raises.
    """
    # Fetched before the handshake: a server does not wait long for the request after it.
    token = fetch_token(login) if isinstance(login, TokenLogin) else ""
    answer = exchange(SaslHandshakeRequest(mechanism=login.mechanism))
    if answer.error_code is ErrorCode.illegal_sasl_state:
        raise SaslAuthenticationError(
            "that listener expects no login: set security.protocol to PLAINTEXT, or to SSL if it"
            " has TLS, or use the port of a SASL listener"
        )
    if answer.error_code is not ErrorCode.none:
        raise SaslAuthenticationError(
            f"the login is refused mechanism={login.mechanism} error={code_name(answer.error_code)}"
            f" offered={','.join(answer.mechanisms)}"
        )

    def authenticate(token: bytes) -> Any:
        answer = exchange(SaslAuthenticateRequest(auth_bytes=token))
        if answer.error_code is not ErrorCode.none:
            raise SaslAuthenticationError(
                f"the login is refused user={login.user} mechanism={login.mechanism}"
                f" reason={(answer.error_message or code_name(answer.error_code))!r}"
            )
        return answer

    if isinstance(login, TokenLogin):
        last = authenticate(_token_message(token, login.extensions))
        if last.auth_bytes:
            # The error is in the answer to this message (RFC 7628, 3.2.3).
            authenticate(_CONTROL_A)
            raise SaslAuthenticationError(f"the login is refused user={login.user}")
    elif login.mechanism in _HASHES:
        scram = ScramClient(login, new_nonce())
        first = authenticate(scram.first_message())
        last = authenticate(scram.final_message(first.auth_bytes))
        scram.check_server(last.auth_bytes)
    else:
        last = authenticate(f"\0{login.user}\0{login.password}".encode())
    return float(last.session_lifetime.total_seconds())


def _token_message(token: str, extensions: Sequence[str]) -> bytes:
    pairs = [f"auth=Bearer {token}", *extensions]
    return b"n,," + b"".join(_CONTROL_A + pair.encode() for pair in pairs) + 2 * _CONTROL_A


class ScramClient:
    """One SCRAM exchange. The server must prove that it knows the password, too."""

    def __init__(self, login: Login, nonce: str) -> None:
        self._login = login
        self._nonce = nonce
        self._hash_name = _HASHES[login.mechanism]
        user = login.user.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={user},r={nonce}"
        self._signature = b""

    def first_message(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def final_message(self, server_first: bytes) -> bytes:
        text = server_first.decode("utf-8", "replace")
        challenge = _SERVER_FIRST.fullmatch(text)
        if challenge is None or not challenge["nonce"].startswith(self._nonce):
            raise self._not_scram()
        iterations = int(challenge["iterations"])
        if not 1 <= iterations <= ITERATIONS_MAX:
            raise self._not_scram()
        try:
            salt = base64.b64decode(challenge["salt"], validate=True)
        except binascii.Error as error:
            raise self._not_scram() from error
        password = self._login.password.encode()
        salted = hashlib.pbkdf2_hmac(self._hash_name, password, salt, iterations)
        without_proof = f"c={_NO_BINDING},r={challenge['nonce']}"
        message = f"{self._bare},{text},{without_proof}".encode()
        client_key = hmac.digest(salted, b"Client Key", self._hash_name)
        stored_key = hashlib.new(self._hash_name, client_key).digest()
        mask = hmac.digest(stored_key, message, self._hash_name)
        proof = bytes(a ^ b for a, b in zip(client_key, mask, strict=True))
        server_key = hmac.digest(salted, b"Server Key", self._hash_name)
        self._signature = hmac.digest(server_key, message, self._hash_name)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def check_server(self, server_final: bytes) -> None:
        expected = b"v=" + base64.b64encode(self._signature)
        if not hmac.compare_digest(expected, server_final.partition(b",")[0]):
            raise SaslAuthenticationError(
                "the server does not know the password"
                f" user={self._login.user} mechanism={self._login.mechanism}"
            )

    def _not_scram(self) -> SaslAuthenticationError:
        return SaslAuthenticationError(
            f"the server's answer is not SCRAM mechanism={self._login.mechanism}"
        )
