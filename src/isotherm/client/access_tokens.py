"""Access tokens of Isotherm's own connections: fetched from the provider for the client's id and
secret.

    POST URL            Authorization: Basic base64(ID:SECRET)
    grant_type=client_credentials[&scope=SCOPE]
    200 {"access_token": "..."}

Each login fetches a token of its own, so that a session lasts as long as possible. As in Kafka,
only the header is encoded, and `id_token` is taken if there is no `access_token`. Source: Kafka
HttpJwtRetriever, ClientSecretRequestFormatter, JwtResponseParser.
"""

from __future__ import annotations

import base64
import json
from typing import NamedTuple

from isotherm.client.tls_contexts import https_context
from isotherm.config.token_login import OAUTHBEARER
from isotherm.errors import SaslAuthenticationError


class TokenLogin(NamedTuple):
    """The provider's certificate authorities are in `trusted` (PEM), or in `trusted_location`, a
    file or folder. If both are None, the system's are used."""

    client_id: str
    client_secret: str
    url: str
    scope: str = ""
    extensions: tuple[str, ...] = ()
    trusted: str | None = None
    trusted_location: str | None = None

    @property
    def mechanism(self) -> str:
        return OAUTHBEARER

    @property
    def user(self) -> str:
        return self.client_id

    def __repr__(self) -> str:
        return f"TokenLogin({self.client_id}, {self.url}, [hidden])"


def fetch_token(login: TokenLogin) -> str:
    """Fetch a token. Raises SaslAuthenticationError, which names the address."""
    # Imported here: it loads an HTTP client, which most executors and brokers do not need.
    from isotherm.client.https_exchange import https_answer

    try:
        text = https_answer(
            login.url,
            https_context(pem=login.trusted, location=login.trusted_location),
            _body(login),
            _headers(login),
        )
    except (OSError, ValueError) as error:
        # A URLError has the cause in `reason`, an SSLError a short name of it.
        raise _without_token(login, getattr(error, "reason", error)) from error
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        # The cause is not chained: it quotes the answer, which may contain a token.
        raise _without_token(login, "the answer is not JSON") from None
    fields = answer if isinstance(answer, dict) else {}
    token = fields.get("access_token") or fields.get("id_token")
    if not isinstance(token, str) or not token.strip():
        raise _without_token(login, "the answer has no access_token")
    return token.strip()


def _body(login: TokenLogin) -> bytes:
    scope = f"&scope={login.scope}" if login.scope else ""
    return f"grant_type=client_credentials{scope}".encode()


def _headers(login: TokenLogin) -> dict[str, str]:
    credentials = base64.b64encode(f"{login.client_id}:{login.client_secret}".encode()).decode()
    return {
        "Accept": "application/json",
        "Authorization": f"Basic {credentials}",
        "Cache-Control": "no-cache",
        "Content-Type": "application/x-www-form-urlencoded",
    }


def _without_token(login: TokenLogin, reason: object) -> SaslAuthenticationError:
    return SaslAuthenticationError(
        f"the provider gives no token user={login.client_id} url={login.url} reason='{reason}'"
    )
