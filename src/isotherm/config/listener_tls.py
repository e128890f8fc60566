"""The TLS of a listener: its certificate and key, and the check of client certificates.

Key material is in a store (`config.key_stores`), or as PEM in the configuration itself. It is read
at the start, and again while the broker runs (see Server.renew_keys).
Source: Kafka SslConfigs, DefaultSslEngineFactory.
"""

from __future__ import annotations

import re
import ssl
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from isotherm.config.bounded_tls import BoundedTlsContext
from isotherm.config.broker import BrokerConfig
from isotherm.config.listener import Listener, SecurityProtocol
from isotherm.config.security import LISTENER_PREFIX, SecurityConfig
from isotherm.errors import ConfigError
from isotherm.types import TimestampMs

_WITH_TLS = (SecurityProtocol.SSL, SecurityProtocol.SASL_SSL)
_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


class KeyMaterial(NamedTuple):
    """PEM texts: a private key without a password, the certificate chain that begins with its
    certificate, and the trusted certificates for checking clients, empty if clients are not
    checked."""

    key: bytes
    chain: bytes
    trusted: bytes = b""

    def __repr__(self) -> str:
        return "KeyMaterial([hidden])"


class ListenerTls(NamedTuple):
    """The TLS context of a listener, and the key material that it was made from."""

    context: ssl.SSLContext
    material: KeyMaterial


def check_key_material(before: BrokerConfig, after: BrokerConfig) -> None:
    """Raise ConfigError for a listener whose changed keys or certificates cannot be used."""
    for listener in after.listener_layout.brokers:
        if before.security_of(listener.name) != after.security_of(listener.name):
            listener_tls(after, listener)


def listener_tls(config: BrokerConfig, listener: Listener) -> ListenerTls | None:
    """The TLS of a listener; None without TLS. Raises ConfigError, whose text has no secret, if it
    cannot be served."""
    if listener.protocol not in _WITH_TLS:
        return None
    security = config.security_of(listener.name)
    context = BoundedTlsContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        material = _key_material(security)
        _load_key(context, material)
        context.verify_mode = _client_auth(config, listener, security)
        if context.verify_mode != ssl.CERT_NONE:
            material = material._replace(trusted=trusted_certificates(security))
            context.load_verify_locations(cadata=material.trusted.decode("ascii"))
    except (OSError, ValueError) as error:
        # The texts of OpenSSL and Python name files and formats, never their content.
        raise ConfigError(
            f"TLS of a listener cannot be set up listener={listener} reason='{error}'"
        ) from error
    # A client of TLS 1.2 could ask for one handshake after the other in its connection, each as
    # expensive as the first. OpenSSL refuses that by itself from 3.0 on.
    context.options |= ssl.OP_NO_RENEGOTIATION
    versions = [_VERSIONS[name] for name in security.ssl_enabled_protocols]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    if security.ssl_cipher_suites:
        restrict_suites(context, security.ssl_cipher_suites, versions)
    return ListenerTls(context, material)


def certificate_end(material: KeyMaterial, now_ms: TimestampMs) -> str | None:
    """The time at which the listener's own certificate ended; None if it has not."""
    from cryptography import x509

    own, *_ = x509.load_pem_x509_certificates(material.chain)
    end = own.not_valid_after_utc
    return end.isoformat() if end.timestamp() * 1000 <= now_ms else None


def _client_auth(
    config: BrokerConfig, listener: Listener, security: SecurityConfig
) -> ssl.VerifyMode:
    """The check of client certificates. For SASL_SSL only the listener's own ssl.client.auth
    requests certificates (KIP-684)."""
    own_key = f"{LISTENER_PREFIX}{listener.name.lower()}.ssl.client.auth"
    is_own = own_key in config.explicit or own_key in config.dynamic_for_this
    if listener.protocol is SecurityProtocol.SASL_SSL and not is_own:
        return ssl.CERT_NONE
    return _CLIENT_AUTH[security.ssl_client_auth]


def _load_key(context: ssl.SSLContext, material: KeyMaterial) -> None:
    # The ssl module reads keys only from files. Only this user can read this file, and it is
    # removed at once.
    with tempfile.NamedTemporaryFile() as file:
        file.write(material.key + b"\n" + material.chain)
        file.flush()
        context.load_cert_chain(file.name)


# `config.key_stores` and its libraries are imported only for a listener with keys, since most
# brokers have none.
def _key_material(security: SecurityConfig) -> KeyMaterial:
    from isotherm.config.key_stores import PEM, pem_key_pair, read_key_pair

    _check_type(security.ssl_keystore_type, "key")
    key_password = security.ssl_key_password
    if security.ssl_keystore_type == PEM and security.ssl_keystore_key is not None:
        chain = security.ssl_keystore_certificate_chain or ""
        pair = pem_key_pair(security.ssl_keystore_key.encode(), chain.encode(), key_password)
    else:
        path = _path(security.ssl_keystore_location, "ssl.keystore.location")
        store_password = security.ssl_keystore_password
        pair = read_key_pair(path, security.ssl_keystore_type, store_password, key_password)
    return KeyMaterial(pair.key, pair.chain)


