"""Users of Kerberos principals, by the rules. tests/oracle compares them with Kafka's
KerberosShortNamer."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from isotherm.broker.server.authentication import kerberos_listeners
from isotherm.broker.server.authentication.kerberos_names import KerberosNames
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


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        ("RULE:[1:$1]s/(?=a)/x/", "look-around"),
        ("RULE:[1:$1]s/(a)\\1/x/", "a back reference"),
        ("RULE:[1:$1]s/a*+b/x/", "a possessive count"),
    ],
)
def test_pattern_that_re2_cannot_run_is_refused_by_its_name(rule: str, name: str) -> None:
    with pytest.raises(ConfigError, match=rf"key=sasl\.kerberos.* {name}, which is not read"):
        KerberosNames([rule], REALM)


def test_name_without_its_group_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match=r"key=sasl\.kerberos.* replacement='\$2'"):
        KerberosNames(["RULE:[1:$1]s/(a)/$2/"], REALM)


def test_costly_rule_ends() -> None:
    """RE2 is linear; a backtracking engine would take 2**4000 steps for this name."""
    names = KerberosNames(["RULE:[1:$1]s/([a-z]+)+!/x/"], REALM)
    assert names.user_of("a" * 4000 + "@EXAMPLE.COM") == "a" * 4000


def test_key_of_the_broker_that_others_may_read_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    library = SimpleNamespace(
        Name=lambda *_: None,
        NameType=SimpleNamespace(kerberos_principal=0),
        MechType=SimpleNamespace(kerberos=0),
        Credentials=lambda **_: "credentials",
        raw=SimpleNamespace(misc=SimpleNamespace(GSSError=OSError)),
    )
    monkeypatch.setitem(sys.modules, "gssapi", library)
    path = tmp_path / "key tab"
    path.touch()
    for mode, warns in ((0o600, False), (0o644, True)):
        path.chmod(mode)
        assert kerberos_listeners._credentials(str(path), "kafka/b@R", "CLIENTS") == "credentials"
        assert ("can be read by others" in caplog.text) == warns
