"""Translates Kafka's security properties of clients to librdkafka's. No other module does that.

A file for Kafka's tools (`--command-config`) names a login module and Java's key stores. librdkafka
needs a user, a password and PEM. The result has librdkafka's names only, so translating it again
changes nothing. `isotherm.client.node_security` makes Isotherm's own connections from it. All
other properties are passed on.

    security.protocol                    the same; keys of TLS or SASL are refused if it makes them
                                         useless
    sasl.mechanism, sasl.jaas.config     sasl.mechanism, sasl.username, sasl.password
    sasl.oauthbearer.*                   see `isotherm.config.token_login`
    ssl.truststore.*                     ssl.ca.pem
    ssl.keystore.*, ssl.key.password     ssl.key.pem, ssl.certificate.pem
    ssl.endpoint.identification.algorithm   https, or none for Kafka's empty text

Source: Kafka CommonClientConfigs, SaslConfigs, SslConfigs, DefaultSslEngineFactory; librdkafka
CONFIGURATION.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isotherm.config.given_properties import GivenProperties
from isotherm.config.jaas import PLAIN_MODULE, SCRAM_MODULE, parse_login_module
from isotherm.config.layers import read_properties
from isotherm.config.listener import SecurityProtocol
from isotherm.config.secret_files import warn_of_readers
from isotherm.config.security import is_secret
from isotherm.config.token_login import (
    KAFKA_TOKEN_KEYS,
    LOGIN_HANDLER,
    OAUTHBEARER,
    TOKEN_HANDLER,
    TOKEN_PREFIXES,
    token_login,
)
from isotherm.errors import ConfigError

SECURITY_PROTOCOL = "security.protocol"
MECHANISM = "sasl.mechanism"
USER = "sasl.username"
PASSWORD = "sasl.password"  # noqa: S105  a key's name
CA_PEM = "ssl.ca.pem"
KEY_PEM = "ssl.key.pem"
CHAIN_PEM = "ssl.certificate.pem"
ENDPOINT_IDENTIFICATION = "ssl.endpoint.identification.algorithm"

PLAIN = "PLAIN"
PASSWORD_MECHANISMS = (PLAIN, "SCRAM-SHA-256", "SCRAM-SHA-512")
MECHANISMS = (*PASSWORD_MECHANISMS, OAUTHBEARER)
_MODULES = {name: PLAIN_MODULE if name == PLAIN else SCRAM_MODULE for name in PASSWORD_MECHANISMS}

_JAAS = "sasl.jaas.config"
_MECHANISM_ALIAS = "sasl.mechanisms"  # librdkafka's older name
_TRUSTSTORE = "ssl.truststore."
_KEYSTORE = "ssl.keystore."
_KEY_PASSWORD = "ssl.key.password"  # noqa: S105
_PROTOCOLS = "ssl.enabled.protocols"
_SERVED_PROTOCOLS = frozenset({"TLSv1.2", "TLSv1.3"})
# librdkafka's names of the properties that stand for Kafka's stores.
_OTHER_TRUST = ("ssl.ca.location", CA_PEM)
_OTHER_KEYS = ("ssl.key.location", KEY_PEM, "ssl.certificate.location", CHAIN_PEM)
_KAFKA_KEYS = frozenset(
    {_JAAS, _PROTOCOLS, "ssl.protocol", *KAFKA_TOKEN_KEYS}
    | {_TRUSTSTORE + suffix for suffix in ("type", "location", "password", "certificates")}
    | {
        _KEYSTORE + suffix
        for suffix in ("type", "location", "password", "key", "certificate.chain")
    }
)
# Kafka's properties that only a Java virtual machine can use.
_OF_JAVA = (
    "sasl.client.callback.handler.class",
    "sasl.login.",
    "security.providers",
    "ssl.engine.factory.class",
    "ssl.keymanager.algorithm",
    "ssl.provider",
    "ssl.secure.random.implementation",
    "ssl.trustmanager.algorithm",
)


class ClientProperties(dict[str, Any]):
    """Properties whose `repr` shows no secrets. `place` names the file that they come from."""

    def __init__(self, properties: Mapping[str, Any], place: str = "") -> None:
        super().__init__(properties)
        self.place = place

    def __repr__(self) -> str:
        return repr({name: "[hidden]" if is_secret(name) else self[name] for name in self})


def read_client_properties(path: Path) -> ClientProperties:
    """The properties of a file, not translated. Logs a warning if the file has passwords and other
    users may read it.

    Raises ConfigError, which names the file.
    """
    texts = read_properties(path)
    if any(is_secret(text) for text in texts):
        warn_of_readers(path)
    return ClientProperties(texts, f"file={path}")


def librdkafka_properties(texts: Mapping[str, Any]) -> ClientProperties:
    """Translate Kafka's names in `texts` to librdkafka's, and read key and trust stores.
    Idempotent.

    Raises ConfigError, which names the key and the `place` of ClientProperties, and shows no
    secret.
    """
    given = GivenProperties(texts, getattr(texts, "place", ""))
    protocol = _protocol(given)
    _check_effect(given, protocol)
    translated = {name: value for name, value in texts.items() if name not in _KAFKA_KEYS}
    if given.text(SECURITY_PROTOCOL) is not None:
        translated[SECURITY_PROTOCOL] = protocol.name
    if _with_sasl(protocol):
        translated |= _login(given)
    if _with_tls(protocol):
        translated |= _tls(given)
        if given.text(_KEYSTORE + "location") is not None or given.text(_KEYSTORE + "key"):
            # The password was that of the store. The key that is passed on is not encrypted.
            translated.pop(_KEY_PASSWORD, None)
    return ClientProperties(translated, given.place)


def _with_sasl(protocol: SecurityProtocol) -> bool:
    return protocol in (SecurityProtocol.SASL_PLAINTEXT, SecurityProtocol.SASL_SSL)


def _with_tls(protocol: SecurityProtocol) -> bool:
    return protocol in (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)


def _protocol(given: GivenProperties) -> SecurityProtocol:
    text = given.text(SECURITY_PROTOCOL) or SecurityProtocol.PLAINTEXT.name
    try:
        return SecurityProtocol[text.strip().upper()]
    except KeyError:
        expected = ",".join(protocol.name for protocol in SecurityProtocol)
        raise given.error(
            f"no such protocol value={text} expected_one_of={expected}", SECURITY_PROTOCOL
        ) from None


def _check_effect(given: GivenProperties, protocol: SecurityProtocol) -> None:
    """Raise ConfigError for keys of TLS or SASL that the protocol does not use. A user with a
    password that is never sent would believe the connection to be safe."""
    for key in given.texts:
        is_tokens = key == LOGIN_HANDLER and given.text(key) == TOKEN_HANDLER
        if key.startswith(_OF_JAVA) and not is_tokens:
            raise given.error("only Java's clients have such a setting", key)
        needed = {"sasl.": _with_sasl(protocol), "ssl.": _with_tls(protocol)}
        if not needed.get(key[: key.find(".") + 1], True):
            raise given.error(
                f"the key has no effect with {SECURITY_PROTOCOL}={protocol.name}",
                key,
                f"set {SECURITY_PROTOCOL} to {'SASL_SSL' if key.startswith('sasl') else 'SSL'}",
            )


# ---- SASL


def _login(given: GivenProperties) -> dict[str, str]:
    mechanism = given.text(MECHANISM) or given.text(_MECHANISM_ALIAS)
    if mechanism is None:
        raise given.error(
            "the mechanism of the login is not set", MECHANISM, f"one of {', '.join(MECHANISMS)}"
        )
    if mechanism == OAUTHBEARER:
        return token_login(given)
    return _password_login(given, mechanism)


def _password_login(given: GivenProperties, mechanism: str) -> dict[str, str]:
    of_tokens = (key for key in given.texts if key.startswith(TOKEN_PREFIXES))
    if (other := next(of_tokens, None)) is not None:
        raise given.error(f"the key has no effect with {MECHANISM}={mechanism}", other)
    jaas = given.text(_JAAS)
    if jaas is None:
        if mechanism in PASSWORD_MECHANISMS and (
            given.text(USER) is None or given.text(PASSWORD) is None
        ):
            raise given.error("the login has no user and password", _JAAS)
        return {}
    if (other := given.any_of((USER, PASSWORD))) is not None:
        raise given.error(f"user and password are given twice other_key={other}", _JAAS)
    if mechanism not in PASSWORD_MECHANISMS:
        raise given.error(
            f"the mechanism is not supported value={mechanism}"
            f" expected_one_of={','.join(MECHANISMS)}",
            MECHANISM,
        )
    module = parse_login_module(jaas, given.place)
    if module.name != _MODULES[mechanism]:
        raise given.error(
            f"the login module is not the mechanism's mechanism={mechanism} found={module.name}"
            f" expected={_MODULES[mechanism]}",
            _JAAS,
        )
    for option in ("username", "password"):
        if not module.options.get(option):
            raise given.error(f"the login module has no option {option}", _JAAS)
    if module.options.get("tokenauth", "false").lower() == "true":
        raise given.error("delegation tokens are not supported option=tokenauth", _JAAS)
    return {USER: module.options["username"], PASSWORD: module.options["password"]}


# ---- TLS


def _tls(given: GivenProperties) -> dict[str, str]:
    versions = given.text(_PROTOCOLS)
    if versions is not None and {part.strip() for part in versions.split(",")} != _SERVED_PROTOCOLS:
        raise given.error(
            f"a client offers TLSv1.2 and TLSv1.3, neither more nor less value={versions}",
            _PROTOCOLS,
            "set ssl.enabled.protocols of the broker",
        )
    translated = {**_trust(given), **_key_pair(given)}
    algorithm = given.text(ENDPOINT_IDENTIFICATION)
    if algorithm is not None:
        lowered = algorithm.strip().lower() or "none"
        if lowered not in ("https", "none"):
            raise given.error(
                f"no such algorithm value={algorithm} expected_one_of=https, nothing",
                ENDPOINT_IDENTIFICATION,
            )
        translated[ENDPOINT_IDENTIFICATION] = lowered
    return translated


def _trust(given: GivenProperties) -> dict[str, str]:
    location_key, inline_key = f"{_TRUSTSTORE}location", f"{_TRUSTSTORE}certificates"
    location, inline = given.text(location_key), given.text(inline_key)
    if location is None and inline is None:
        return {}
    if location is not None and inline is not None:
        raise given.error(f"certificates are given twice other_key={inline_key}", location_key)
    key = location_key if inline is None else inline_key
    if (other := given.any_of(_OTHER_TRUST)) is not None:
        raise given.error(f"certificates are given twice other_key={other}", key)
    from isotherm.config.key_stores import PEM, pem_certificates, read_trusted

    store_type = _store_type(given, _TRUSTSTORE)
    try:
        if inline is not None:
            _check_is_pem(given, store_type, _TRUSTSTORE, inline_key)
            trusted = pem_certificates(inline.encode())
        else:
            assert location is not None
            password = given.text(f"{_TRUSTSTORE}password")
            if password is not None and store_type == PEM:
                raise given.error("a PEM trust store has no password", f"{_TRUSTSTORE}password")
            trusted = read_trusted(Path(location), store_type, password)
    except (OSError, ValueError) as error:
        raise _unusable(given, key, location, error) from error
    return {CA_PEM: trusted.decode("ascii")}


def _key_pair(given: GivenProperties) -> dict[str, str]:
    location_key, inline_key = f"{_KEYSTORE}location", f"{_KEYSTORE}key"
    location, inline = given.text(location_key), given.text(inline_key)
    if location is None and inline is None:
        return {}
    if location is not None and inline is not None:
        raise given.error(f"the private key is given twice other_key={inline_key}", location_key)
    key = location_key if inline is None else inline_key
    if (other := given.any_of(_OTHER_KEYS)) is not None:
        raise given.error(f"the private key is given twice other_key={other}", key)
    from isotherm.config.key_stores import PEM, pem_key_pair, read_key_pair

    store_type = _store_type(given, _KEYSTORE)
    key_password = given.text(_KEY_PASSWORD)
    try:
        if inline is not None:
            _check_is_pem(given, store_type, _KEYSTORE, inline_key)
            chain = given.text(f"{_KEYSTORE}certificate.chain")
            if chain is None:
                raise given.error(
                    "the private key has no certificate", f"{_KEYSTORE}certificate.chain"
                )
            pair = pem_key_pair(inline.encode(), chain.encode(), key_password)
        else:
            assert location is not None
            password = given.text(f"{_KEYSTORE}password")
            if password is not None and store_type == PEM:
                raise given.error(
                    "a PEM key store has no password", f"{_KEYSTORE}password", _KEY_PASSWORD
                )
            pair = read_key_pair(Path(location), store_type, password, key_password)
    except (OSError, ValueError, TypeError) as error:
        # cryptography raises TypeError for a password that is missing or superfluous.
        raise _unusable(given, key, location, error) from error
    return {KEY_PEM: pair.key.decode("ascii"), CHAIN_PEM: pair.chain.decode("ascii")}


def _store_type(given: GivenProperties, prefix: str) -> str:
    from isotherm.config.key_stores import JKS, STORE_TYPES

    store_type = given.text(f"{prefix}type") or JKS
    if store_type.upper() not in STORE_TYPES:
        raise given.error(
            f"unknown store type value={store_type} expected_one_of={','.join(STORE_TYPES)}",
            f"{prefix}type",
        )
    return store_type.upper()


def _check_is_pem(given: GivenProperties, store_type: str, prefix: str, key: str) -> None:
    if store_type != "PEM":
        raise given.error(f"the key is for {prefix}type=PEM alone type={store_type}", key)


def _unusable(
    given: GivenProperties, key: str, location: str | None, error: Exception
) -> ConfigError:
    # It is safe to show these texts: OpenSSL, cryptography and Python name files and formats, never
    # their content.
    reason = getattr(error, "strerror", None) or str(error)
    path = "" if location is None else f" path={location}"
    return given.error(f"the store cannot be opened{path} reason={reason!r}", key)
