"""OAUTHBEARER with librdkafka: tokens that the keys of an https server have signed, and others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from isotherm.config.security import STANDARD_AUTHORIZER
from isotherm.errors import ConfigError
from isotherm.testing.embedded_broker import EmbeddedBroker
from oracle.tools import TOPICS, run_tools_to_status
from tests.support.certificates import issue
from tests.support.conditions import wait_until
from tests.support.token_provider import AUDIENCE, ISSUER, Provider, served

TIMEOUT_S = 300
LOGIN_MODULE = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required"


@pytest.fixture(scope="module")
def provider() -> Provider:
    return Provider()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("keys")
    authority = issue("authority")
    server = issue("localhost", authority)
    (made / "server.pem").write_bytes(server.key_pem + server.certificate_pem)
    (made / "authority.pem").write_bytes(authority.certificate_pem)
    return made


def settings(folder: Path, url: str) -> dict[str, str]:
    store = folder / "authority.pem"
    return {
        "listeners": "CLIENTS://127.0.0.1:0",
        "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT",
        "inter.broker.listener.name": "CLIENTS",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "listener.name.clients.oauthbearer.sasl.oauthbearer.jwks.endpoint.url": url,
        "listener.name.clients.oauthbearer.sasl.jaas.config": (
            f'{LOGIN_MODULE} ssl.truststore.type="PEM" ssl.truststore.location="{store}";'
        ),
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:alice",
    }


@pytest.fixture(scope="module")
def broker(
    provider: Provider, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EmbeddedBroker]:
    pages = {"/keys": provider.key_set()}
    with (
        served(pages, folder / "server.pem") as address,
        EmbeddedBroker(
            tmp_path_factory.mktemp("broker"), settings(folder, f"{address}/keys")
        ) as running,
    ):
        yield running


def client(broker: EmbeddedBroker, new_token: Callable[[], str], life_s: float = 3600) -> Any:
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "oauth_cb": lambda config: (new_token(), time.time() + life_s),
        "log_level": 0,
    }


def test_client_is_the_subject_of_its_token(broker: EmbeddedBroker, provider: Provider) -> None:
    login = client(broker, lambda: provider.token(time.time(), key="ec", algorithm="ES256"))
    admin = AdminClient(login)
    admin.poll(1)
    admin.create_topics([NewTopic("by-alice", 1, 1)])["by-alice"].result(TIMEOUT_S)
    other = AdminClient(client(broker, lambda: provider.token(time.time(), sub="bob")))
    other.poll(1)
    with pytest.raises(KafkaException, match="AUTHORIZATION_FAILED"):
        other.create_topics([NewTopic("other", 1, 1)])["other"].result(TIMEOUT_S)


@pytest.mark.parametrize(
    "new_token",
    [
        lambda provider: provider.token(time.time(), exp=int(time.time()) - 60),
        lambda provider: provider.token(time.time(), iss="https://other.example"),
        lambda provider: provider.token(time.time(), aud="other"),
        lambda provider: Provider().token(time.time()),
        lambda provider: provider.unsigned_token(time.time()),
        lambda provider: provider.token_with_the_public_key_as_a_secret(time.time()),
    ],
    ids=["expired", "issuer", "audience", "signature", "none", "HS256 with the public key"],
)
def test_other_tokens_are_refused(
    broker: EmbeddedBroker, provider: Provider, new_token: Callable[[Provider], str]
) -> None:
    errors: list[KafkaError] = []
    token = new_token(provider)
    admin = AdminClient(client(broker, lambda: token) | {"error_cb": errors.append})
    end = time.monotonic() + TIMEOUT_S
    while time.monotonic() < end and not any("invalid_token" in error.str() for error in errors):
        admin.poll(0.1)
    failed = [error for error in errors if "invalid_token" in error.str()]
    assert {each.code() for each in failed} == {KafkaError._AUTHENTICATION}
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=0.5)


def test_client_logs_in_again_before_its_token_expires(
    broker: EmbeddedBroker, provider: Provider
) -> None:
    """librdkafka does so because the broker's answer contains the session's lifetime."""
    tokens = 0

    def new_token() -> str:
        nonlocal tokens
        tokens += 1
        return provider.token(time.time(), exp=int(time.time()) + 3)

    # librdkafka gets the next one after four fifths of this life.
    producer = Producer(client(broker, new_token, life_s=2))

    def has_renewed() -> bool:
        producer.produce("topic", b"value")
        assert producer.flush(TIMEOUT_S) == 0
        return tokens >= 4

    wait_until(has_renewed)


@pytest.mark.parametrize("source", ["no file", "not found", "redirected", "http", "not trusted"])
def test_keys_that_cannot_be_trusted_stop_the_start(
    provider: Provider, folder: Path, source: str
) -> None:
    other = issue("localhost")
    (folder / "other.pem").write_bytes(other.key_pem + other.certificate_pem)
    certificate = {"http": None, "not trusted": folder / "other.pem"}.get(
        source, folder / "server.pem"
    )
    pages = {"/keys": provider.key_set()}
    with served(pages, None) as plain:
        if source == "redirected":
            pages = {"/keys": f"{plain}/keys".encode()}
        elif source == "not found":
            pages = {}
        with served(pages, certificate) as address:
            url = f"file://{folder}/nowhere" if source == "no file" else f"{address}/keys"
            with pytest.raises(ConfigError, match=r"sasl\.oauthbearer\.jwks\.endpoint\.url"):
                EmbeddedBroker(folder / "refused", settings(folder, url)).start()


def test_listener_without_keys_is_refused(folder: Path) -> None:
    """Kafka's default accepts unsigned tokens, which any client can make."""
    texts = settings(folder, "")
    del texts["listener.name.clients.oauthbearer.sasl.oauthbearer.jwks.endpoint.url"]
    with pytest.raises(ConfigError, match="tokens without a signature are not accepted"):
        EmbeddedBroker(folder / "refused", texts).start()


