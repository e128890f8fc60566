"""The client's exchange, by the examples of RFC 5802's successors, and against the server's."""

from __future__ import annotations

import pytest

from isotherm.errors import SaslAuthenticationError
from isotherm.protocol.node_security import Login
from isotherm.protocol.sasl_client import ScramClient

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
