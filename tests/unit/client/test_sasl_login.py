"""The client's SASL exchanges, with the examples of RFC 7677 and RFC 7628 and against the broker's
exchange."""

from __future__ import annotations

import datetime

import pytest
from kio.schema.errors import ErrorCode
from kio.schema.sasl_authenticate.v1.response import SaslAuthenticateResponse
from kio.schema.sasl_handshake.v1.response import SaslHandshakeResponse

from isotherm.client.access_tokens import TokenLogin
from isotherm.client.node_security import Login
from isotherm.client.sasl_login import ScramClient, log_in
from isotherm.errors import SaslAuthenticationError

# RFC 7677, section 3.
USER, SECRET = "user", "pencil"
NONCE = "rOprNGfwEbeRWgbNEkqO"
FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = (
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
)
FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def client() -> ScramClient:
    return ScramClient(Login("SCRAM-SHA-256", USER, SECRET), NONCE)


def test_example_of_the_rfc() -> None:
    exchange = client()
    assert exchange.first_message() == FIRST
    assert exchange.final_message(SERVER_FIRST) == FINAL
    exchange.check_server(SERVER_FINAL)


def test_server_that_does_not_know_the_password_is_refused() -> None:
    exchange = client()
    exchange.final_message(SERVER_FIRST)
    for answer in (b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G5=", b"", b"e=other-error"):
        with pytest.raises(SaslAuthenticationError, match="does not know the password") as refused:
            exchange.check_server(answer)
        assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\xff",
        b"r=another,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096",
        SERVER_FIRST.replace(b"i=4096", b"i=0"),
        SERVER_FIRST.replace(b"i=4096", b"i=999999999"),
        SERVER_FIRST.replace(b"gQ==", b"gQ="),
    ],
)
def test_answers_that_are_not_scram_are_refused(answer: bytes) -> None:
    with pytest.raises(SaslAuthenticationError, match="not SCRAM"):
        client().final_message(answer)


def test_names_are_escaped() -> None:
    exchange = ScramClient(Login("SCRAM-SHA-512", "a,b=c", SECRET), NONCE)
    assert exchange.first_message().startswith(b"n,,n=a=2Cb=3Dc,r=")


def test_password_is_in_no_text_of_a_login() -> None:
    assert SECRET not in repr(Login("PLAIN", USER, SECRET))


def test_listener_without_logins_is_named() -> None:
    """Kafka's listeners without SASL answer so, and name no mechanism."""
    answer = SaslHandshakeResponse(error_code=ErrorCode.illegal_sasl_state, mechanisms=())
    with pytest.raises(SaslAuthenticationError, match="expects no login: set"):
        log_in(Login("PLAIN", USER, SECRET), lambda _: answer, lambda: NONCE)


# ---- OAUTHBEARER


class _Server:
    """A broker that gives the answers of a login in order."""

    def __init__(self, *answers: object) -> None:
        self.answers = list(answers)
        self.received: list[bytes] = []

    def exchange(self, request: object) -> object:
        self.received.append(getattr(request, "auth_bytes", b""))
        return self.answers.pop(0)


def _answered(
    error: ErrorCode = ErrorCode.none, auth_bytes: bytes = b""
) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(
        error_code=error,
        error_message=None,
        auth_bytes=auth_bytes,
        session_lifetime=datetime.timedelta(seconds=7),
    )


_HANDSHAKE = SaslHandshakeResponse(error_code=ErrorCode.none, mechanisms=("OAUTHBEARER",))


def test_token_is_shown_as_in_the_example_of_rfc_7628(monkeypatch: pytest.MonkeyPatch) -> None:
    """Section 4.1, without the authorization id: the token's subject is the user."""
    monkeypatch.setattr("isotherm.client.sasl_login.fetch_token", lambda _: "vF9dft4qmT")
    login = TokenLogin(
        "id", SECRET, "https://x", extensions=("host=server.example.com", "port=143")
    )
    server = _Server(_HANDSHAKE, _answered())
    assert log_in(login, server.exchange, str) == 7
    assert server.received[1] == (
        b"n,,\x01auth=Bearer vF9dft4qmT\x01host=server.example.com\x01port=143\x01\x01"
    )
    assert SECRET not in repr(login)


def test_refused_token_is_ended_by_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """RFC 7628, section 3.2.3: the client answers the server's JSON with ^A, and the login
    fails."""
    monkeypatch.setattr("isotherm.client.sasl_login.fetch_token", lambda _: "token")
    login = TokenLogin("id", SECRET, "https://x")
    invalid = _answered(auth_bytes=b'{"status":"invalid_token"}')
    for last in (_answered(ErrorCode.sasl_authentication_failed), _answered()):
        server = _Server(_HANDSHAKE, invalid, last)
        with pytest.raises(SaslAuthenticationError, match="login is refused user=id"):
            log_in(login, server.exchange, str)
        assert server.received[2] == b"\x01"
