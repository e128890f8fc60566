"""Certificates of a test's own authority, in the stores that Kafka's users have."""

from __future__ import annotations

import datetime
import ipaddress
import subprocess
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import NameOID

NOW = datetime.datetime.now(datetime.UTC)
YEAR = datetime.timedelta(days=365)


class Issued(NamedTuple):
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
    issuers: bytes = b""

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    @property
    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def chain_pem(self) -> bytes:
        """The certificate and its intermediate certificates, without the authority's."""
        return self.certificate_pem + self.issuers

    def write_pem(self, path: Path, password: str | None = None) -> Path:
        """Write key and chain to one file, readable by its owner alone."""
        encryption = (
            NoEncryption() if password is None else BestAvailableEncryption(password.encode())
        )
        key = self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
        path.touch(0o600)
        path.write_bytes(key + self.chain_pem)
        return path

    def write_pkcs12(self, path: Path, password: str) -> Path:
        path.touch(0o600)
        path.write_bytes(
            pkcs12.serialize_key_and_certificates(
                b"own",
                self.key,
                self.certificate,
                x509.load_pem_x509_certificates(self.issuers) if self.issuers else None,
                BestAvailableEncryption(password.encode()),
            )
        )
        return path


def issue(
    name: str,
    issuer: Issued | None = None,
    *,
    host: str = "localhost",
    is_authority: bool = False,
    ended: bool = False,
    with_rsa: bool = False,
) -> Issued:
    """A certificate with CN=`name` and O=Example, for `host` and 127.0.0.1. Without an issuer it is
    an authority's. One that has `ended` was valid until a year ago."""
    key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey = (
        rsa.generate_private_key(65537, 2048)
        if with_rsa
        else ec.generate_private_key(ec.SECP256R1())
    )
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Example"),
            x509.NameAttribute(NameOID.COMMON_NAME, name),
        ]
    )
    is_authority = is_authority or issuer is None
    names: list[x509.GeneralName] = [
        x509.DNSName(host),
        x509.IPAddress(ipaddress.IPv4Address("127.0.0.1")),
    ]
    signer = key if issuer is None else issuer.key
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.certificate.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - 2 * YEAR)
        .not_valid_after(NOW - YEAR if ended else NOW + YEAR)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        # Java's verification asks for both identifiers in a chain.
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False
        )
    )
    between = b""
    if issuer is not None and issuer.certificate.issuer != issuer.certificate.subject:
        between = issuer.chain_pem
    return Issued(builder.sign(signer, hashes.SHA256()), key, between)


def keytool(*arguments: str | Path) -> None:
    subprocess.run(["keytool", *arguments], check=True, capture_output=True, timeout=300)
