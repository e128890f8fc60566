"""Kerberos principals become the same users as with Kafka's KerberosShortNamer."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from isotherm.broker.server.authentication.kerberos_names import KerberosNames
from isotherm.errors import ConfigError
from oracle.kafka import run_tool

SHORT_NAMES = Path(__file__).with_name("ShortNames.java")
REALM = "EXAMPLE.COM"
RULES = (
    "DEFAULT",
    "RULE:[1:$1]",
    "RULE:[1:$1@$0](.*@OTHER)s/@.*//",
    "RULE:[2:$1]/L",
    "RULE:[2:$2-$1](.*-kafka)s/[.].*//U",
    "RULE:[2:$1$2]s/a/b/g/U",
    "RULE:[1:u-$1]s/(.)-(.*)/$2$1/",
    "RULE:[2:$0]",
    r"RULE:[1:$1]s/(?i)A([^\d\s])/<$1$0>/g",
    "RULE:[2:$1.$2]s/[a-k]*?/-/g",
    "RULE:[1:$1](a|alice)",
    "RULE:[1:$1]L",
    "RULE:[1:$1]//L",
    "RULE:[1:]",
    "RULE:[0:$0]",
)
BROKEN = ("default", "RULE:[x:$1]", "RULE:[1:$1", "RULE:[1:$1]s/a/b", "DEFAULT ", "RULE:1:$1")
PRINCIPALS = (
    "alice@EXAMPLE.COM",
    "Alice@OTHER",
    "a@OTHER",
    "kafka/host.example.com@EXAMPLE.COM",
    "kafka/a.b@OTHER",
    "alice",
    "a/b/c@EXAMPLE.COM",
    "@EXAMPLE.COM",
    "kafka/@OTHER",
    "two@at@EXAMPLE.COM",
)


def cases() -> Iterator[tuple[tuple[str, ...], str]]:
    for first, second in itertools.product(RULES, RULES):
        for principal in PRINCIPALS:
            yield (first, second), principal
    for broken in BROKEN:
        yield (broken,), PRINCIPALS[0]


def ours(rules: tuple[str, ...], principal: str) -> str:
    try:
        names = KerberosNames(rules, REALM)
    except ConfigError:
        return "invalid"
    user = names.user_of(principal)
    return "none" if user is None else f"user {user}"


@pytest.mark.oracle
def test_users_of_principals_are_kafkas(kafka_tools: Path) -> None:
    asked = list(cases())
    lines = ["\t".join(rules) + "\t\t" + principal for rules, principal in asked]
    answers = run_tool(str(SHORT_NAMES), REALM, stdin="\n".join(lines) + "\n").splitlines()
    assert len(answers) == len(asked)
    assert len({*answers}) > 15
    differing = [
        (rules, principal, answer, ours(rules, principal))
        for (rules, principal), answer in zip(asked, answers, strict=True)
        if ours(rules, principal) != answer
    ]
    assert not differing
