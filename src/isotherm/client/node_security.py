"""TLS and login of the connections that Isotherm itself makes, from a client's properties.

The properties are librdkafka's, as `isotherm.config.client_security` makes them. Files are read
when NodeSecurity is made.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from isotherm.client.access_tokens import TokenLogin
from isotherm.client.tls_contexts import (
    CA_LOCATION,
    CHAIN_LOCATION,
    KEY_LOCATION,
    KEY_PASSWORD,
    SYSTEM_AUTHORITIES,
    node_context,
)
from isotherm.config.client_security import (
    CA_PEM,
    CHAIN_PEM,
    ENDPOINT_IDENTIFICATION,
    KEY_PEM,
    MECHANISM,
    MECHANISMS,
    PASSWORD,
    PASSWORD_MECHANISMS,
    SECURITY_PROTOCOL,
    USER,
    librdkafka_properties,
)
from isotherm.config.token_login import (
    CLIENT_ID,
    CLIENT_SECRET,
    EXTENSIONS,
    GRANT_TYPE,
    HTTPS_CA_LOCATION,
    HTTPS_CA_PEM,
    METHOD,
    OAUTHBEARER,
    OIDC,
    SCOPE,
    TOKEN_URL,
)
from isotherm.errors import ConfigError

_CREDENTIALS = "client_credentials"


class Login(NamedTuple):
    mechanism: str
    user: str
    password: str

    def __repr__(self) -> str:
        return f"Login({self.mechanism}, {self.user}, [hidden])"


@dataclass(frozen=True, slots=True)
class NodeSecurity:
    """`tls` is None for a connection without TLS, `login` for one without a login."""

    tls: ssl.SSLContext | None = None
    login: Login | TokenLogin | None = None


PLAINTEXT = NodeSecurity()

# The properties of TLS and logins that connections of Isotherm's own comply with.
_SERVED = frozenset(
    {
        SECURITY_PROTOCOL,
        *(MECHANISM, "sasl.mechanisms", USER, PASSWORD),
        *(METHOD, CLIENT_ID, CLIENT_SECRET, TOKEN_URL, SCOPE, EXTENSIONS, GRANT_TYPE),
        *(CA_PEM, CA_LOCATION, KEY_PEM, KEY_LOCATION, CHAIN_PEM, CHAIN_LOCATION, KEY_PASSWORD),
        ENDPOINT_IDENTIFICATION,
    }
)


def own_security(properties: Mapping[str, Any]) -> NodeSecurity | None:
    """Same as `node_security`. None if only librdkafka can make the connection: for GSSAPI, other
    sources of tokens, and settings such as a list of revoked certificates, which must not be left
    out. Raises ConfigError for contradictory properties."""
    translated = librdkafka_properties(properties)
    if any(key.startswith(("sasl.", "ssl.")) and key not in _SERVED for key in translated):
        return None
    security = probe_security(translated)
    has_login = str(translated.get(SECURITY_PROTOCOL, "")).upper().startswith("SASL")
    return None if has_login and security.login is None else security


def node_security(properties: Mapping[str, Any]) -> NodeSecurity:
    """The TLS and the login that a client's properties describe. Raises ConfigError, without
    secrets, also for a mechanism that only librdkafka has."""
    security = probe_security(properties)
    protocol = str(librdkafka_properties(properties).get(SECURITY_PROTOCOL, ""))
    if protocol.startswith("SASL") and security.login is None:
        if _mechanism(properties) == OAUTHBEARER:
            raise ConfigError(
                "a connection of Isotherm's own fetches tokens with the client's id and secret"
                f" key={METHOD} expected={OIDC}"
            )
        raise ConfigError(
            f"the mechanism is not supported key={MECHANISM} value={_mechanism(properties)}"
            f" expected_one_of={','.join(MECHANISMS)}"
        )
    return security


def probe_security(properties: Mapping[str, Any]) -> NodeSecurity:
    """Same as `node_security`, but without a login if only librdkafka has its mechanism. Raises
    ConfigError."""
    translated = librdkafka_properties(properties)
    protocol = str(translated.get(SECURITY_PROTOCOL, "PLAINTEXT"))
    login: Login | TokenLogin | None = None
    if protocol.startswith("SASL"):
        mechanism = _mechanism(translated)
        if mechanism in PASSWORD_MECHANISMS:
            login = Login(mechanism, str(translated[USER]), str(translated[PASSWORD]))
        elif mechanism == OAUTHBEARER:
            login = _token_login(translated)
    return NodeSecurity(node_context(translated) if protocol.endswith("SSL") else None, login)


def _token_login(properties: Mapping[str, Any]) -> TokenLogin | None:
    """The login with a token; None for sources of tokens that only librdkafka has."""
    is_fetched = str(properties.get(METHOD, "")).lower() == OIDC
    if not is_fetched or str(properties.get(GRANT_TYPE, _CREDENTIALS)) != _CREDENTIALS:
        return None
    client_id, secret, url = (properties.get(key) for key in (CLIENT_ID, CLIENT_SECRET, TOKEN_URL))
    if client_id is None or secret is None or url is None:
        return None
    extensions = str(properties.get(EXTENSIONS, ""))
    location = properties.get(HTTPS_CA_LOCATION, SYSTEM_AUTHORITIES)
    return TokenLogin(
        str(client_id),
        str(secret),
        str(url),
        scope=str(properties.get(SCOPE, "")),
        extensions=tuple(part for part in extensions.split(",") if part),
        trusted=properties.get(HTTPS_CA_PEM),
        trusted_location=None if location == SYSTEM_AUTHORITIES else str(location),
    )


def _mechanism(properties: Mapping[str, Any]) -> str:
    return str(properties.get(MECHANISM) or properties.get("sasl.mechanisms"))
