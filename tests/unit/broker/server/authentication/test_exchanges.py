"""The exchanges of SCRAM and PLAIN: the examples of the RFCs, and messages that must be refused."""

from __future__ import annotations

import base64
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isotherm.broker.metadata.access.scram_credential import (
    ScramMechanism,
    credential_of,
    salt_password,
)
from isotherm.broker.server.authentication.plain import PlainExchange
from isotherm.broker.server.authentication.scram import ScramExchange
from isotherm.config.jaas import parse_login_module, plain_passwords
from isotherm.errors import ConfigError, SaslAuthenticationError

SHA_256 = ScramMechanism.SCRAM_SHA_256

# RFC 7677, section 3.
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_NONCE = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
SERVER_FIRST = (
    b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
)
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,"
    b"p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def exchange(secret: bytes = b"s") -> ScramExchange:
    salted = salt_password(SHA_256, "pencil", SALT, 4096)
    users = {"user": credential_of(SHA_256, salted, SALT, 4096)}
    return ScramExchange(SHA_256, users.get, list, new_nonce=lambda: SERVER_NONCE, secret=secret)


def test_scram_gives_the_messages_of_the_rfc() -> None:
    made = exchange()
    assert made.respond(CLIENT_FIRST) == SERVER_FIRST
    assert made.user is None
    assert made.respond(CLIENT_FINAL) == SERVER_FINAL
    assert made.user == "user"


def test_scram_reads_a_name_with_a_comma_and_an_equals_sign() -> None:
    asked: list[str] = []

    def find(user: str) -> None:
        asked.append(user)

    made = ScramExchange(SHA_256, find, list, new_nonce=lambda: "n", secret=b"s")
    made.respond(b"n,,n=a=2Cb=3D2C,r=nonce")
    assert asked == ["a,b=2C"]


@pytest.mark.parametrize(
    "final",
    [
        pytest.param(CLIENT_FINAL.replace(b"dHzb", b"dHzc"), id="another proof"),
        pytest.param(CLIENT_FINAL[:-8], id="cut"),
        pytest.param(CLIENT_FINAL.replace(b"c=biws", b"c=eSws"), id="another binding"),
        pytest.param(CLIENT_FINAL.replace(b"r=rOpr", b"r=xOpr"), id="another nonce"),
        pytest.param(CLIENT_FIRST, id="the first message again"),
        pytest.param(b"", id="nothing"),
        pytest.param(b"\xff\xfe", id="no text"),
    ],
)
def test_scram_refuses_a_wrong_final_message(final: bytes) -> None:
    made = exchange()
    made.respond(CLIENT_FIRST)
    with pytest.raises(SaslAuthenticationError):
        made.respond(final)
    assert made.user is None


def test_scram_refuses_messages_of_another_exchange() -> None:
    """A proof signs both nonces, so it cannot be replayed."""
    made = exchange()
    made._new_nonce = lambda: "another"
    made.respond(CLIENT_FIRST)
    with pytest.raises(SaslAuthenticationError):
        made.respond(CLIENT_FINAL)


def test_scram_shows_no_difference_for_a_user_that_does_not_exist() -> None:
    """An unknown user gets a salt that is derived from its name, the same each time, so that the
    exchange does not show which users exist."""
    asked = CLIENT_FIRST.replace(b"n=user", b"n=nobody")
    first, second = exchange().respond(asked), exchange().respond(asked)
    assert first == second
    assert first != exchange(secret=b"of another process").respond(asked)
    made = exchange()
    made.respond(asked)
    with pytest.raises(SaslAuthenticationError) as of_nobody:
        made.respond(CLIENT_FINAL)
    made = exchange()
    made.respond(CLIENT_FIRST)
    with pytest.raises(SaslAuthenticationError) as of_user:
        made.respond(CLIENT_FINAL.replace(b"dHzb", b"dHzc"))
    assert str(of_nobody.value) == str(of_user.value)


@given(st.binary(max_size=80), st.binary(max_size=200))
def test_no_token_logs_in_or_breaks_the_exchange(first: bytes, second: bytes) -> None:
    made = exchange()
    for token in (first, second):
        with contextlib.suppress(SaslAuthenticationError):
            made.respond(token)
    assert made.user is None


def test_credential_does_not_show_its_keys() -> None:
    salted = salt_password(SHA_256, "pencil", SALT, 4096)
    assert "hidden" in repr(credential_of(SHA_256, salted, SALT, 4096))


@pytest.mark.parametrize("token", [b"\0alice\0hers", b"alice\0alice\0hers"])
def test_plain_knows_its_users(token: bytes) -> None:
    made = PlainExchange({"alice": "hers", "bob": ""})
    assert made.respond(token) == b""
    assert made.user == "alice"


@pytest.mark.parametrize(
    ("token", "message"),
    [
        (b"\0alice\0his", "Invalid username or password"),
        (b"\0carol\0hers", "Invalid username or password"),
        (b"\0bob\0", "password not specified"),
        (b"\0\0hers", "username not specified"),
        (b"bob\0alice\0hers", "authorization id that is different"),
        (b"alice\0hers", "expected 3 tokens, got 2"),
        (b"\0\0\0\0\0\0", "expected 3 tokens, got 4"),
        (b"", "expected 3 tokens, got 1"),
    ],
)
def test_plain_refuses_in_kafkas_words(token: bytes, message: str) -> None:
    made = PlainExchange({"alice": "hers", "bob": ""})
    with pytest.raises(SaslAuthenticationError, match=message):
        made.respond(token)
    assert made.user is None


MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


def test_login_module_has_the_users() -> None:
    text = f"""{MODULE} required username="admin" password='a "b"'
        user_admin="a \\"b\\"" user_alice=plain;"""
    assert parse_login_module(text, "L").options["password"] == 'a "b"'
    assert plain_passwords(text, "L") == {"admin": 'a "b"', "alice": "plain"}


@pytest.mark.parametrize(
    "text",
    [None, "", f"{MODULE} required user_a=secret", f"{MODULE} user_a=secret;",
     "other.M required user_a=secret;", f'{MODULE} required user_a="secret;',
     f"{MODULE} required user_a;"],
)  # fmt: skip
def test_login_module_that_cannot_be_read_is_refused_without_its_secrets(text: str | None) -> None:
    with pytest.raises(ConfigError) as refused:
        plain_passwords(text, "L")
    assert "secret" not in str(refused.value)
