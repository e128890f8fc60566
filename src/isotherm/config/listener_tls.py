"""The TLS of a listener: its certificate and key, and the check of client certificates.

Key material is in a store (`config.key_stores`), or as PEM in the configuration itself. It is read
at the start, and again while the broker runs (see Server.renew_keys).
Source: Kafka SslConfigs, DefaultSslEngineFactory.
"""

from __future__ import annotations

import ssl
import tempfile
from pathlib import Path
from typing import NamedTuple

from isotherm.config.broker import BrokerConfig
from isotherm.config.cipher_suites import restrict_suites
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
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
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
