"""Users of Kerberos principals, by the rules. tests/oracle compares them with Kafka's
KerberosShortNamer."""

from __future__ import annotations

import pytest

from isotherm.broker.authentication.kerberos_names import KerberosNames
from isotherm.errors import ConfigError

REALM = "EXAMPLE.COM"


@pytest.mark.parametrize(
    ("rules", "principal", "user"),
    [
        ([], "alice@EXAMPLE.COM", "alice"),
        ([], "kafka/host@EXAMPLE.COM", "kafka"),
        ([], "alice@OTHER.COM", None),
        ([], "alice", "alice"),
        ([], "a/b/c@EXAMPLE.COM", None),
        (["RULE:[1:$1@$0](.*@OTHER.COM)s/@.*//", "DEFAULT"], "bob@OTHER.COM", "bob"),
        (["RULE:[1:$1@$0]"], "bob@OTHER.COM", None),
        (["RULE:[2:$2.$1]s/[.]/-/"], "kafka/a.b@OTHER.COM", "a-b.kafka"),
        (["RULE:[2:$2.$1]s/[.]/-/g"], "kafka/a.b@OTHER.COM", "a-b-kafka"),
        (["RULE:[1:$1]/U"], "bob@OTHER.COM", "BOB"),
        (["RULE:[1:$1]s/(.)(.*)/$2$1//L"], "Bob@OTHER.COM", "obb"),
        (["RULE:[2:$1]", "DEFAULT"], "alice@EXAMPLE.COM", "alice"),
    ],
)
def test_first_rule_that_fits_makes_the_user(
    rules: list[str], principal: str, user: str | None
) -> None:
    assert KerberosNames(rules, REALM).user_of(principal) == user


@pytest.mark.parametrize(
    "rule", ["default", "RULE:[1:$2]", "RULE:[1:$1](()", "RULE:[x:$1]", "", "DEFAULTS"]
)
def test_rule_that_cannot_be_read_is_named(rule: str) -> None:
    with pytest.raises(ConfigError, match=r"sasl\.kerberos\.principal\.to\.local\.rules"):
        KerberosNames([rule], REALM)
