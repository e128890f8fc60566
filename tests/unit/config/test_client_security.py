"""Kafka's client properties translated to librdkafka's.

The names and rules are those of Kafka's documentation. The tests make the certificates, so that
they can compare what is read from a store with what was put into it.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key, pkcs12

from isotherm.config.client_security import (
    ClientProperties,
    librdkafka_properties,
    read_client_properties,
)
from isotherm.errors import ConfigError
from tests.support.certificates import Issued, issue

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
SECRET = "hunter2"
AUTHORITY = issue("authority")
OTHER = issue("other authority")
ALICE = issue("alice", issue("between", AUTHORITY, is_authority=True))
PLACE = "file=client.properties"


def sasl(module: str = PLAIN, mechanism: str = "PLAIN", **changes: str) -> dict[str, str]:
    jaas = f'{module} required username="alice" password="{SECRET}";'
    texts = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": jaas,
    }
    return texts | {name.replace("_", "."): text for name, text in changes.items()}


def translated(texts: dict[str, Any]) -> dict[str, Any]:
    found = librdkafka_properties(ClientProperties(texts, PLACE))
    assert librdkafka_properties(found) == found, "what is translated stays as it is"
    # The constructor of librdkafka's client reads and checks all properties, certificates and keys.
    Consumer({**found, "group.id": "g", "log_level": 0}).close()
    return found


def refused(texts: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as error:
        librdkafka_properties(ClientProperties(texts, PLACE))
    assert SECRET not in str(error.value)
    assert SECRET not in repr(error.value.__cause__)
    assert str(error.value).count(PLACE) == 1
    return str(error.value)


def has_key_pair(found: dict[str, Any], issued: Issued) -> bool:
    key = load_pem_private_key(found["ssl.key.pem"].encode(), None)
    assert key.private_numbers() == issued.key.private_numbers()  # type: ignore[union-attr]
    chain = x509.load_pem_x509_certificates(found["ssl.certificate.pem"].encode())
    return chain == x509.load_pem_x509_certificates(issued.chain_pem)


def trusted(found: dict[str, Any]) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(found["ssl.ca.pem"].encode())


# ---- SASL


@pytest.mark.parametrize(
    ("module", "mechanism"), [(PLAIN, "PLAIN"), (SCRAM, "SCRAM-SHA-256"), (SCRAM, "SCRAM-SHA-512")]
)
def test_login_module_becomes_user_and_password(module: str, mechanism: str) -> None:
    assert translated(sasl(module, mechanism)) == {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": "alice",
        "sasl.password": SECRET,
    }


def test_other_properties_and_librdkafkas_own_names_are_passed_on() -> None:
    texts = {
        "security.protocol": "sasl_plaintext",
        "sasl.mechanisms": "PLAIN",
        "sasl.username": "alice",
        "sasl.password": SECRET,
        "client.id": "me",
    }
    assert translated(texts) == {**texts, "security.protocol": "SASL_PLAINTEXT"}


@pytest.mark.parametrize(
    ("texts", "named"),
    [
        (sasl(module=SCRAM), "key=sasl.jaas.config"),
        (sasl(sasl_mechanism="GSSAPI"), "key=sasl.mechanism"),
        (sasl(sasl_jaas_config=f"x {SECRET}"), "key=sasl.jaas.config"),
        (sasl(sasl_jaas_config=f'{PLAIN} required password="{SECRET}";'), "option username"),
        (sasl(sasl_username="bob"), "other_key=sasl.username"),
        (sasl(security_protocol="SSL"), "key=sasl.mechanism"),
        (sasl(security_protocol="SALS_SSL"), "key=security.protocol"),
        (sasl(sasl_login_callback_handler_class="x"), "key=sasl.login.callback.handler.class"),
        ({"security.protocol": "SASL_SSL"}, "key=sasl.mechanism"),
        ({"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}, "key=sasl.jaas.config"),
        ({"sasl.jaas.config": SECRET}, "no effect with security.protocol=PLAINTEXT"),
        ({"ssl.truststore.location": "x"}, "no effect with security.protocol=PLAINTEXT"),
    ],
)
def test_contradictions_name_key_and_file_and_no_secret(texts: dict[str, str], named: str) -> None:
    assert named in refused(texts)


OAUTH = "org.apache.kafka.common.security.oauthbearer"
TOKEN_URL = "https://issuer.example/token"


def tokens(options: str = "", **changes: str | None) -> dict[str, str]:
    prefix = "sasl.oauthbearer"
    texts: dict[str, str | None] = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.login.callback.handler.class": f"{OAUTH}.OAuthBearerLoginCallbackHandler",
        "sasl.jaas.config": f"{OAUTH}.OAuthBearerLoginModule required{options};",
        f"{prefix}.token.endpoint.url": TOKEN_URL,
        f"{prefix}.client.credentials.client.id": "alice",
        f"{prefix}.client.credentials.client.secret": SECRET,
    }
    texts |= {f"{prefix}.{name.replace('_', '.')}": text for name, text in changes.items()}
    return {name: text for name, text in texts.items() if text is not None}


def test_source_of_tokens_becomes_librdkafkas() -> None:
    expected = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": TOKEN_URL,
        "sasl.oauthbearer.client.id": "alice",
        "sasl.oauthbearer.client.secret": SECRET,
    }
    assert translated(tokens()) == expected
    in_module = tokens(
        f' clientId="alice" clientSecret="{SECRET}" scope="all" extension_logicalCluster="one"',
        client_credentials_client_id=None,
        client_credentials_client_secret=None,
    )
    assert translated(in_module) == {
        **expected,
        "sasl.oauthbearer.scope": "all",
        "sasl.oauthbearer.extensions": "logicalCluster=one",
    }
    # As in Kafka, the property takes precedence over the option of the JAAS module.
    both = tokens(' clientId="bob" clientSecret="other" scope="other"', scope="all")
    assert translated(both) == {**expected, "sasl.oauthbearer.scope": "all"}


def test_id_and_secret_are_encoded_if_asked_for() -> None:
    """Example of RFC 6749, appendix B."""
    found = translated(tokens(client_credentials_client_id=" %&+£€", header_urlencode="true"))
    assert found["sasl.oauthbearer.client.id"] == "%25%26%2B%C2%A3%E2%82%AC"


def test_authorities_of_the_provider(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_bytes(AUTHORITY.certificate_pem)
    store = f' ssl.truststore.type="PEM" ssl.truststore.location="{tmp_path / "ca.pem"}"'
    found = translated(tokens(store))
    assert x509.load_pem_x509_certificates(found["https.ca.pem"].encode()) == [
        AUTHORITY.certificate
    ]


@pytest.mark.parametrize(
    ("texts", "named"),
    [
        (tokens(token_endpoint_url=None), "key=sasl.oauthbearer.token.endpoint.url"),
        (tokens(token_endpoint_url="http://x/token"), "key=sasl.oauthbearer.token.endpoint.url"),
        (tokens(token_endpoint_url="file:///t"), "key=sasl.oauthbearer.token.endpoint.url"),
        (tokens(token_endpoint_url="https://["), "key=sasl.oauthbearer.token.endpoint.url"),
        (
            tokens(client_credentials_client_secret=None),
            "key=sasl.oauthbearer.client.credentials.client.secret",
        ),
        (
            tokens(client_secret="other"),
            "other_key=sasl.oauthbearer.client.secret",
        ),
        (tokens(assertion_file="x"), "key=sasl.oauthbearer.assertion.file"),
        (
            tokens(jwt_retriever_class=f"{OAUTH}.FileJwtRetriever"),
            "key=sasl.oauthbearer.jwt.retriever.class",
        ),
        (tokens(jwt_validator_class="x.Y"), "key=sasl.oauthbearer.jwt.validator.class"),
        (tokens(method="oidc"), "other_key=sasl.jaas.config"),
        (tokens(' clientID="alice"'), "option=clientID"),
        (tokens(' extension_a="b,c"'), "option=extension_a"),
        (tokens(' ssl.truststore.location="/nowhere"'), "key=sasl.jaas.config"),
        (tokens() | {"sasl.jaas.config": f"{PLAIN} required;"}, "key=sasl.jaas.config"),
        (tokens() | {"sasl.login.class": "x"}, "key=sasl.login.class"),
        (tokens() | {"sasl.mechanism": "PLAIN"}, "sasl.login.callback.handler.class"),
    ],
)
def test_source_of_tokens_that_is_not_served_is_named(texts: dict[str, str], named: str) -> None:
    assert named in refused(texts)


def test_secrets_are_in_no_text_of_the_properties() -> None:
    properties = ClientProperties(sasl(), PLACE)
    assert SECRET not in repr(properties)
    assert SECRET not in f"{properties}"
    assert SECRET not in repr(translated(sasl()))
    assert "alice" in repr(translated(sasl()))


# ---- TLS


def tls(**changes: Any) -> dict[str, str]:
    return {"security.protocol": "SSL"} | {
        "ssl." + name.replace("_", "."): str(value) for name, value in changes.items()
    }


def test_pem_stores(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_bytes(b"text\n" + AUTHORITY.certificate_pem + OTHER.certificate_pem)
    found = translated(
        tls(
            truststore_type="PEM",
            truststore_location=tmp_path / "ca.pem",
            keystore_type="PEM",
            keystore_location=ALICE.write_pem(tmp_path / "alice.pem", SECRET),
            key_password=SECRET,
        )
    )
    assert trusted(found) == [AUTHORITY.certificate, OTHER.certificate]
    assert has_key_pair(found, ALICE)
    assert "ssl.key.password" not in found


def test_pem_in_the_properties_themselves() -> None:
    found = translated(
        tls(
            truststore_type="PEM",
            truststore_certificates=AUTHORITY.certificate_pem.decode(),
            keystore_type="PEM",
            keystore_key=ALICE.key_pem.decode(),
            keystore_certificate_chain=ALICE.chain_pem.decode(),
        )
    )
    assert trusted(found) == [AUTHORITY.certificate]
    assert has_key_pair(found, ALICE)


@pytest.mark.parametrize("types", [{}, {"truststore_type": "PKCS12", "keystore_type": "pkcs12"}])
def test_pkcs12_stores_also_under_the_default_type(tmp_path: Path, types: dict[str, str]) -> None:
    """Java's default type reads them: KeyStore.getInstance("JKS") is a dual-format store."""
    trust = [pkcs12.PKCS12Certificate(AUTHORITY.certificate, b"ca")]
    (tmp_path / "trust.p12").write_bytes(_trust_store(trust))
    found = translated(
        tls(
            truststore_location=tmp_path / "trust.p12",
            truststore_password=SECRET,
            keystore_location=ALICE.write_pkcs12(tmp_path / "alice.p12", SECRET),
            keystore_password=SECRET,
            key_password=SECRET,
            **types,
        )
    )
    assert trusted(found) == [AUTHORITY.certificate]
    assert has_key_pair(found, ALICE)
    assert not {"ssl.key.password", "ssl.keystore.location"} & found.keys()


