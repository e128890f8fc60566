"""Access tokens from a provider over HTTPS."""

from __future__ import annotations

from pathlib import Path

import pytest

from isotherm.client.access_tokens import TokenLogin, fetch_token
from isotherm.errors import SaslAuthenticationError
from tests.support.certificates import issue
from tests.support.token_provider import CLIENT_ID, CLIENT_SECRET, Provider, served

AUTHORITY = issue("authority")
TRUSTED = AUTHORITY.certificate_pem.decode()


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    server = issue("localhost", AUTHORITY)
    path = tmp_path / "server.pem"
    path.write_bytes(server.key_pem + server.certificate_pem)
    return path


def test_token_is_given_for_id_and_secret(certificate: Path, tmp_path: Path) -> None:
    requests: list[str] = []
    (tmp_path / "ca.pem").write_text(TRUSTED)
    with served({}, certificate, Provider(), requests) as address:
        login = TokenLogin(CLIENT_ID, CLIENT_SECRET, f"{address}/token", trusted=TRUSTED)
        assert fetch_token(login).count(".") == 2
        by_file = login._replace(
            scope="read", trusted=None, trusted_location=str(tmp_path / "ca.pem")
        )
        assert fetch_token(by_file).count(".") == 2
    assert requests == ["grant_type=client_credentials", "grant_type=client_credentials&scope=read"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"client_secret": "wr0ng"}, "HTTP status 401"),
        ({"trusted": None}, "CERTIFICATE_VERIFY_FAILED"),
        ({"trusted": issue("other").certificate_pem.decode()}, "CERTIFICATE_VERIFY_FAILED"),
        ({"trusted_location": "/nowhere/ca.pem"}, "No such file"),
        ({"url": "https://localhost:1/token"}, "refused"),
    ],
)
def test_failure_names_the_address_and_no_secret(
    certificate: Path, changes: dict[str, str], reason: str
) -> None:
    with served({}, certificate, Provider()) as address:
        login = TokenLogin(CLIENT_ID, CLIENT_SECRET, f"{address}/token", trusted=TRUSTED)
        login = login._replace(**changes)  # type: ignore[arg-type]
        with pytest.raises(SaslAuthenticationError, match=f"url={login.url}") as failed:
            fetch_token(login)
    assert reason in str(failed.value)
    assert login.client_secret not in str(failed.value)


@pytest.mark.parametrize("answer", [b"a-t0ken", b"[]", b"{}", b'{"access_token": 1}'])
def test_answer_without_a_token_is_refused(monkeypatch: pytest.MonkeyPatch, answer: bytes) -> None:
    monkeypatch.setattr("isotherm.client.https_exchange.https_answer", lambda *_: answer)
    with pytest.raises(SaslAuthenticationError, match="the answer") as failed:
        fetch_token(TokenLogin(CLIENT_ID, CLIENT_SECRET, "https://issuer.example/token"))
    assert "t0ken" not in str(failed.value)
    assert failed.value.__cause__ is None
