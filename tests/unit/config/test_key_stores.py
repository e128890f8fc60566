"""Key stores that cannot be read: the error names the file and what to set.

tests/oracle/test_java_key_stores.py compares sound ones with Java's reader.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from isotherm.config.key_stores import PEM, PKCS12, read_key_pair, read_trusted
from tests.support.certificates import issue

PASSWORD = "sesame-9041"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    issued = issue("broker")
    issued.write_pem(tmp_path / "plain.pem")
    issued.write_pem(tmp_path / "encrypted.pem", PASSWORD)
    issued.write_pkcs12(tmp_path / "store.p12", PASSWORD)
    (tmp_path / "no-key.pem").write_bytes(issued.certificate_pem)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "kind", "password", "key_password", "reason"),
    [
        ("encrypted.pem", PEM, None, None, "has a password key=ssl.key.password"),
        ("plain.pem", PEM, None, PASSWORD, "has no password key=ssl.key.password"),
        ("store.p12", PEM, PASSWORD, None, "it is not PEM: set the store's type"),
        ("plain.pem", PKCS12, PASSWORD, None, "it is PEM: set the store's type"),
        ("store.p12", PKCS12, None, None, "it needs a password"),
        ("store.p12", PKCS12, PASSWORD[:-1], None, "its password is another"),
        ("no-key.pem", PEM, None, None, "private key"),
    ],
)
def test_unusable_key_store_is_named_with_what_to_set(
    folder: Path, name: str, kind: str, password: str | None, key_password: str | None, reason: str
) -> None:
    with pytest.raises(ValueError, match=reason) as raised:
        read_key_pair(folder / name, kind, password, key_password)
    assert f"path={folder / name}" in str(raised.value)
    assert PASSWORD[:-1] not in str(raised.value)


@pytest.mark.parametrize(("name", "kind"), [("store.p12", PEM), ("plain.pem", PKCS12)])
def test_unusable_trust_store_is_named_with_what_to_set(folder: Path, name: str, kind: str) -> None:
    with pytest.raises(ValueError, match="set the store's type") as raised:
        read_trusted(folder / name, kind, PASSWORD)
    assert f"path={folder / name}" in str(raised.value)
