"""Clients attack connections, logins and handshakes; they are refused, and others are served
meanwhile.

Certificates and old versions of TLS: tests/interop/test_tls.py. The tokens of OAUTHBEARER:
tests/interop/test_oauthbearer.py.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from kio.schema.errors import ErrorCode

from isotherm.broker.apis.api_register import SERVED
from isotherm.broker.server.net import acceptor
from isotherm.config.security import STANDARD_AUTHORIZER
from isotherm.protocol.api_keys import ApiKey
from isotherm.testing.embedded_broker import EmbeddedBroker
from oracle.raw_requests import CLOSED, request_frame
from tests.support.certificates import issue
from tests.support.raw_client import RawClient, scram_final

TIMEOUT_S = 300
NONCE = "fyko+d2lbbFgONRv9qkxdawL"
LOGIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule required"
# Longer than a test: a client that waits this long has no answer.
NEVER_MS = 600_000
SETTINGS = {
    "listeners": "LOGIN://127.0.0.1:0,SLOW://127.0.0.1:0,TLS://localhost:0,PLAIN://127.0.0.1:0",
    "listener.security.protocol.map": (
        "LOGIN:SASL_PLAINTEXT,SLOW:SASL_PLAINTEXT,TLS:SSL,PLAIN:PLAINTEXT"
    ),
    "inter.broker.listener.name": "LOGIN",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    "listener.name.login.plain.sasl.jaas.config": (
        f'{LOGIN_MODULE} user_admin="adm1n" user_alice="hers";'
    ),
    "listener.name.slow.plain.sasl.jaas.config": f'{LOGIN_MODULE} user_alice="hers";',
    "connection.failed.authentication.delay.ms": "10",
    "listener.name.slow.connection.failed.authentication.delay.ms": str(NEVER_MS),
    "ssl.keystore.type": "PEM",
    "authorizer.class.name": STANDARD_AUTHORIZER,
    "super.users": "User:admin",
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    folder = tmp_path_factory.mktemp("broker")
    key = issue("localhost").write_pem(folder / "server.pem")
    settings = SETTINGS | {"ssl.keystore.location": str(key)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(acceptor, "HANDSHAKE_TIMEOUT_S", 3.0)
        with EmbeddedBroker(folder, settings) as running:
            admin = administrator(running)
            admin.create_topics([NewTopic("topic", 1, 1)])["topic"].result(TIMEOUT_S)
            info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096)
            made = UserScramCredentialUpsertion("bob", info, b"his")
            admin.alter_user_scram_credentials([made])["bob"].result(TIMEOUT_S)
            yield running


def administrator(broker: EmbeddedBroker) -> AdminClient:
    return AdminClient(
        {
            "bootstrap.servers": address(broker, "LOGIN"),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "admin",
            "sasl.password": "adm1n",
        }
    )


def address(broker: EmbeddedBroker, listener: str) -> str:
    endpoint = next(each for each in broker.node.endpoints if each.listener_name == listener)
    return f"{endpoint.host}:{endpoint.port}"


@contextlib.contextmanager
def logged_in(broker: EmbeddedBroker, listener: str = "LOGIN") -> Iterator[RawClient]:
    with RawClient(address(broker, listener)) as client:
        assert client.log_in_plain("alice", "hers").error_code is ErrorCode.none
        yield client


def is_served(client: RawClient) -> bool:
    return client.ask(ApiKey.METADATA, 1, topics=()) != CLOSED


# ---- before the login


def requests_of_every_api() -> Iterator[tuple[ApiKey, bytes]]:
    """A valid request of every API; a listener without a login answers each."""
    login = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
    for key, versions in SERVED.items():
        if key not in login:
            yield ApiKey(key), request_frame(key, versions.max, {})


@pytest.mark.parametrize("state", ["new", "handshake", "challenged"])
def test_no_request_is_answered_before_the_login(broker: EmbeddedBroker, state: str) -> None:
    for api, frame in requests_of_every_api():
        if state == "new" and api is ApiKey.API_VERSIONS:
            continue
        with RawClient(address(broker, "LOGIN")) as client:
            if state != "new":
                client.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism="SCRAM-SHA-256")
            if state == "challenged":
                assert challenge(client).startswith(b"r=")
            client.send_frame(frame)
            assert client.is_closed(), api


def test_login_that_is_not_ended_does_not_open_the_way_to_large_requests(
    broker: EmbeddedBroker,
) -> None:
    for size in (524_289, 2**31 - 1):
        with RawClient(address(broker, "LOGIN")) as client:
            client.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism="PLAIN")
            client.send(size.to_bytes(4))
            assert client.is_closed()


# ---- SCRAM


def challenge(client: RawClient) -> bytes:
    first = f"n,,n=bob,r={NONCE}".encode()
    response = client.ask(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=first.hex())
    return bytes(response.auth_bytes)


def send_scram(client: RawClient, token: bytes) -> Any:
    return client.ask(ApiKey.SASL_AUTHENTICATE, 2, auth_bytes=token.hex())


@contextlib.contextmanager
def challenged(broker: EmbeddedBroker) -> Iterator[tuple[RawClient, bytes]]:
    """A client that has the broker's first message, and the right answer to it."""
    with RawClient(address(broker, "LOGIN")) as client:
        client.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism="SCRAM-SHA-256")
        yield client, scram_final("bob", "his", NONCE, challenge(client))


