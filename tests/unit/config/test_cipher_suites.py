"""IANA's names of cipher suites as OpenSSL's names. The oracle is the `openssl` command, which
prints both."""

from __future__ import annotations

import shutil
import ssl
import subprocess

import pytest

from isotherm.config.listener_tls import (
    TLS_1_3_SUITES,
    openssl_name,
    restrict_suites,
)
from isotherm.errors import ConfigError

V12, V13 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
SUITE = "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl command")
def test_names_are_those_of_the_openssl_command() -> None:
    listed = subprocess.run(
        ["openssl", "ciphers", "-stdname", "-s", "-tls1_2", "ALL:@SECLEVEL=0"],
        capture_output=True,
        text=True,
        check=True,
    )
    names = {line.split()[0]: line.split()[2] for line in listed.stdout.splitlines()}
    made = {suite: openssl_name(suite) for suite in names if openssl_name(suite) is not None}
    assert made.items() <= names.items()
    # Java supports none of the other suites.
    others = ("ARIA", "CAMELLIA", "CCM", "DSS", "PSK", "SRP", "anon", "NULL", "ECDH_", "DH_")
    assert [suite for suite in set(names) - set(made) if not any(o in suite for o in others)] == []
    assert len(made) > 10


def offered(*suites: str, versions: tuple[ssl.TLSVersion, ...] = (V12, V13)) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    restrict_suites(context, suites, versions)
    return context


def test_suites_decide_on_the_versions() -> None:
    both = offered(SUITE, *TLS_1_3_SUITES)
    assert (both.minimum_version, both.maximum_version) == (V12, V13)
    assert {cipher["name"] for cipher in both.get_ciphers()} == {
        *TLS_1_3_SUITES,
        "ECDHE-RSA-AES256-GCM-SHA384",
    }
    old = offered(SUITE)
    assert (old.minimum_version, old.maximum_version) == (V12, V12)
    new = offered(*TLS_1_3_SUITES)
    assert (new.minimum_version, new.maximum_version) == (V13, V13)


@pytest.mark.parametrize(
    ("suites", "message"),
    [
        ((SUITE, "TLS_AES_256_GCM_SHA384"), "missing=TLS_AES_128_GCM_SHA256,TLS_CHACHA20"),
        ((SUITE, "TLS_WITH_NONSENSE"), "suites=TLS_WITH_NONSENSE"),
        (("ECDHE-RSA-AES256-GCM-SHA384",), "suites=ECDHE-RSA"),
        (("TLS_RSA_WITH_AES_128_GCM_SHA384",), "suites=TLS_RSA_WITH_AES_128_GCM_SHA384"),
    ],
)
def test_suites_that_cannot_be_offered_are_named(suites: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        offered(*suites)


def test_suites_of_another_version_are_refused() -> None:
    with pytest.raises(ConfigError, match="no protocol"):
        offered(*TLS_1_3_SUITES, versions=(V12,))
    with pytest.raises(ConfigError, match="no protocol"):
        offered(SUITE, versions=(V13,))
