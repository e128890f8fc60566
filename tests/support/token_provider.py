"""A provider of access tokens: keys, tokens signed by them, and an https server with the key set
and, for a client's id and secret, with tokens."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.server
import json
import ssl
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm

ISSUER = "https://issuer.example"
AUDIENCE = "kafka"

_ALGORITHMS: dict[str, Any] = {
    "RSAPublicKey": RSAAlgorithm,
    "ECPublicKey": ECAlgorithm,
    "Ed25519PublicKey": OKPAlgorithm,
}


CLIENT_ID = "alice"
# Occurs in no other text: output that contains it has leaked it.
CLIENT_SECRET = "spare-t0ken-4417"


class Provider:
    """Has an RSA key `rsa`, which signs unless another is named, `ec` and `ed`."""

    def __init__(self) -> None:
        self.keys: dict[str, Any] = {
            "rsa": rsa.generate_private_key(65537, 2048),
            "ec": ec.generate_private_key(ec.SECP256R1()),
            "ed": ed25519.Ed25519PrivateKey.generate(),
        }

    def key_set(self, *names: str) -> bytes:
        """The JSON key set of all keys, or of the named ones."""
        return json.dumps({"keys": [self._entry(name) for name in names or self.keys]}).encode()

    def _entry(self, name: str) -> Mapping[str, Any]:
        public = self.keys[name].public_key()
        return {**_ALGORITHMS[type(public).__name__].to_jwk(public, as_dict=True), "kid": name}

    def token(
        self, now_s: float, *, key: str = "rsa", algorithm: str = "RS256", **claims: Any
    ) -> str:
        """A signed token.

        `claims` replace those of a valid one of an hour; None leaves a claim out.
        """
        return jwt.encode(
            _without_none(good_claims(now_s) | claims),
            self.keys[key],
            algorithm=algorithm,
            headers={"kid": key},
        )

    def unsigned_token(self, now_s: float) -> str:
        return f"{_part({'alg': 'none'})}.{_part(good_claims(now_s))}."

    def token_with_the_public_key_as_a_secret(self, now_s: float) -> str:
        pem = (
            self.keys["rsa"]
            .public_key()
            .public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        )
        signed = f"{_part({'alg': 'HS256', 'kid': 'rsa'})}.{_part(good_claims(now_s))}"
        signature = hmac.digest(pem, signed.encode(), hashlib.sha256)
        return f"{signed}.{_encoded(signature)}"


def good_claims(now_s: float) -> dict[str, Any]:
    return {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "alice",
        "iat": int(now_s),
        "exp": int(now_s) + 3600,
    }


def _without_none(claims: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in claims.items() if value is not None}


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _part(value: Mapping[str, Any]) -> str:
    return _encoded(json.dumps(value).encode())


def fetched_token(url: str, context: ssl.SSLContext) -> str:
    """Fetch a token, for clients that leave the fetching to their user."""
    login = base64.b64encode(f"{CLIENT_ID}:{CLIENT_SECRET}".encode()).decode()
    request = urllib.request.Request(
        url, b"grant_type=client_credentials", {"Authorization": f"Basic {login}"}
    )
    with urllib.request.urlopen(request, context=context) as answer:
        return str(json.load(answer)["access_token"])


@contextlib.contextmanager
def served(
    pages: Mapping[str, bytes],
    certificate: Path | None,
    provider: Provider | None = None,
    requests: list[str] | None = None,
) -> Iterator[str]:
    """Serve these pages, by https with a PEM file or else by http; yield the address without a
    slash.

    A page that begins with `https:` is a redirect. With a provider, `/token` gives CLIENT_ID one of
    its tokens; the bodies of these requests go to `requests`.
    """

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = pages.get(self.path)
            if page is not None and page.startswith(b"http"):
                self.send_response(302)
                self.send_header("Location", page.decode())
                self.end_headers()
                return
            self.send_response(404 if page is None else 200)
            self.end_headers()
            self.wfile.write(page or b"")

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            if requests is not None:
                requests.append(body)
            kind, _, credentials = self.headers["Authorization"].partition(" ")
            known = (kind, base64.b64decode(credentials).decode()) == (
                "Basic",
                f"{CLIENT_ID}:{CLIENT_SECRET}",
            )
            is_asked = urllib.parse.parse_qs(body).get("grant_type") == ["client_credentials"]
            is_good = provider is not None and known and is_asked and self.path == "/token"
            answer = {"error": "invalid_client"}
            if provider is not None and is_good:
                answer = {"access_token": provider.token(time.time()), "token_type": "Bearer"}
            text = json.dumps(answer).encode()
            self.send_response(200 if is_good else 401)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *arguments: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("localhost", 0), Handler)
    scheme = "http"
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        scheme = "https"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"{scheme}://localhost:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
