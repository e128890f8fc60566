"""Listeners with TLS: librdkafka by SSL, mutual TLS and SASL_SSL, and clients that are refused."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    pkcs12,
)

from isotherm.broker.server.net.certificate_principals import PrincipalMapper
from isotherm.config.security import STANDARD_AUTHORIZER
from isotherm.errors import ConfigError
from isotherm.protocol.api_keys import ApiKey
from isotherm.testing.embedded_broker import EmbeddedBroker
from oracle.raw_requests import CLOSED, ask, request_frame
from tests.support.certificates import Issued, issue

TIMEOUT_S = 300


class Files(NamedTuple):
    folder: Path
    authority: Issued

    def client(self, name: str, **changes: Any) -> dict[str, str]:
        issued = issue(name, changes.pop("issuer", self.authority), **changes)
        return {
            "ssl.key.pem": issued.key_pem.decode(),
            "ssl.certificate.pem": issued.certificate_pem.decode(),
        }


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder, authority = tmp_path_factory.mktemp("keys"), issue("authority")
    server = issue("localhost", authority)
    (folder / "server.pem").write_bytes(server.key_pem + server.certificate_pem)
    (folder / "authority.pem").write_bytes(authority.certificate_pem)
    (folder / "server.p12").write_bytes(
        pkcs12.serialize_key_and_certificates(
            b"server", server.key, server.certificate, None, BestAvailableEncryption(b"st0re")
        )
    )
    return Files(folder, authority)


@pytest.fixture(scope="module")
def broker(files: Files, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    pem = {
        f"listener.name.mutual.ssl.{key}": value
        for key, value in {
            "keystore.type": "PEM",
            "keystore.location": str(files.folder / "server.pem"),
            "truststore.type": "PEM",
            "truststore.location": str(files.folder / "authority.pem"),
            "client.auth": "required",
            "principal.mapping.rules": r"RULE:^CN=(\w+),O=Example$/$1/L",
        }.items()
    }
    settings = {
        "listeners": "ONEWAY://localhost:0,MUTUAL://localhost:0,LOGIN://localhost:0",
        "inter.broker.listener.name": "ONEWAY",
        "listener.security.protocol.map": "ONEWAY:SSL,MUTUAL:SSL,LOGIN:SASL_SSL",
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(files.folder / "server.p12"),
        "ssl.keystore.password": "st0re",
        **pem,
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.login.plain.sasl.jaas.config": f'{plain} user_admin="adm1n";',
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:admin;User:alice",
    }
    with EmbeddedBroker(tmp_path_factory.mktemp("broker"), settings) as running:
        yield running


def settings(broker: EmbeddedBroker, files: Files, listener: str) -> dict[str, Any]:
    endpoint = next(each for each in broker.node.endpoints if each.listener_name == listener)
    return {
        "bootstrap.servers": f"localhost:{endpoint.port}",
        "security.protocol": "SSL",
        "ssl.ca.pem": files.authority.certificate_pem.decode(),
        "log_level": 0,
    }


def can_list(client: dict[str, Any]) -> bool:
    """Whether the broker answers; otherwise the broker or the client has closed the connection."""
    errors: list[KafkaError] = []
    admin = AdminClient({**client, "error_cb": errors.append})
    deadline = time.monotonic() + TIMEOUT_S
    while not errors:
        assert time.monotonic() < deadline
        with contextlib.suppress(KafkaException):
            admin.list_topics(timeout=0.5)
            return True
        admin.poll(0.1)
    return False


def test_client_of_a_certificate_is_who_the_rules_say(broker: EmbeddedBroker, files: Files) -> None:
    client = {**settings(broker, files, "MUTUAL"), **files.client("ALICE")}
    admin = AdminClient(client)
    admin.create_topics([NewTopic("mutual", 1, 1)])["mutual"].result(TIMEOUT_S)
    producer = Producer(client)
    for _ in range(100):
        producer.produce("mutual", bytes(10_000))
    assert producer.flush(TIMEOUT_S) == 0


def test_client_logs_in_over_tls(broker: EmbeddedBroker, files: Files) -> None:
    client = {
        **settings(broker, files, "LOGIN"),
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "admin",
        "sasl.password": "adm1n",
    }
    admin = AdminClient(client)
    admin.create_topics([NewTopic("login", 1, 1)])["login"].result(TIMEOUT_S)
    assert not can_list({**client, "sasl.password": "wrong"})


def test_client_without_a_certificate_is_anonymous(broker: EmbeddedBroker, files: Files) -> None:
    client = settings(broker, files, "ONEWAY")
    assert can_list(client)
    admin = AdminClient(client)
    created = admin.create_topics([NewTopic("oneway", 1, 1)])["oneway"]
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        created.result(TIMEOUT_S)


def test_certificates_that_are_not_right_are_refused(broker: EmbeddedBroker, files: Files) -> None:
    client = settings(broker, files, "MUTUAL")
    assert not can_list(client), "none"
    assert not can_list({**client, **files.client("alice", ended=True)}), "expired"
    another = issue("another authority")
    assert not can_list({**client, **files.client("alice", issuer=another)}), "another's"
    assert not can_list({**client, **files.client("no name")}), "no rule fits"
    assert can_list({**client, **files.client("bob")})


@pytest.mark.parametrize("listener", ["ONEWAY", "MUTUAL", "LOGIN"])
def test_plain_text_is_not_answered(broker: EmbeddedBroker, files: Files, listener: str) -> None:
    server = settings(broker, files, listener)["bootstrap.servers"]
    assert ask(server, request_frame(ApiKey.API_VERSIONS, 0, {})) == CLOSED


@pytest.mark.filterwarnings("ignore:.*TLSv1.*:DeprecationWarning")
def test_old_versions_of_tls_are_not_offered(broker: EmbeddedBroker, files: Files) -> None:
    host, _, port = settings(broker, files, "ONEWAY")["bootstrap.servers"].rpartition(":")
    for version, is_offered in (
        (ssl.TLSVersion.TLSv1_1, False),
        (ssl.TLSVersion.TLSv1_2, True),
        (ssl.TLSVersion.TLSv1_3, True),
    ):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(files.folder / "authority.pem")
        context.minimum_version = context.maximum_version = version
        with socket.create_connection((host, int(port)), TIMEOUT_S) as plain:
            try:
                context.wrap_socket(plain, server_hostname="localhost").close()
            except (ssl.SSLError, OSError):
                assert not is_offered
            else:
                assert is_offered


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"ssl.keystore.type": "BCFKS"}, "ssl.keystore.type"),
        ({"ssl.cipher.suites": "TLS_NONSENSE"}, "suites=TLS_NONSENSE"),
        ({"ssl.enabled.protocols": "TLSv1.2,TLSv1.1"}, "ssl.enabled.protocols"),
        ({"ssl.keystore.password": "wr0ng"}, "cannot be set up"),
        ({"ssl.keystore.location": "/nowhere"}, "cannot be set up"),
        ({"ssl.principal.mapping.rules": "RULE:x"}, "ssl.principal.mapping.rules"),
    ],
)
def test_listener_that_cannot_be_served_is_refused(
    files: Files, tmp_path: Path, change: dict[str, str], named: str
) -> None:
    texts = {
        "listeners": "SSL://localhost:0",
        "inter.broker.listener.name": "SSL",
        "ssl.keystore.type": "PKCS12",
        "ssl.keystore.location": str(files.folder / "server.p12"),
        "ssl.keystore.password": "st0re",
    }
    with pytest.raises(ConfigError, match=named) as refused:
        EmbeddedBroker(tmp_path, texts | change).start()
    assert "wr0ng" not in str(refused.value)


@pytest.fixture(scope="module")
def keytool(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Creates a key store of a type with Java's keytool."""
    if shutil.which("keytool") is None:
        pytest.skip("there is no keytool")
    folder = tmp_path_factory.mktemp("stores")

    def make(store_type: str) -> Path:
        path = folder / f"{store_type}.jks"
        command = (
            f"keytool -genkeypair -keystore {path} -storetype {store_type} -storepass st0re55"
            " -dname CN=localhost -ext san=dns:localhost -alias server -keyalg EC"
            " -groupname secp256r1"
        )
        if not path.exists():
            subprocess.run(command.split(), check=True, capture_output=True)
        return path

    return make