@pytest.mark.parametrize("key", ["sasl.server.callback.handler.class", "sasl.jaas.config"])
def test_other_classes_are_refused(folder: Path, key: str) -> None:
    changed = {f"listener.name.clients.oauthbearer.{key}": "org.example.Other required;"}
    with pytest.raises(ConfigError, match="OAuthBearer"):
        EmbeddedBroker(folder / "refused", settings(folder, "file:///nowhere") | changed).start()


def test_keys_are_read_from_a_file(provider: Provider, folder: Path) -> None:
    (folder / "keys.json").write_bytes(provider.key_set())
    texts = settings(folder, f"file://{folder}/keys.json")
    with EmbeddedBroker(folder / "by-file", texts) as running:
        admin = AdminClient(client(running, lambda: provider.token(time.time())))
        admin.poll(1)
        assert admin.list_topics(timeout=TIMEOUT_S).brokers


@pytest.mark.oracle
def test_kafkas_own_client_logs_in(
    kafka_tools: Path, provider: Provider, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, url = folder / "token.jwt", f"file://{folder}/token.jwt"
    allowed = "-Dorg.apache.kafka.sasl.oauthbearer.allowed"
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"{allowed}.urls={url} {allowed}.files={token}")
    (folder / "keys.json").write_bytes(provider.key_set())
    properties = folder / "client.properties"
    handler = LOGIN_MODULE.replace("LoginModule required", "LoginCallbackHandler")
    properties.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=OAUTHBEARER\n"
        f"sasl.login.callback.handler.class={handler}\nsasl.jaas.config={LOGIN_MODULE};\n"
        f"sasl.oauthbearer.token.endpoint.url={url}\n"
    )
    with EmbeddedBroker(folder / "for-java", settings(folder, f"file://{folder}/keys.json")) as one:
        command = [TOPICS, "--bootstrap-server", one.bootstrap_servers]
        command += ["--command-config", str(properties), "--create", "--topic"]
        statuses = []
        for audience in (AUDIENCE, "other"):
            token.write_text(provider.token(time.time(), aud=audience))
            ((status, _),) = run_tools_to_status([*command, f"for-{audience}"])
            statuses.append(status)
        assert statuses == [0, 1]
        assert f"for-{AUDIENCE}" in one.node.services.metadata.image.topics_by_name