def trusted_certificates(security: SecurityConfig) -> bytes:
    """The trusted certificates in PEM. Raises ConfigError, OSError or ValueError."""
    from isotherm.config.key_stores import PEM, pem_certificates, read_trusted

    _check_type(security.ssl_truststore_type, "trust")
    inline = security.ssl_truststore_certificates
    if security.ssl_truststore_type == PEM and inline is not None:
        return pem_certificates(inline.encode())
    path = _path(security.ssl_truststore_location, "ssl.truststore.location")
    return read_trusted(path, security.ssl_truststore_type, security.ssl_truststore_password)


def _check_type(store_type: str, kind: str) -> None:
    from isotherm.config.key_stores import STORE_TYPES

    if store_type not in STORE_TYPES:
        raise ConfigError(
            f"type of a {kind} store is not supported key=ssl.{kind}store.type"
            f" value={store_type} served={','.join(STORE_TYPES)}"
        )


def _path(location: str | None, key: str) -> Path:
    if location is None:
        raise ValueError(f"a location is needed key={key}")
    return Path(location)


TLS_1_3_SUITES = frozenset(
    {"TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256"}
)
_KEY = "ssl.cipher.suites"
_OF_TLS_1_2 = re.compile(
    r"TLS_(?P<exchange>ECDHE_ECDSA|ECDHE_RSA|DHE_RSA|RSA)_WITH_(?:"
    r"(?P<chacha>CHACHA20_POLY1305)_SHA256|AES_(?P<bits>128|256)_(?P<mode>GCM|CBC)_(?P<hash>SHA\d*))"
)


# Cipher suites by their names in Java and IANA, which ssl.cipher.suites uses. A rule derives
# OpenSSL's names, for the suites that both Java and OpenSSL have. Python's ssl module cannot select
# among the suites of TLS 1.3: either all three are offered, or, if none is named, no TLS 1.3.


def openssl_name(suite: str) -> str | None:
    """OpenSSL's name of a TLS 1.2 suite; None for an unknown suite."""
    match = _OF_TLS_1_2.fullmatch(suite)
    if match is None:
        return None
    parts = [] if match["exchange"] == "RSA" else match["exchange"].split("_")
    if match["chacha"]:
        parts += match["chacha"].split("_")
    else:
        parts.append(f"AES{match['bits']}")
        if match["mode"] == "GCM":
            parts.append("GCM")
        parts.append(match["hash"])
    return "-".join(parts)


def restrict_suites(
    context: ssl.SSLContext, suites: Sequence[str], versions: Collection[ssl.TLSVersion]
) -> None:
    """Offer only these suites, and only those of `versions` that have one of them.

    Raises ConfigError, which names the suites that cannot be offered or cannot be left out.
    """
    of_1_3 = TLS_1_3_SUITES & set(suites)
    names = {suite: openssl_name(suite) for suite in suites if suite not in TLS_1_3_SUITES}
    usable = set(versions)
    if not of_1_3:
        usable.discard(ssl.TLSVersion.TLSv1_3)
    elif of_1_3 != TLS_1_3_SUITES and ssl.TLSVersion.TLSv1_3 in usable:
        raise ConfigError(
            f"TLS 1.3 is offered with all of its suites, or not at all key={_KEY}"
            f" missing={','.join(sorted(TLS_1_3_SUITES - of_1_3))}"
        )
    if names:
        openssl_names = [name for name in names.values() if name is not None]
        offered = _offer(context, openssl_names)
        unknown = sorted(suite for suite, name in names.items() if name not in offered)
        if unknown:
            raise ConfigError(
                f"cipher suites are not known, or not supported here key={_KEY}"
                f" suites={','.join(unknown)} openssl='{ssl.OPENSSL_VERSION}'"
            )
    else:
        usable.discard(ssl.TLSVersion.TLSv1_2)
    if not usable:
        raise ConfigError(
            f"no protocol of ssl.enabled.protocols has one of the suites key={_KEY}"
            f" value={','.join(suites)}"
        )
    context.minimum_version, context.maximum_version = min(usable), max(usable)


def _offer(context: ssl.SSLContext, names: Sequence[str]) -> set[str]:
    """Offer suites; returns the names of those that OpenSSL has."""
    try:
        context.set_ciphers(":".join(names))
    except ssl.SSLError:
        return set()
    return {str(cipher["name"]) for cipher in context.get_ciphers()}