def is_refused(client: RawClient, token: bytes) -> bool:
    response = send_scram(client, token)
    return response.error_code is ErrorCode.sasl_authentication_failed and client.is_closed()


def test_scram_message_that_is_cut_off_is_refused(broker: EmbeddedBroker) -> None:
    with challenged(broker) as (client, right):
        assert send_scram(client, right).auth_bytes.startswith(b"v=")
        assert is_served(client)
    for size in (0, 1, len("c=biws,r=") + len(NONCE), len(right) - 1):
        with challenged(broker) as (client, right):
            assert is_refused(client, right[:size]), size


def test_scram_message_of_another_connection_is_refused(broker: EmbeddedBroker) -> None:
    with challenged(broker) as (client, recorded):
        assert send_scram(client, recorded).error_code is ErrorCode.none
    with challenged(broker) as (client, right):
        # The client repeats its nonce; the broker's nonce differs.
        assert right != recorded
        assert is_refused(client, recorded)


def test_scram_is_not_begun_twice(broker: EmbeddedBroker) -> None:
    with challenged(broker) as (client, _):
        assert is_refused(client, f"n,,n=bob,r={NONCE}".encode())


# ---- TLS


def test_tls_is_not_answered_on_a_listener_without_it(broker: EmbeddedBroker) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for listener in ("PLAIN", "LOGIN"):
        host, _, port = address(broker, listener).rpartition(":")
        with (
            socket.create_connection((host, int(port)), TIMEOUT_S) as plain,
            # Read as a frame size, the beginning of a TLS handshake exceeds every listener's limit.
            pytest.raises((ssl.SSLError, ConnectionError)),
        ):
            context.wrap_socket(plain)


def test_handshakes_that_never_end_are_cut_and_others_are_served_meanwhile(
    broker: EmbeddedBroker,
) -> None:
    begun = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with contextlib.ExitStack() as stack:
        stuck = [stack.enter_context(RawClient(address(broker, "TLS"))) for _ in range(50)]
        for client in stuck:
            client.send(begun)
        host, _, port = address(broker, "TLS").rpartition(":")
        plain = socket.create_connection((host, int(port)), TIMEOUT_S)
        tls = stack.enter_context(context.wrap_socket(plain, server_hostname="localhost"))
        healthy = RawClient(address(broker, "TLS"), tls)
        assert healthy.ask(ApiKey.API_VERSIONS, 0).api_keys
        for client in stuck:
            assert client.is_closed()
        assert healthy.ask(ApiKey.API_VERSIONS, 0).api_keys


# ---- failures, and other clients


def test_failed_logins_wait_without_holding_up_others(broker: EmbeddedBroker) -> None:
    with contextlib.ExitStack() as stack:
        failed = [stack.enter_context(RawClient(address(broker, "SLOW"))) for _ in range(50)]
        for client in failed:
            client.ask(ApiKey.SASL_HANDSHAKE, 1, mechanism="PLAIN")
            payload = request_of_login("alice", "wrong")
            client.send_frame(payload)
        before = stack.enter_context(logged_in(broker, "LOGIN"))
        for _ in range(10):
            assert is_served(before)
            with logged_in(broker, "SLOW") as client:
                assert is_served(client)
        assert not any(client.has_answer() for client in failed)


def request_of_login(user: str, password: str) -> bytes:
    token = f"\0{user}\0{password}".encode()
    return request_frame(ApiKey.SASL_AUTHENTICATE, 2, {"auth_bytes": token.hex()})


# ---- access


def test_change_of_acls_holds_from_the_next_request_of_a_connection(
    broker: EmbeddedBroker,
) -> None:
    admin = administrator(broker)

    def binding(permission: AclPermissionType) -> AclBinding:
        return AclBinding(
            ResourceType.TOPIC,
            "topic",
            ResourcePatternType.LITERAL,
            "User:alice",
            "*",
            AclOperation.DESCRIBE,
            permission,
        )

    allow, deny = binding(AclPermissionType.ALLOW), binding(AclPermissionType.DENY)
    with logged_in(broker) as client:

        def error() -> ErrorCode:
            response = client.ask(ApiKey.METADATA, 1, topics=({"name": "topic"},))
            code: ErrorCode = response.topics[0].error_code
            return code

        denied = ErrorCode.topic_authorization_failed
        assert error() is denied
        admin.create_acls([allow])[allow].result(TIMEOUT_S)
        assert error() is ErrorCode.none
        admin.create_acls([deny])[deny].result(TIMEOUT_S)
        assert error() is denied
        for permission, then in (
            (AclPermissionType.DENY, ErrorCode.none),
            (AclPermissionType.ALLOW, denied),
        ):
            found = AclBindingFilter(
                ResourceType.TOPIC,
                "topic",
                ResourcePatternType.LITERAL,
                "User:alice",
                None,
                AclOperation.ANY,
                permission,
            )
            assert admin.delete_acls([found])[found].result(TIMEOUT_S)
            assert error() is then
