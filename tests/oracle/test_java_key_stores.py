"""Stores that Java's keytool wrote, in both of its formats, read as PEM."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from isotherm.config.key_stores import JKS, PKCS12, read_key_pair, read_trusted
from tests.support.certificates import Issued, issue, keytool

STORE_PASSWORD, KEY_PASSWORD = "st0re-pass", "k3y-pass"
pytestmark = pytest.mark.skipif(shutil.which("keytool") is None, reason="there is no Java")


@pytest.fixture(scope="module")
def authorities() -> list[Issued]:
    return [issue("authority"), issue("other authority")]


@pytest.mark.parametrize("kind", [JKS, PKCS12])
def test_trust_store(tmp_path: Path, authorities: list[Issued], kind: str) -> None:
    store = tmp_path / "trust.jks"
    for number, each in enumerate(authorities):
        (tmp_path / "ca.pem").write_bytes(each.certificate_pem)
        keytool(
            *("-importcert", "-noprompt", "-alias", f"ca{number}", "-file", tmp_path / "ca.pem"),
            *("-keystore", store, "-storetype", kind, "-storepass", STORE_PASSWORD),
        )
    # Declared as JKS, the default, also if keytool wrote the other format.
    found = x509.load_pem_x509_certificates(read_trusted(store, JKS, STORE_PASSWORD))
    assert set(found) == {authority.certificate for authority in authorities}
    with pytest.raises(ValueError, match=r"(?i)password"):
        read_trusted(store, JKS, "wrong!")


def test_jks_trust_store_needs_no_password(tmp_path: Path, authorities: list[Issued]) -> None:
    (tmp_path / "ca.pem").write_bytes(authorities[0].certificate_pem)
    keytool(
        *("-importcert", "-noprompt", "-alias", "ca", "-file", tmp_path / "ca.pem"),
        *("-keystore", tmp_path / "t", "-storetype", JKS, "-storepass", STORE_PASSWORD),
    )
    assert read_trusted(tmp_path / "t", JKS, None)
    damaged = (tmp_path / "t").read_bytes()[:60]
    (tmp_path / "t").write_bytes(damaged)
    with pytest.raises(ValueError, match="damaged"):
        read_trusted(tmp_path / "t", JKS, None)


@pytest.mark.parametrize("kind", [JKS, PKCS12])
def test_key_store(tmp_path: Path, authorities: list[Issued], kind: str) -> None:
    alice = issue("alice", issue("between", authorities[0], is_authority=True))
    source = alice.write_pkcs12(tmp_path / "alice.p12", STORE_PASSWORD)
    key_password = KEY_PASSWORD if kind == JKS else STORE_PASSWORD
    store = tmp_path / "alice.jks"
    keytool(
        *("-importkeystore", "-srckeystore", source, "-srcstoretype", PKCS12, "-noprompt"),
        *("-srcstorepass", STORE_PASSWORD, "-destkeystore", store, "-deststoretype", kind),
        *("-deststorepass", STORE_PASSWORD, "-srcalias", "own", "-destkeypass", key_password),
    )
    found = read_key_pair(store, JKS, STORE_PASSWORD, key_password)
    private = load_pem_private_key(found.key, None)
    assert private.private_numbers() == alice.key.private_numbers()  # type: ignore[union-attr]
    assert found.chain == alice.chain_pem
    assert "PRIVATE" not in repr(found)
    with pytest.raises(ValueError, match=r"(?i)password"):
        read_key_pair(store, JKS, "wrong!", key_password)
    if kind == JKS:
        with pytest.raises(ValueError, match="password of the key"):
            read_key_pair(store, JKS, STORE_PASSWORD, "wrong!")