def _trust_store(certificates: list[pkcs12.PKCS12Certificate]) -> bytes:
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption

    encryption = BestAvailableEncryption(SECRET.encode())
    return pkcs12.serialize_java_truststore(certificates, encryption)


@pytest.mark.parametrize(("kafkas", "librdkafkas"), [("", "none"), ("HTTPS", "https")])
def test_endpoint_identification(kafkas: str, librdkafkas: str) -> None:
    found = translated(tls(endpoint_identification_algorithm=kafkas))
    assert found["ssl.endpoint.identification.algorithm"] == librdkafkas


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"truststore_location": "/nowhere"}, "ssl.truststore.location"),
        ({"truststore_location": "{pem}"}, "set the store's type to PEM"),
        ({"truststore_location": "{p12}", "truststore_password": "wrong"}, "path="),
        ({"truststore_location": "{p12}", "truststore_type": "BKS"}, "ssl.truststore.type"),
        ({"truststore_location": "{pem}", "truststore_certificates": "x"}, "given twice"),
        ({"truststore_certificates": "x"}, "ssl.truststore.type=PEM"),
        ({"truststore_location": "{pem}", "ca_location": "x"}, "other_key=ssl.ca.location"),
        ({"keystore_location": "{p12}", "keystore_password": "wrong"}, "ssl.keystore.location"),
        ({"keystore_location": "{p12}", "key_pem": "x"}, "other_key=ssl.key.pem"),
        ({"keystore_key": "x", "keystore_type": "PEM"}, "ssl.keystore.certificate.chain"),
        ({"keystore_location": "{locked}", "keystore_type": "PEM"}, "ssl.keystore.location"),
        (
            {"keystore_location": "{pem}", "keystore_type": "PEM", "keystore_password": SECRET},
            "ssl.keystore.password",
        ),
        ({"endpoint_identification_algorithm": "ldaps"}, "ssl.endpoint.identification"),
        ({"enabled_protocols": "TLSv1.3"}, "ssl.enabled.protocols"),
        ({"engine_factory_class": "x"}, "ssl.engine.factory.class"),
    ],
)
def test_stores_that_cannot_be_used_name_key_and_file(
    tmp_path: Path, changes: dict[str, str], named: str
) -> None:
    places = {
        "pem": ALICE.write_pem(tmp_path / "alice.pem"),
        "locked": ALICE.write_pem(tmp_path / "locked.pem", SECRET),
        "p12": ALICE.write_pkcs12(tmp_path / "alice.p12", SECRET),
    }
    assert named in refused(tls(**{name: text.format(**places) for name, text in changes.items()}))


# ---- files


def test_file_of_properties(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "client.properties"
    path.touch(0o600)
    path.write_text("# a comment\n" + "\n".join(f"{k}={v}" for k, v in sasl().items()))
    with caplog.at_level(logging.WARNING):
        properties = read_client_properties(path)
        assert properties == sasl()
        assert properties.place == f"file={path}"
        assert not caplog.messages
        path.chmod(0o644)
        read_client_properties(path)
    assert str(path) in caplog.text
    assert "mode=644" in caplog.text
    assert SECRET not in caplog.text


def test_file_without_secrets_may_be_read_by_all(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "client.properties"
    path.write_text("client.id=x")
    read_client_properties(path)
    with pytest.raises(ConfigError, match="nowhere"):
        read_client_properties(tmp_path / "nowhere")
    assert not caplog.messages


def test_key_file_that_others_may_read_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = ALICE.write_pem(tmp_path / "alice.pem")
    translated(tls(keystore_type="PEM", keystore_location=path))
    assert not caplog.messages
    path.chmod(0o640)
    translated(tls(keystore_type="PEM", keystore_location=path))
    assert str(path) in caplog.text
