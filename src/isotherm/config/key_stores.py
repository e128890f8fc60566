"""Reads keys and certificates from Kafka's stores as PEM, the form that OpenSSL and librdkafka
need.

Stores are PEM, PKCS12 or JKS. As in Java, the types PKCS12 and JKS read both formats, because since
Java 9 keytool writes PKCS12 even into files named `.jks`. Errors are a ValueError, which describes
the fault and never shows the content.

    JKS   0xFEEDFEED int32 | version int32 | count int32 | entries | SHA-1
    entry tag int32 (1 key, 2 certificate) | alias utf | time int64 |
          of a key: size int32, data, count int32, certificates | of a certificate: one
    certificate   type utf (version 2) | size int32, DER

JKS is parsed here because its library, pyjks, has had no release since 2020. Source: OpenJDK
JavaKeyStore, KeyProtector.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_der_private_key,
    load_pem_private_key,
    pkcs12,
)

from isotherm.config.secret_files import warn_of_readers

PEM = "PEM"
PKCS12 = "PKCS12"
JKS = "JKS"
STORE_TYPES = (PEM, PKCS12, JKS)

_JKS_MAGIC = b"\xfe\xed\xfe\xed"
_JCEKS_MAGIC = b"\xce\xce\xce\xce"
_PEM_START = b"-----BEGIN"
_JKS_HEADER = struct.Struct(">4sii")
_INT = struct.Struct(">i")
_TAG_AND_ALIAS_SIZE = struct.Struct(">iH")
_TIME_SIZE = 8
_DIGEST_SIZE = 20
_KEY_TAG = 1
_CERTIFICATE_TAG = 2
_JKS_WHITENER = b"Mighty Aphrodite"
# A protected key is in a SEQUENCE of an algorithm and an OCTET STRING.
_DER_SEQUENCE, _DER_OCTETS = 0x30, 0x04


class KeyPair(NamedTuple):
    """A private key without a password, and the chain that begins with its certificate, in PEM."""

    key: bytes
    chain: bytes

    def __repr__(self) -> str:
        return "KeyPair([hidden])"


class _Contents(NamedTuple):
    """The content of a store: certificates in DER, and the key in PEM."""

    key: bytes | None
    chain: list[bytes]
    trusted: list[bytes]


def pem_key_pair(key: bytes, chain: bytes, password: str | None) -> KeyPair:
    """The pair in two PEM texts, which may be the same one.

    `password` is that of an encrypted key.
    """
    try:
        private = load_pem_private_key(key, None if password is None else password.encode())
    except TypeError as error:  # one password too few, or one too many
        has = "a password" if password is None else "no password"
        raise ValueError(f"the private key has {has} key=ssl.key.password") from error
    return KeyPair(_key_pem(private), pem_certificates(chain))


def pem_certificates(text: bytes) -> bytes:
    """The certificates of a PEM text, without anything else. Raises ValueError if there is none."""
    certificates = x509.load_pem_x509_certificates(text)
    return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in certificates)


def read_key_pair(
    path: Path, store_type: str, password: str | None, key_password: str | None = None
) -> KeyPair:
    """The private key of a store, with its certificates. `key_password` defaults to the store's
    password. Logs a warning if a PEM key has no password and other users may read the file. Raises
    OSError and ValueError."""
    with _named(path):
        data = path.read_bytes()
        if store_type == PEM:
            if key_password is None:
                warn_of_readers(path)
            _check_pem(data)
            return pem_key_pair(data, data, key_password)
        contents = _contents(data, password, key_password or password)
        if contents.key is None or not contents.chain:
            raise ValueError("the store has no private key with a certificate that it can open")
        return KeyPair(contents.key, _in_pem(contents.chain))


def read_trusted(path: Path, store_type: str, password: str | None) -> bytes:
    """All certificates of a store, in PEM. Raises OSError and ValueError."""
    with _named(path):
        data = path.read_bytes()
        if store_type == PEM:
            _check_pem(data)
            return pem_certificates(data)
        contents = _contents(data, password, None)
        if not contents.trusted:
            raise ValueError("the store has no certificate")
        return _in_pem(contents.trusted)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Add the file to a ValueError of the block: an OSError names it already."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{error} path={path}") from error


def _check_pem(data: bytes) -> None:
    if _PEM_START not in data:
        raise ValueError("it is not PEM: set the store's type to PKCS12 or JKS")


def _contents(data: bytes, password: str | None, key_password: str | None) -> _Contents:
    if data.startswith(_JKS_MAGIC):
        try:
            return _read_jks(data, password, key_password)
        except (struct.error, IndexError) as error:
            raise ValueError("the JKS store is damaged") from error
    if data.startswith(_JCEKS_MAGIC):
        raise ValueError(
            "a JCEKS store is not supported: keytool -importkeystore makes a PKCS12 of it"
        )
    if data.lstrip().startswith(_PEM_START):
        raise ValueError("it is PEM: set the store's type to PEM")
    try:
        store = pkcs12.load_pkcs12(data, None if password is None else password.encode())
    except ValueError as error:
        why = "it needs a password" if password is None else "its password is another"
        raise ValueError(f"the store cannot be opened: {why}, or it is no PKCS12 store") from error
    own = [] if store.cert is None else [store.cert.certificate]
    others = [cert.certificate for cert in store.additional_certs]
    chain = [certificate.public_bytes(Encoding.DER) for certificate in own + others]
    return _Contents(None if store.key is None else _key_pem(store.key), chain, chain)


# ---- JKS


def _read_jks(data: bytes, password: str | None, key_password: str | None) -> _Contents:
    if password is not None:
        _check_digest(data, password)
    _, version, count = _JKS_HEADER.unpack_from(data)
    if version not in (1, 2):
        raise ValueError(f"a JKS store of version 1 or 2 is expected version={version}")
    contents = _Contents(None, [], [])
    position = _JKS_HEADER.size
    for _ in range(count):
        tag, alias_size = _TAG_AND_ALIAS_SIZE.unpack_from(data, position)
        position += _TAG_AND_ALIAS_SIZE.size + alias_size + _TIME_SIZE
        if tag == _KEY_TAG:
            protected, position = _read_sized(data, position)
            (chain_length,) = _INT.unpack_from(data, position)
            position += _INT.size
            chain = []
            for _ in range(chain_length):
                certificate, position = _read_certificate(data, position, version)
                chain.append(certificate)
            # As in Java, the first key counts. A trust store is read without a key's password, so
            # its keys are skipped.
            if contents.key is None and key_password is not None:
                contents = contents._replace(key=_unprotected(protected, key_password), chain=chain)
        elif tag == _CERTIFICATE_TAG:
            certificate, position = _read_certificate(data, position, version)
            contents.trusted.append(certificate)
        else:
            raise ValueError("the JKS store is damaged")
    return contents


def _check_digest(data: bytes, password: str) -> None:
    content, digest = data[:-_DIGEST_SIZE], data[-_DIGEST_SIZE:]
    expected = _sha1(password.encode("utf-16-be"), _JKS_WHITENER, content)
    if not hmac.compare_digest(expected, digest):
        raise ValueError("the password of the JKS store is wrong, or the store is damaged")


def _read_certificate(data: bytes, position: int, version: int) -> tuple[bytes, int]:
    if version == 2:
        (size,) = struct.unpack_from(">H", data, position)
        position += 2 + size
    return _read_sized(data, position)


def _read_sized(data: bytes, position: int) -> tuple[bytes, int]:
    (size,) = _INT.unpack_from(data, position)
    position += _INT.size
    if not 0 <= size <= len(data) - position:
        raise ValueError("the JKS store is damaged")
    return data[position : position + size], position + size


def _unprotected(protected: bytes, password: str) -> bytes:
    """The key in PEM.

    It is protected as: salt | key XOR a stream of SHA-1 | SHA-1 of password and key.
    """
    secret = password.encode("utf-16-be")
    inner, _ = _der_value(protected, 0, _DER_SEQUENCE)
    _, position = _der_value(inner, 0, _DER_SEQUENCE)
    octets, _ = _der_value(inner, position, _DER_OCTETS)
    block, encrypted, digest = (
        octets[:_DIGEST_SIZE],
        octets[_DIGEST_SIZE:-_DIGEST_SIZE],
        octets[-_DIGEST_SIZE:],
    )
    stream = bytearray()
    while len(stream) < len(encrypted):
        block = _sha1(secret, block)
        stream += block
    plain = bytes(byte ^ mask for byte, mask in zip(encrypted, stream, strict=False))
    if not hmac.compare_digest(_sha1(secret, plain), digest):
        raise ValueError("the password of the key in the JKS store is wrong")
    return _key_pem(load_der_private_key(plain, None))


def _der_value(data: bytes, position: int, expected_tag: int) -> tuple[bytes, int]:
    """The content of one DER value, and the position after it."""
    tag, size, start = data[position], data[position + 1], position + 2
    if size & 0x80:
        count = size & 0x7F
        size, start = int.from_bytes(data[start : start + count], "big"), start + count
    if tag != expected_tag or start + size > len(data):
        raise ValueError("the key in the JKS store is damaged")
    return data[start : start + size], start + size


def _sha1(*parts: bytes) -> bytes:
    # SHA-1 is the format's algorithm. It is used only to read, never to protect anything.
    return hashlib.sha1(b"".join(parts), usedforsecurity=False).digest()


# ---- PEM


def _in_pem(certificates: Iterable[bytes]) -> bytes:
    loaded = (x509.load_der_x509_certificate(certificate) for certificate in certificates)
    return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in loaded)


def _key_pem(key: object) -> bytes:
    encode = getattr(key, "private_bytes", None)
    if encode is None:
        raise ValueError("a private key is expected")
    encoded: bytes = encode(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return encoded
