"""Which connections Isotherm makes itself, and which are left to librdkafka."""

from __future__ import annotations

import pytest

from isotherm.client.node_security import own_security
from isotherm.errors import ConfigError

SASL = {"security.protocol": "SASL_PLAINTEXT"}
USER = {"sasl.username": "u", "sasl.password": "p"}
TOKENS = SASL | {
    "sasl.mechanism": "OAUTHBEARER",
    "sasl.oauthbearer.method": "oidc",
    "sasl.oauthbearer.client.id": "id",
    "sasl.oauthbearer.client.secret": "s",
    "sasl.oauthbearer.token.endpoint.url": "https://idp/token",
}


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("key", ["sasl.mechanism", "sasl.mechanisms"])
def test_logins_with_a_password_are_made(mechanism: str, key: str) -> None:
    made = own_security(SASL | USER | {key: mechanism})
    assert made is not None
    assert made.login is not None
    assert (made.login.mechanism, made.login.user) == (mechanism, "u")


def test_kafkas_names_are_read_as_well() -> None:
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    jaas = f'{module} required username="u" password="p";'
    made = own_security(SASL | {"sasl.mechanism": "SCRAM-SHA-256", "sasl.jaas.config": jaas})
    assert made is not None
    assert made.login is not None


def test_tokens_of_a_provider_are_fetched() -> None:
    made = own_security(TOKENS)
    assert made is not None
    assert made.login is not None
    assert made.login.mechanism == "OAUTHBEARER"


def test_plain_connections_and_tls_are_made() -> None:
    plain = own_security({"bootstrap.servers": "h", "fetch.wait.max.ms": "5"})
    assert plain is not None
    assert (plain.tls, plain.login) == (None, None)
    secured = own_security(
        {"security.protocol": "SSL", "ssl.endpoint.identification.algorithm": "none"}
    )
    assert secured is not None
    assert secured.tls is not None
    assert not secured.tls.check_hostname


@pytest.mark.parametrize(
    "properties",
    [
        SASL | {"sasl.mechanism": "GSSAPI"},
        SASL | {"sasl.mechanism": "GSSAPI", "sasl.kerberos.keytab": "/etc/key.tab"},
        TOKENS | {"sasl.oauthbearer.method": "default"},
        TOKENS | {"sasl.oauthbearer.grant.type": "urn:ietf:params:oauth:grant-type:jwt-bearer"},
        TOKENS | {"sasl.oauthbearer.assertion.algorithm": "RS256"},
        # Left out, a connection would look as safe as the user asked for, and not be.
        {"security.protocol": "SSL", "ssl.crl.location": "/etc/revoked.pem"},
        {"security.protocol": "SSL", "ssl.cipher.suites": "ECDHE-RSA-AES256-GCM-SHA384"},
        SASL
        | USER
        | {"sasl.mechanism": "PLAIN", "security.protocol": "SASL_SSL", "ssl.sigalgs.list": "x"},
    ],
    ids=str,
)
def test_what_only_librdkafka_can_do_is_left_to_it(properties: dict[str, str]) -> None:
    assert own_security(properties) is None


def test_contradictory_properties_are_refused() -> None:
    with pytest.raises(ConfigError, match="no effect"):
        own_security({"ssl.crl.location": "/etc/revoked.pem"})
