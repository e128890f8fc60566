"""Logins over SASL_PLAINTEXT: clients with valid credentials succeed, and all others are
refused.
"""

from __future__ import annotations

import asyncio
import struct
import time
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.support.conditions import paced

with warnings.catch_warnings():
    # It reads its schemas, at import, with a function that Python 3.11 deprecates.
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka import KafkaProducer

from isotherm.config.security import STANDARD_AUTHORIZER
from isotherm.protocol.api_keys import ApiKey
from isotherm.testing.embedded_broker import EmbeddedBroker
from oracle.raw_requests import CLOSED, ask, read_answer, request_frame

TIMEOUT_S = 300
USERS = 'user_admin="adm1n" user_alice="hers"'
SETTINGS = {
    "listeners": "CLIENTS://127.0.0.1:0",
    "inter.broker.listener.name": "CLIENTS",
    "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
    "listener.name.clients.plain.sasl.jaas.config": (
        f"org.apache.kafka.common.security.plain.PlainLoginModule required {USERS};"
    ),
    "listener.name.clients.connection.failed.authentication.delay.ms": "50",
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:admin",
}
MECHANISMS = {
    "PLAIN": ("alice", "hers"),
    "SCRAM-SHA-256": ("bob", "2 5 6"),
    "SCRAM-SHA-512": ("alice", "512"),
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker"), SETTINGS) as running:
        admin = AdminClient(login(running, "PLAIN", "admin", "adm1n"))
        admin.create_topics([NewTopic("topic", 1, 1)])["topic"].result(TIMEOUT_S)
        acls = [
            AclBinding(
                kind,
                "*",
                ResourcePatternType.LITERAL,
                f"User:{user}",
                "*",
                AclOperation.ALL,
                AclPermissionType.ALLOW,
            )
            for kind in (ResourceType.TOPIC, ResourceType.GROUP)
            for user in ("alice", "bob")
        ]
        for made in admin.create_acls(acls).values():
            made.result(TIMEOUT_S)
        upserted = [
            UserScramCredentialUpsertion(
                user,
                ScramCredentialInfo(ScramMechanism[name.replace("-", "_")], 4096),
                password.encode(),
            )
            for name, (user, password) in MECHANISMS.items()
            if name != "PLAIN"
        ]
        for changed in admin.alter_user_scram_credentials(upserted).values():
            changed.result(TIMEOUT_S)
        yield running


def login(broker: EmbeddedBroker, mechanism: str, user: str, password: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
    }


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_logs_in(broker: EmbeddedBroker, mechanism: str) -> None:
    settings = login(broker, mechanism, *MECHANISMS[mechanism])
    producer = Producer(settings)
    value = uuid.uuid4().bytes
    producer.produce("topic", value)
    assert producer.flush(TIMEOUT_S) == 0
    consumer = Consumer(
        {**settings, "group.id": str(uuid.uuid4()), "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["topic"])
    values = set()
    while value not in values:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        assert message.error() is None
        values.add(message.value())
    consumer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_and_aiokafka_log_in(broker: EmbeddedBroker, mechanism: str) -> None:
    user, password = MECHANISMS[mechanism]
    settings: dict[str, Any] = {
        "bootstrap_servers": broker.bootstrap_servers,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": user,
        "sasl_plain_password": password,
    }
    producer = KafkaProducer(**settings)
    producer.send("topic", b"kafka-python").get(TIMEOUT_S)
    producer.close()

    async def send() -> None:
        async with AIOKafkaProducer(**settings) as other:
            await other.send_and_wait("topic", b"aiokafka")

    asyncio.run(send())


@pytest.mark.parametrize(
    ("mechanism", "user", "password"),
    [
        ("PLAIN", "alice", "his"),
        ("PLAIN", "nobody", "hers"),
        ("SCRAM-SHA-256", "bob", "wrong"),
        ("SCRAM-SHA-256", "nobody", "hers"),
        ("SCRAM-SHA-512", "bob", "2 5 6"),
    ],
)
def test_nobody_else_logs_in(
    broker: EmbeddedBroker, mechanism: str, user: str, password: str
) -> None:
    errors: list[KafkaError] = []
    admin = AdminClient({**login(broker, mechanism, user, password), "error_cb": errors.append})
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=1)
    deadline = time.monotonic() + TIMEOUT_S
    while KafkaError._AUTHENTICATION not in {error.code() for error in errors}:
        assert time.monotonic() < deadline, errors
        admin.poll(0.1)


def test_user_may_do_what_its_acls_allow(broker: EmbeddedBroker) -> None:
    admin = AdminClient(login(broker, "PLAIN", "alice", "hers"))
    assert set(admin.list_topics(timeout=TIMEOUT_S).topics) >= {"topic"}
    asked = AclBinding(
        ResourceType.TOPIC,
        "topic",
        ResourcePatternType.LITERAL,
        "User:alice",
        "*",
        AclOperation.ALL,
        AclPermissionType.ALLOW,
    )
    with pytest.raises(KafkaException) as refused:
        admin.create_acls([asked])[asked].result(TIMEOUT_S)
    assert refused.value.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED


@pytest.mark.parametrize(
    ("api", "version", "fields"),
    [
        (ApiKey.METADATA, 12, {}),
        (ApiKey.PRODUCE, 9, {"acks": 1}),
        (ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": b"\0admin\0adm1n".hex()}),
        (ApiKey.FIND_COORDINATOR, 3, {"key": "g"}),
    ],
)
def test_nothing_is_answered_before_the_login(
    broker: EmbeddedBroker, api: ApiKey, version: int, fields: dict[str, Any]
) -> None:
    assert ask(broker.bootstrap_servers, request_frame(api, version, fields)) == CLOSED


def test_versions_are_answered_before_the_login(broker: EmbeddedBroker) -> None:
    answer = ask(broker.bootstrap_servers, request_frame(ApiKey.API_VERSIONS, 0, {}))
    assert isinstance(answer, bytes)
    assert read_answer(ApiKey.API_VERSIONS, 0, answer).api_keys


def test_unknown_mechanism_is_answered_with_those_there_are(broker: EmbeddedBroker) -> None:
    frame = request_frame(ApiKey.SASL_HANDSHAKE, 1, {"mechanism": "GSSAPI"})
    answer = ask(broker.bootstrap_servers, frame)
    assert isinstance(answer, bytes)
    response = read_answer(ApiKey.SASL_HANDSHAKE, 1, answer)
    assert (int(response.error_code), set(response.mechanisms)) == (33, set(MECHANISMS))


def test_large_request_before_the_login_is_not_read(broker: EmbeddedBroker) -> None:
    assert ask(broker.bootstrap_servers, bytes(524_289)) == CLOSED


def test_login_of_version_0_is_in_raw_tokens(broker: EmbeddedBroker) -> None:
    host, _, port = broker.bootstrap_servers.rpartition(":")

    async def talk() -> tuple[bytes, bytes]:
        reader, writer = await asyncio.open_connection(host, int(port))

        async def exchange(payload: bytes) -> bytes:
            writer.write(struct.pack(">i", len(payload)) + payload)
            (size,) = struct.unpack(">i", await reader.readexactly(4))
            return await reader.readexactly(size)

        await exchange(request_frame(ApiKey.SASL_HANDSHAKE, 0, {"mechanism": "PLAIN"}))
        token = await exchange(b"\0alice\0hers")
        metadata = await exchange(request_frame(ApiKey.METADATA, 1, {}))
        writer.close()
        return token, metadata

    token, metadata = asyncio.run(asyncio.wait_for(talk(), TIMEOUT_S))
    assert token == b""
    assert [topic.name for topic in read_answer(ApiKey.METADATA, 1, metadata).topics]


def test_session_is_prolonged_by_another_login_and_ends_without(tmp_path: Path) -> None:
    settings = {**SETTINGS, "listener.name.clients.connections.max.reauth.ms": "1500"}
    with EmbeddedBroker(tmp_path, settings) as broker:
        prolonging = login(broker, "PLAIN", "admin", "adm1n")
        producer = Producer(prolonging)
        for _ in paced(0.2, for_s=5):
            producer.produce("topic", b"value")
            assert producer.flush(TIMEOUT_S) == 0


def test_secrets_are_not_described(broker: EmbeddedBroker) -> None:
    admin = AdminClient(login(broker, "PLAIN", "admin", "adm1n"))
    resource = ConfigResource(ConfigResource.Type.BROKER, "1")
    (described,) = admin.describe_configs([resource]).values()
    entries = described.result(TIMEOUT_S)
    assert entries["sasl.jaas.config"].is_sensitive
    assert not any("adm1n" in (entry.value or "") for entry in entries.values())
