"""OAUTHBEARER's tokens and exchange: which tokens are accepted, and each reason to refuse one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from hypothesis import given
from hypothesis import strategies as st

from isotherm.broker.server.authentication.access_token import (
    TokenSettings,
    TokenVerifier,
    VerificationKey,
)
from isotherm.broker.server.authentication.key_set import (
    READ_PAUSE_S,
    RefreshingKeys,
    check_key_url,
    parse_key_set,
)
from isotherm.broker.server.authentication.oauthbearer import (
    OAuthBearerExchange,
    TokenRefusedError,
    VerifiedToken,
)
from isotherm.errors import ConfigError, SaslAuthenticationError
from isotherm.testing.sim_clock import SimClock
from tests.support.token_provider import AUDIENCE, ISSUER, Provider

NOW_S = 1_700_000_000
SETTINGS = TokenSettings((AUDIENCE, "other"), ISSUER, 30, "scope", "sub")
PROVIDER = Provider()


class FixedKeys:
    def __init__(self, text: bytes) -> None:
        self.keys = parse_key_set(text)

    def find(self, fits: Callable[[VerificationKey], bool]) -> VerificationKey | None:
        return next(filter(fits, self.keys), None)


def verifier(settings: TokenSettings = SETTINGS, keys: bytes | None = None) -> TokenVerifier:
    clock = SimClock(NOW_S * 1000)
    return TokenVerifier(settings, FixedKeys(keys or PROVIDER.key_set()), clock)


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [("rsa", "RS256"), ("rsa", "RS512"), ("rsa", "PS256"), ("ec", "ES256"), ("ed", "EdDSA")],
)
def test_token_that_a_key_of_the_provider_signed_is_accepted(key: str, algorithm: str) -> None:
    token = PROVIDER.token(NOW_S, key=key, algorithm=algorithm)
    assert verifier().verify(token) == VerifiedToken("alice", (NOW_S + 3600) * 1000)


@pytest.mark.parametrize(
    "claims",
    [
        {"exp": NOW_S - 29},
        {"nbf": NOW_S + 30},
        {"aud": ["unknown", "other"]},
        {"scope": ["read", "write"]},
        {"scope": "read read"},
        {"sub": " alice "},
    ],
)
def test_claims_that_are_accepted(claims: dict[str, Any]) -> None:
    assert verifier().verify(PROVIDER.token(NOW_S, **claims)).subject == "alice"


@pytest.mark.parametrize(
    ("claims", "reason"),
    [
        ({"exp": NOW_S - 30}, "has expired"),
        ({"exp": None}, "MissingRequiredClaim"),
        ({"exp": -1}, "not a time"),
        ({"exp": 1e300}, "not a time"),
        ({"exp": True}, "not a time"),
        ({"iat": None}, "MissingRequiredClaim"),
        ({"iat": []}, "not a time"),
        ({"nbf": NOW_S + 31}, "not valid yet"),
        ({"iss": "https://other.example"}, "InvalidIssuer"),
        ({"iss": None}, "MissingRequiredClaim"),
        ({"aud": "another"}, "InvalidAudience"),
        ({"aud": None}, "MissingRequiredClaim"),
        ({"sub": None}, "not a name"),
        ({"sub": " "}, "not a name"),
        ({"scope": ["read", "read "]}, "named twice"),
        ({"scope": ["read", ""]}, "is empty"),
        ({"scope": [1]}, "is empty"),
    ],
)
def test_claims_that_are_refused(claims: dict[str, Any], reason: str) -> None:
    with pytest.raises(TokenRefusedError, match=reason):
        verifier().verify(PROVIDER.token(NOW_S, **claims))


def test_nothing_stands_in_for_a_signature_of_the_provider() -> None:
    good = PROVIDER.token(NOW_S)
    head, claims, signature = good.split(".")
    other = Provider().token(NOW_S)
    for token, reason in (
        (other, "InvalidSignature"),
        (f"{head}.{other.split('.')[1]}x.{signature}", "Error"),
        (f"{head}.{claims}.", "InvalidSignature"),
        (f"{head}.{claims}", "DecodeError"),
        ("", "DecodeError"),
        (PROVIDER.unsigned_token(NOW_S), "algorithm is not accepted"),
        (PROVIDER.token_with_the_public_key_as_a_secret(NOW_S), "algorithm is not accepted"),
    ):
        with pytest.raises(TokenRefusedError, match=reason):
            verifier().verify(token)


def test_token_of_a_key_that_is_not_in_the_set_is_refused() -> None:
    with pytest.raises(TokenRefusedError, match="no such key"):
        verifier(keys=PROVIDER.key_set("ec")).verify(PROVIDER.token(NOW_S))


def test_without_expectations_any_issuer_but_no_audience_is_accepted() -> None:
    """As in jose4j, on which Kafka relies: without an expected audience, a token that names one is
    refused."""
    settings = TokenSettings((), None, 30, "scope", "client")
    token = PROVIDER.token(NOW_S, iss=None, aud=None, sub=None, client="app")
    assert verifier(settings).verify(token).subject == "app"
    with pytest.raises(TokenRefusedError, match="InvalidAudience"):
        verifier(settings).verify(PROVIDER.token(NOW_S, client="app"))


@given(
    st.one_of(
        st.text(max_size=50),
        st.builds(
            "{}.{}.{}".format,
            *[st.text("eyJhbGciOiJSUzI1NiJ9_-", max_size=40) for _ in range(3)],
        ),
    )
)
def test_any_text_is_a_token_or_is_refused(text: str) -> None:
    with pytest.raises(TokenRefusedError):
        verifier().verify(text)


# ---- key sets


def test_keys_that_sign_nothing_are_passed_over() -> None:
    entries = json.loads(PROVIDER.key_set())["keys"]
    short = Provider()
    short.keys = {"rsa": rsa.generate_private_key(65537, 1024)}
    curve = Provider()
    curve.keys = {"ec": ec.generate_private_key(ec.SECP256K1())}
    others = [
        {"kty": "oct", "k": "c2VjcmV0", "kid": "secret"},
        {**entries[0], "use": "enc"},
        {**entries[0], "alg": "RSA-OAEP"},
        {"kty": "RSA", "n": "!", "e": "AQAB"},
        {"kty": ["RSA"]},
        {"kid": 5},
        "no entry",
        *json.loads(short.key_set())["keys"],
        *json.loads(curve.key_set())["keys"],
    ]
    found = parse_key_set(json.dumps({"keys": [*others, *entries]}).encode())
    assert [(each.key_id, each.algorithm) for each in found] == [
        ("rsa", None),
        ("ec", "ES256"),
        ("ed", "EdDSA"),
    ]
    with pytest.raises(ValueError, match="no public key for signatures entries=9"):
        parse_key_set(json.dumps({"keys": others}).encode())


@pytest.mark.parametrize("text", [b"", b"{}", b"[]", b'{"keys": 5}', b"[" * 100_000, b"\xff"])
def test_text_that_is_no_key_set_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - json's own text, or ours
        parse_key_set(text)


@pytest.mark.parametrize(
    "url", ["http://localhost/keys", "ftp://x/keys", "https:///keys", "/keys", "file://host/keys"]
)
def test_keys_are_read_over_https_or_from_a_file_alone(url: str) -> None:
    with pytest.raises(ConfigError, match=r"sasl\.oauthbearer\.jwks\.endpoint\.url"):
        check_key_url(url)
    check_key_url("https://localhost:8443/keys?x=y")
    check_key_url("file:///etc/keys.json")


class Source:
    """A source of key sets that returns its text or raises an error. `reads` counts both."""

    def __init__(self, text: bytes) -> None:
        self.text: bytes | None = text
        self.reads = 0

    def __call__(self) -> bytes:
        self.reads += 1
        if self.text is None:
            raise OSError("nobody answers")
        return self.text


def refreshing(source: Source, clock: SimClock) -> RefreshingKeys:
    return RefreshingKeys("name", source, clock, refresh_s=3600, retry_s=1, retry_s_max=4)


def is_rsa(key: VerificationKey) -> bool:
    return key.key_id == "rsa"


def wait_until(clock: SimClock, is_true: Callable[[], bool]) -> None:
    while not is_true():
        clock.advance(1)


def test_keys_are_read_again_soon_when_one_is_missing_but_not_at_once() -> None:
    source, clock = Source(PROVIDER.key_set("ec")), SimClock(NOW_S * 1000)
    keys = refreshing(source, clock)
    keys.start()
    try:
        source.text = PROVIDER.key_set("ec", "rsa")
        start_s = clock.monotonic_s()
        assert keys.find(is_rsa) is None
        wait_until(clock, lambda: keys.find(is_rsa) is not None)
        assert READ_PAUSE_S <= clock.monotonic_s() - start_s < 3600
    finally:
        keys.stop()


@pytest.mark.slow
def test_keys_are_read_again_in_time_and_stay_if_that_fails() -> None:
    source, clock = Source(PROVIDER.key_set("rsa")), SimClock(NOW_S * 1000)
    keys = refreshing(source, clock)
    keys.start()
    try:
        source.text = None
        wait_until(clock, lambda: source.reads >= 4)
        assert keys.find(is_rsa) is not None
        source.text = PROVIDER.key_set("ec")
        wait_until(clock, lambda: keys.find(is_rsa) is None)
    finally:
        keys.stop()


def test_keys_that_cannot_be_read_at_the_start_are_an_error() -> None:
    source = Source(b"")
    source.text = None
    with pytest.raises(ConfigError, match="nobody answers"):
        refreshing(source, SimClock()).start()


# ---- the exchange


def exchange(refusals: list[str] | None = None) -> OAuthBearerExchange:
    def verify(token: str) -> VerifiedToken:
        if token != "good":
            raise TokenRefusedError("why")
        return VerifiedToken("alice", 5)

    return OAuthBearerExchange(verify, (refusals if refusals is not None else []).append)


@pytest.mark.parametrize(
    "first",
    [
        b"n,,\x01auth=Bearer good\x01\x01",
        b"n,a=alice,\x01auth=bearer  good\x01\x01",
        b"n,,\x01traceId=1 2\x01auth=Bearer good\x01host=x\x01\x01",
    ],
)
def test_good_token_logs_in(first: bytes) -> None:
    made = exchange()
    assert made.respond(first) == b""
    assert (made.user, made.expires_ms) == ("alice", 5)


def test_bad_token_is_answered_by_the_error_of_the_rfc_and_then_refused() -> None:
    refusals: list[str] = []
    for second in (b"\x01", b"n,,\x01auth=Bearer good\x01\x01"):
        made = exchange(refusals)
        assert json.loads(made.respond(b"n,,\x01auth=Bearer bad\x01\x01")) == {
            "status": "invalid_token"
        }
        assert made.user is None
        with pytest.raises(SaslAuthenticationError, match="invalid_token"):
            made.respond(second)
        assert made.user is None
    assert refusals == ["why", "why"]


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"\x01",
        b"n,,\x01auth=Bearer good\x01",
        b"n,,\x01\x01",
        b"n,,\x01host=x\x01\x01",
        b"n,,\x01auth=Basic good\x01\x01",
        b"n,,\x01auth=Bearer\x01\x01",
        b"n,,\x01auth=Bearer go od\x01\x01",
        b"y,,\x01auth=Bearer good\x01\x01",
        b"n,a=bob,\x01auth=Bearer good\x01\x01",
        b"n,,\x01auth=Bearer good\x01\x01trailing",
    ],
)
def test_other_messages_are_refused(first: bytes) -> None:
    made = exchange()
    with pytest.raises(SaslAuthenticationError):
        made.respond(first)
    assert made.user is None