def with_store(path: Path, **changes: str) -> dict[str, str]:
    return {
        "listeners": "SSL://localhost:0",
        "inter.broker.listener.name": "SSL",
        "ssl.keystore.location": str(path),
        "ssl.keystore.password": "st0re55",
        **changes,
    }


def handshake(broker: EmbeddedBroker, ciphers: str | None = None) -> str:
    """The cipher suite that broker and client agree on; ssl.SSLError or OSError if there is
    none.
    """
    host, _, port = broker.bootstrap_servers.rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if ciphers is not None:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(ciphers)
    with socket.create_connection((host, int(port)), TIMEOUT_S) as plain:
        tls = context.wrap_socket(plain, server_hostname="localhost")
        cipher = tls.cipher()
        tls.close()
    assert cipher is not None
    return cipher[0]


@pytest.mark.parametrize("store_type", ["PKCS12", "JKS"])
def test_what_keytool_makes_is_read_under_kafkas_default_type(
    keytool: Callable[[str], Path], tmp_path: Path, store_type: str
) -> None:
    suites = {"ssl.cipher.suites": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"}
    with EmbeddedBroker(tmp_path, with_store(keytool(store_type), **suites)) as broker:
        assert handshake(broker) == "ECDHE-ECDSA-AES128-GCM-SHA256"
        with pytest.raises((ssl.SSLError, OSError)):
            handshake(broker, "ECDHE-ECDSA-AES256-GCM-SHA384")


def test_jceks_store_is_refused_with_what_to_do(
    keytool: Callable[[str], Path], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="JCEKS store is not supported: keytool -importkeystore"):
        EmbeddedBroker(tmp_path, with_store(keytool("JCEKS"))).start()


@pytest.mark.parametrize(
    ("rules", "principal"),
    [
        ("DEFAULT", "CN=Alice,O=Example"),
        (r"RULE:^CN=(.*?),.*$/$1/", "Alice"),
        (r"RULE:^CN=(.*?),.*$/$1@x/U, DEFAULT", "ALICE@X"),
        (r"RULE:^CN=Bob$/bob/,RULE:^CN=(.*?),O=(.*?)$/$2.$1/L", "example.alice"),
        (r"RULE:^CN=Bob$/bob/, DEFAULT", "CN=Alice,O=Example"),
        (r"RULE:^CN=Bob$/bob/", None),
        # All matches are replaced, the shortest of a lazy one too, and what is between them stays.
        (r"RULE:CN=(.*?)/$1/", "Alice,O=Example"),
        (r"RULE:[^A-Z]*([A-Z])[^A-Z]*/$1/", None),
        (r"RULE:(?:[^A-Z]*([A-Z]))+[^A-Z]*/$1/L", "e"),
        # A group that there is not is a literal.
        (r"RULE:^CN=(.*?),.*$/$1-$2/", "Alice-$2"),
        (r"RULE:^CN=([a-z]+)+,OU=(.*)$/$1/,DEFAULT", "CN=Alice,O=Example"),
    ],
)
def test_principals_are_made_by_kafkas_rules(rules: str, principal: str | None) -> None:
    """The cases of Kafka's SslPrincipalMapperTest, on one name."""
    der = issue("Alice").certificate.public_bytes(Encoding.DER)
    found = PrincipalMapper(rules).principal(der)
    assert (None if found is None else found.name) == principal


def test_costly_rule_ends() -> None:
    """RE2 is linear; a backtracking engine would take 2**50 steps for this name."""
    der = issue("a" * 50).certificate.public_bytes(Encoding.DER)
    assert PrincipalMapper("RULE:CN=([a-z]+)+,OU=(.*)/$1/").principal(der) is None


@pytest.mark.parametrize(
    ("rules", "name"),
    [
        ("RULE:CN=(?!admin)(.*),.*/$1/", "look-around"),
        (r"RULE:CN=(.*),O=\1/$1/", "a back reference"),
        ("RULE:CN=([^,]*+),.*/$1/", "a possessive count"),
    ],
)
def test_rule_that_re2_cannot_run_is_refused_by_its_name(rules: str, name: str) -> None:
    with pytest.raises(ConfigError, match=f"ssl.principal.mapping.rules .*{name}, which is not"):
        PrincipalMapper(rules)
