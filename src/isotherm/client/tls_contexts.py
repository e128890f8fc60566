"""TLS contexts of a client: for brokers and controllers, and for HTTPS."""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isotherm.config.client_security import CA_PEM, CHAIN_PEM, ENDPOINT_IDENTIFICATION, KEY_PEM
from isotherm.errors import ConfigError

SYSTEM_AUTHORITIES = "probe"
"""librdkafka's word, in place of a file, for the system's certificate authorities."""
CA_LOCATION = "ssl.ca.location"
KEY_LOCATION = "ssl.key.location"
CHAIN_LOCATION = "ssl.certificate.location"
KEY_PASSWORD = "ssl.key.password"  # noqa: S105  a key's name

_VERIFICATION = "enable.ssl.certificate.verification"


def https_context(*, pem: str | None = None, location: str | None = None) -> ssl.SSLContext:
    """Trusts the authorities in `pem` and in `location`, a file or folder; the system's if both are
    None. Raises OSError and ValueError for authorities that cannot be read."""
    if location is None and pem is None:
        return ssl.create_default_context()
    # Private authorities need no more than with Java and librdkafka. VERIFY_X509_STRICT, which the
    # default context of Python 3.13 sets, refuses one without key usage.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _trust(context, pem, location)
    return context


def node_context(properties: Mapping[str, Any]) -> ssl.SSLContext:
    """The context that librdkafka's properties describe. Raises ConfigError, without secrets, for
    files that cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = properties.get(ENDPOINT_IDENTIFICATION, "https") != "none"
    if str(properties.get(_VERIFICATION, "true")).lower() == "false":
        _trust_anyone(context)
    pem = properties.get(CA_PEM)
    location = properties.get(CA_LOCATION, SYSTEM_AUTHORITIES) if pem is None else None
    try:
        if location == SYSTEM_AUTHORITIES:
            context.load_default_certs()
        else:
            _trust(context, pem, location)
        _load_key(context, properties)
    except (OSError, ValueError) as error:
        # OpenSSL's and Python's texts name files and formats, never their content.
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"TLS of a client cannot be set up reason={reason!r}") from error
    return context


def unverified_context() -> ssl.SSLContext:
    """Trusts anyone. Only for finding out whether a port speaks TLS: send nothing over it."""
    context = ssl.create_default_context()
    _trust_anyone(context)
    return context


def _trust_anyone(context: ssl.SSLContext) -> None:
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE


def _trust(context: ssl.SSLContext, pem: object, location: object) -> None:
    path = None if location is None else str(location)
    is_folder = path is not None and Path(path).is_dir()
    context.load_verify_locations(
        cafile=None if is_folder else path,
        capath=path if is_folder else None,
        cadata=None if pem is None else str(pem),
    )


def _load_key(context: ssl.SSLContext, properties: Mapping[str, Any]) -> None:
    key = _pem(properties, KEY_PEM, KEY_LOCATION)
    chain = _pem(properties, CHAIN_PEM, CHAIN_LOCATION)
    if key is None or chain is None:
        return
    # The ssl module reads keys only from files. Only this user can read this one, and it is deleted
    # at once.
    with tempfile.NamedTemporaryFile() as file:
        file.write(key + b"\n" + chain)
        file.flush()
        # The password is given even if it is empty: with None, OpenSSL would ask for the password
        # of an encrypted key on the terminal.
        context.load_cert_chain(file.name, password=str(properties.get(KEY_PASSWORD, "")))


def _pem(properties: Mapping[str, Any], inline_key: str, location_key: str) -> bytes | None:
    if (text := properties.get(inline_key)) is not None:
        return str(text).encode()
    location = properties.get(location_key)
    return None if location is None else Path(str(location)).read_bytes()
