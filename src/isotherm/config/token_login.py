"""Translates the OAUTHBEARER properties of a client from Kafka's names to librdkafka's.

A provider issues tokens over https for the client's id and secret (RFC 6749, section 4.4).

    Kafka                                                    librdkafka
    sasl.oauthbearer.token.endpoint.url                      the same
    sasl.oauthbearer.client.credentials.client.id, .secret   sasl.oauthbearer.client.id, .secret
      or clientId and clientSecret of the login module
    sasl.oauthbearer.scope, or scope of the login module     the same
    sasl.oauthbearer.header.urlencode                        id and secret encoded
    extension_NAME of the login module                       sasl.oauthbearer.extensions
    ssl.truststore.* of the login module                     https.ca.pem

Class names stand for the behaviour of Kafka's classes. If librdkafka's own
`sasl.oauthbearer.method` is set, nothing is translated. Source: Kafka
ClientCredentialsJwtRetriever, ClientSecretRequestFormatter, OAuthBearerLoginCallbackHandler;
librdkafka CONFIGURATION.md.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from pathlib import Path

from isotherm.config.given_properties import GivenProperties
from isotherm.config.jaas import OAUTHBEARER_MODULE, parse_login_module

OAUTHBEARER = "OAUTHBEARER"
METHOD = "sasl.oauthbearer.method"
OIDC = "oidc"
TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"  # noqa: S105  a key's name
CLIENT_ID = "sasl.oauthbearer.client.id"
CLIENT_SECRET = "sasl.oauthbearer.client.secret"  # noqa: S105
SCOPE = "sasl.oauthbearer.scope"
EXTENSIONS = "sasl.oauthbearer.extensions"
HTTPS_CA_PEM = "https.ca.pem"
HTTPS_CA_LOCATION = "https.ca.location"
GRANT_TYPE = "sasl.oauthbearer.grant.type"

LOGIN_HANDLER = "sasl.login.callback.handler.class"
_PACKAGE = "org.apache.kafka.common.security.oauthbearer"
TOKEN_HANDLER = f"{_PACKAGE}.OAuthBearerLoginCallbackHandler"

KAFKA_ID = "sasl.oauthbearer.client.credentials.client.id"
KAFKA_SECRET = "sasl.oauthbearer.client.credentials.client.secret"  # noqa: S105
_URL_ENCODE = "sasl.oauthbearer.header.urlencode"
_JAAS = "sasl.jaas.config"
_CLASSES = {
    LOGIN_HANDLER: (TOKEN_HANDLER,),
    "sasl.oauthbearer.jwt.retriever.class": (
        f"{_PACKAGE}.DefaultJwtRetriever",
        f"{_PACKAGE}.ClientCredentialsJwtRetriever",
    ),
    # The broker validates the token. Kafka's client only inspects it before it sends it.
    "sasl.oauthbearer.jwt.validator.class": (
        f"{_PACKAGE}.DefaultJwtValidator",
        f"{_PACKAGE}.ClientJwtValidator",
    ),
}
KAFKA_TOKEN_KEYS = frozenset(
    {KAFKA_ID, KAFKA_SECRET, _URL_ENCODE, "sasl.oauthbearer.scope.claim.name", *_CLASSES}
)
TOKEN_PREFIXES = (LOGIN_HANDLER, "sasl.oauthbearer.")
_ASSERTION = "sasl.oauthbearer.assertion."
_TRUST_STORE = "ssl.truststore."
_EXTENSION = "extension_"
_MODULE_OPTIONS = frozenset({"clientId", "clientSecret", "scope"})


def token_login(given: GivenProperties) -> dict[str, str]:
    """The properties of `given` under librdkafka's names.

    Raises ConfigError, which names the key.
    """
    if given.text(METHOD) is not None or given.texts.get("oauth_cb") is not None:
        if (other := given.any_of((_JAAS, *sorted(KAFKA_TOKEN_KEYS)))) is not None:
            raise given.error(f"the source of tokens is given twice other_key={other}", METHOD)
        if given.text(METHOD) == OIDC and (url := given.text(TOKEN_URL)) is not None:
            _check_url(given, url)
        return {}
    _check_classes(given)
    options = _options(given)
    url = given.text(TOKEN_URL)
    if url is None:
        # Kafka's client would then make up an unsigned token by itself.
        raise given.error("the login has no source of tokens", TOKEN_URL)
    _check_url(given, url)
    client_id = _credential(given, options, KAFKA_ID, CLIENT_ID, "clientId")
    secret = _credential(given, options, KAFKA_SECRET, CLIENT_SECRET, "clientSecret")
    if (given.text(_URL_ENCODE) or "false").strip().lower() == "true":
        client_id, secret = urllib.parse.quote_plus(client_id), urllib.parse.quote_plus(secret)
    translated = {METHOD: OIDC, CLIENT_ID: client_id, CLIENT_SECRET: secret}
    if (scope := (given.text(SCOPE) or options.get("scope", "")).strip()) != "":
        translated[SCOPE] = scope
    extensions = [
        f"{name.removeprefix(_EXTENSION)}={text}"
        for name, text in options.items()
        if name.startswith(_EXTENSION)
    ]
    if extensions:
        translated[EXTENSIONS] = ",".join(extensions)
    return translated | _trust(given, options)


def _check_classes(given: GivenProperties) -> None:
    for key, names in _CLASSES.items():
        if (class_name := given.text(key)) is not None and class_name not in names:
            raise given.error(
                f"the class is not supported value={class_name} expected_one_of={','.join(names)}",
                key,
            )
    for key in given.texts:
        if key.startswith(_ASSERTION):
            raise given.error(
                "tokens are fetched with the client's id and secret, not with an assertion", key
            )


def _options(given: GivenProperties) -> Mapping[str, str]:
    jaas = given.text(_JAAS)
    if jaas is None:
        return {}
    module = parse_login_module(jaas, given.place)
    if module.name != OAUTHBEARER_MODULE:
        raise given.error(
            f"the login module is not the mechanism's mechanism={OAUTHBEARER} found={module.name}"
            f" expected={OAUTHBEARER_MODULE}",
            _JAAS,
        )
    for name, text in module.options.items():
        if name.startswith(_EXTENSION):
            if "," in text or "=" in name:
                raise given.error(f"an extension has a comma or a sign option={name}", _JAAS)
        elif name not in _MODULE_OPTIONS and not name.startswith(_TRUST_STORE):
            raise given.error(f"the login module has an unknown option option={name}", _JAAS)
    return module.options


def _check_url(given: GivenProperties, url: str) -> None:
    try:
        parsed = urllib.parse.urlsplit(url)
        host = parsed.hostname
    except ValueError:
        host = None
    if host and parsed.scheme == "https":
        return
    if host and parsed.scheme == "http":
        raise given.error(
            f"the client's secret and its token would be sent in clear text value={url}",
            TOKEN_URL,
            "https",
        )
    raise given.error(
        f"tokens are fetched from an https address value={url}", TOKEN_URL, "https://HOST/PATH"
    )


def _credential(
    given: GivenProperties, options: Mapping[str, str], key: str, other: str, option: str
) -> str:
    """The value of a credential. As in Kafka, the key overrides the option of the login module."""
    if given.text(key) is not None and given.text(other) is not None:
        raise given.error(f"it is given twice other_key={other}", key)
    credential = (given.text(key) or given.text(other) or options.get(option) or "").strip()
    if not credential:
        raise given.error("the login has no id and secret of the client", key)
    return credential


def _trust(given: GivenProperties, options: Mapping[str, str]) -> dict[str, str]:
    """The properties with the authorities for the provider's address: those of the login module, or
    the system's."""
    texts = {name: text for name, text in options.items() if name.startswith(_TRUST_STORE)}
    if not texts:
        return {}
    if (other := given.any_of((HTTPS_CA_PEM, HTTPS_CA_LOCATION))) is not None:
        raise given.error(f"certificates are given twice other_key={other}", _JAAS)
    from isotherm.config.key_stores import JKS, STORE_TYPES, pem_certificates, read_trusted

    store_type = texts.get(f"{_TRUST_STORE}type", JKS).upper()
    inline, location = (texts.get(_TRUST_STORE + suffix) for suffix in ("certificates", "location"))
    if store_type not in STORE_TYPES or (inline is None) == (location is None):
        raise given.error("the login module names no store with certificates", _JAAS)
    try:
        if inline is not None:
            trusted = pem_certificates(inline.encode())
        else:
            assert location is not None
            password = texts.get(f"{_TRUST_STORE}password")
            trusted = read_trusted(Path(location), store_type, password)
    except (OSError, ValueError) as error:
        # It is safe to show these texts: they name files and formats, never their content.
        reason = getattr(error, "strerror", None) or str(error)
        raise given.error(f"the store cannot be used reason={reason!r}", _JAAS) from error
    return {HTTPS_CA_PEM: trusted.decode("ascii")}
