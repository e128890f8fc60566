"""Names of certificates become the same users as with Kafka's SslPrincipalMapper."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from isotherm.broker.server.net.certificate_principals import PrincipalMapper
from isotherm.errors import ConfigError
from oracle.kafka import run_tool
from tests.support.certificates import issue

MAP_PRINCIPALS = Path(__file__).with_name("MapPrincipals.java")
RULES = (
    "DEFAULT",
    r"RULE:^CN=(.*?),.*$/$1/",
    r"RULE:^CN=(.*?),.*$/$1@x/U",
    r"RULE:^CN=bob,O=(.*?)$/$1.bob/L",
    r"RULE:CN=(.*?)/$1/",
    r"RULE:[^A-Z]*([A-Z])[^A-Z]*/$1/",
    r"RULE:(?:[^A-Z]*([A-Z]))+[^A-Z]*/$1/L",
    r"RULE:^CN=(\w+)[.-](\w+),(.*)$/$2 of $1\/$3/",
    r"RULE:(?i)cn=A(.*?),o=(.*)/$2-$1/",
    r"RULE:^CN=(.*?),.*$/$1-$2/",
    r"RULE:.*/all/",
)
BROKEN = ("RULE:x", "default", "RULE:^CN=(.*)$/$1", "RULE:^CN=(.*$/$1/", "RULE:a/b/X", "")
NAMES = ("Alice", "bob", "a.b", "A-1", "two words", "x+y", "host.example.com")


def ours(rules: str, certificate: bytes) -> str:
    try:
        mapper = PrincipalMapper(rules)
    except ConfigError:
        return "invalid"
    principal = mapper.principal(certificate)
    return "none" if principal is None else f"user {principal.name}"


@pytest.mark.oracle
def test_users_of_certificates_are_kafkas(kafka_tools: Path) -> None:
    certificates = [issue(name).certificate.public_bytes(Encoding.DER) for name in NAMES]
    names = [
        x509.load_der_x509_certificate(certificate).subject.rfc4514_string()
        for certificate in certificates
    ]
    pairs = [", ".join(pair) for pair in itertools.product(RULES, RULES)]
    asked = [
        (rules, name, certificate)
        for rules in (*RULES, *pairs, *BROKEN)
        for name, certificate in zip(names, certificates, strict=True)
    ]
    lines = "\n".join(f"{rules}\t{name}" for rules, name, _ in asked)
    answers = run_tool(str(MAP_PRINCIPALS), stdin=lines + "\n").splitlines()
    assert len(answers) == len(asked)
    assert len({*answers}) > 30
    differing = [
        (rules, name, answer, ours(rules, certificate))
        for (rules, name, certificate), answer in zip(asked, answers, strict=True)
        if ours(rules, certificate) != answer
    ]
    assert not differing
